"""Where each microsecond of a call goes that is not the graph's: what is assumed, taken, launched and committed.

    python -m benchmarks.cost.call_cost [--only mlp lstm ...] [--calls 400] [--record]

Takes ten minutes.

An entry's call is straight-line Python that torchjanus has generated. Here a clock is read after each of its
statements, and after each question of its guards; what reading it takes is measured on nothing and taken off. "around"
is what the wrapper costs, up to that code and back; "gate" what the executor does before and behind the compiled graph:
modes, flags, packed numbers. All medians over calls of training steps with Adam on one entry, by Inductor, one thread.
So many clocks slow down the code between them, so the share of what is checked in a whole call (JANUS, 6.3.2: within
the error of the measurement) is measured with clocks only where the code goes over from checking to something else.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice, pairwise
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import torchjanus
from benchmarks.programs.steps import PROGRAMS, make
from benchmarks.record import write
from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.host.embed import compile_with_constants
from torchjanus.runtime.launch.launch import Launch

__all__ = ["PARTS", "Borders", "Cost", "Marks", "cost", "main", "marked"]

WARM = 30

# What a statement is there for, by what it says. The first that fits.
PARTS = {
    "the graph": re.compile(r"\brun\("),
    "numbers: fetched, computed": re.compile(r"^\s*([ht]\d+ = |n\d+ = .*(\*\*|[-+*/]|F\d+\())"),
    "tensors: kind, size": re.compile(r"C\d+\((v\d+|C\d+)(, (v\d+|C\d+)){2,}\)"),
    "tensors: memory shared": re.compile(r"\.holds\(|data_ptr"),
    "modes of torch": re.compile(r"\bC\d+\((True)?\)|_current_level"),
    "gradients, state, result": re.compile(r"\.grad = |^\s*result = |return result|\] = |values"),
    "interrupts held back": re.compile(r"interrupts"),
    "objects: attributes, values, hooks": re.compile(r""),
}
ASSUMED = ("tensors: kind, size", "tensors: memory shared", "modes of torch", "objects: attributes, values, hooks")
AROUND, GATE, GRAPH = "around", "gate", "the graph"
CHECKED, OTHERS = "checked", "others"


@dataclass(frozen=True)
class Cost:
    """Medians, in microseconds. ``parts``: all that a call is made of, as many clocks see it; ``checked``: what
    checking the assumptions takes, as few do; ``assumed``: the share of it in the call."""

    program: str
    executor: str
    call: float
    parts: dict[str, float]
    checked: float

    @property
    def assumed(self) -> float:
        return self.checked / self.call


def part_of(text: str) -> str:
    return next(name for name, pattern in PARTS.items() if pattern.search(text))


class Marks:
    """Reads a clock after each statement, and after each question of a guard."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def whole(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        return [*ast.parse("mark(clock())").body, *self.block(body)]

    def _mark(self, name: str) -> list[ast.stmt]:
        self.names.append(name)
        return ast.parse("mark(clock())").body

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, ast.Try):
                statement.body = self.block(statement.body)
                statement.finalbody = self.block(statement.finalbody)
                made.append(statement)
            elif (
                isinstance(statement, ast.If)
                and isinstance(statement.test, ast.BoolOp)
                and isinstance(statement.test.op, ast.Or)
            ):
                for question in statement.test.values:
                    made += [ast.If(question, statement.body, []), *self._mark(part_of(ast.unparse(question)))]
            elif isinstance(statement, ast.Return):
                made.append(statement)
            else:
                made += [statement, *self._mark(part_of(ast.unparse(statement)))]
        return made


class Borders(Marks):
    """Reads a clock only where checking begins or ends. A name for each reading: what was done up to it."""

    def __init__(self) -> None:
        super().__init__()
        self._done: str | None = None  # since the last reading

    def block(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in body:
            if isinstance(statement, ast.Try):
                statement.body = self.block(statement.body)
                statement.finalbody = self.block(statement.finalbody)
            else:
                does = CHECKED if part_of(ast.unparse(statement).partition("\n")[0]) in ASSUMED else OTHERS
                if self._done not in (None, does):
                    made += self._mark(self._done)
                self._done = does
            made.append(statement)
        return made


def marked(launch: Launch, marks: Marks) -> tuple[Callable[..., Any], list[str]]:
    """An entry's ``call`` with a parameter ``mark`` more, which is given the clock, and what each reading is behind."""
    module = ast.parse(launch.source)
    call = next(one for one in module.body if isinstance(one, ast.FunctionDef) and one.name == "call")
    call.args.args.append(ast.arg("mark"))
    call.args.defaults = []
    call.body = marks.whole(call.body)
    scope = {**launch.names, "clock": time.perf_counter_ns}
    constants = launch.timed._constants  # type: ignore[attr-defined]  # made of the same pieces as ``call``
    compile_with_constants(ast.unparse(ast.fix_missing_locations(call)), "<call with clocks>", constants, scope)
    return scope["call"], marks.names


def reading() -> float:
    """Nanoseconds from one reading of the clock to the next."""
    clock, taken = time.perf_counter_ns, list[int]()
    mark = taken.append
    for _ in range(2000):
        mark(clock())
        mark(clock())
    return statistics.median(later - earlier for earlier, later in zip(taken[::2], taken[1::2], strict=True))


def cost(name: str, calls: int, executor: str = "inductor") -> Cost:
    """Make calls of one program in turns: as the user makes them, by the entry's code, and by that with clocks."""
    job = make(name, "adam")
    step = torchjanus.speculate(job.step, executor=executor)
    for batch in islice(cycle(job.batches), WARM):
        step(*batch)
        step.wait()
    (entry,) = step.entries
    launch = entry.launch
    clocked, names = marked(launch, Marks())
    bordered, does = marked(launch, Borders())
    compiled = entry.engine.compiled
    inside: list[float] = []
    if isinstance(compiled, Inductor):
        _time_within(compiled, inside)
    base = reading()
    whole, code, rows, checks = list[int](), list[int](), list[list[float]](), list[float]()
    for turn, batch in enumerate(islice(cycle(job.batches), 4 * calls)):
        began = time.perf_counter_ns()
        if turn % 4 == 0:
            step(*batch)
            whole.append(time.perf_counter_ns() - began)
        elif turn % 4 == 1:
            launch.call(batch, {}, None)
            code.append(time.perf_counter_ns() - began)
        elif turn % 4 == 2:
            rows.append(_clocks(launch, clocked, batch, names, base))
        else:
            found = _clocks(launch, bordered, batch, does, base)
            checks.append(sum(took for took, what in zip(found, does, strict=True) if what == CHECKED))
    parts: dict[str, float] = dict.fromkeys([AROUND, *PARTS], 0.0)
    for place, part in enumerate(names):
        parts[part] += statistics.median(row[place] for row in rows) / 1e3
    parts[AROUND] = max(0.0, statistics.median(whole) - statistics.median(code)) / 1e3
    if inside:
        kernels = statistics.median(inside) / 1e3
        parts[GATE], parts[GRAPH] = max(0.0, parts[GRAPH] - kernels), kernels
    return Cost(name, entry.engine.current, statistics.median(whole) / 1e3, parts, statistics.median(checks) / 1e3)


def _clocks(
    launch: Launch, call: Callable[..., Any], batch: tuple[Any, ...], names: list[str], base: float
) -> list[float]:
    """What one call took from each reading of the clock to the next, in nanoseconds."""
    ticks: list[int] = []
    call.__globals__["run"] = launch.names["run"]  # the entry's own may have been exchanged
    call(batch, {}, None, (), ticks.append)
    if len(ticks) != len(names) + 1:
        raise RuntimeError(f"the entry did not make the call ({len(ticks)} of {len(names) + 1} clocks)")
    return [max(0.0, later - earlier - base) for earlier, later in pairwise(ticks)]


def _time_within(compiled: Inductor, inside: list[float]) -> None:
    call = compiled._call

    @functools.wraps(call)
    def timed(*given: Any) -> Any:
        began = time.perf_counter_ns()
        made = call(*given)
        inside.append(time.perf_counter_ns() - began)
        return made

    compiled._call = timed


def table(found: Sequence[Cost]) -> Table:
    made = Table(title="a call's microseconds", box=SIMPLE)
    made.add_column("what")
    for one in found:
        made.add_column(one.program, justify="right")
    for part in [AROUND, *PARTS, GATE]:
        if any(part in one.parts for one in found):
            made.add_row(part, *(f"{one.parts.get(part, 0.0):.1f}" for one in found))
    made.add_row("whole call", *(f"{one.call:.1f}" for one in found))
    made.add_row("assumptions checked, few clocks", *(f"{one.checked:.1f}" for one in found))
    made.add_row("assumptions, of the whole", *(f"{one.assumed:.1%}" for one in found))
    return made


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost.call_cost", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), metavar="PROGRAM", default=list(PROGRAMS))
    parser.add_argument("--calls", type=int, default=400, help="calls of each kind")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results/call_cost.json")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    found = [cost(name, options.calls) for name in options.only]
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table(found))
    if options.record:
        argv = sys.argv[1:] if given is None else given
        print(write("call_cost", argv, "cpu", {"programs": [asdict(one) | {"assumed": one.assumed} for one in found]}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
