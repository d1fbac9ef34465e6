"""Errors in mid-step: torchjanus beside torch.compile, on programs whose own handlers see them.

    python -m benchmarks.robustness.exceptions [--record]

Takes some minutes.

Each program makes 16 calls; in three of them something is raised after the step has written to its state. What its
handler saw, what the state is after the call, the error that came out and its line are compared with eager's.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

import torchjanus
from benchmarks.record import write

__all__ = ["PROGRAMS", "Compared", "compared", "main", "run"]

GOOD = tuple(number not in (7, 10, 11) for number in range(16))  # in which calls nothing is raised


class State:
    """What a training loop keeps, and what the program's handlers saw of it when they ran."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.calls = 0
        self.passed = 0
        self.total = torch.zeros(3)
        self.weight = torch.ones(3, requires_grad=True)
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.names = {0: "a", 1: "b"}
        self.handled: list[tuple[int, int, torch.Tensor, torch.Tensor]] = []

    def begin(self, x: torch.Tensor) -> None:
        """Writes that come before the error."""
        self.calls += 1
        self.total.add_(x.flatten()[:3].detach())

    def see(self) -> None:
        """What a handler does."""
        self.handled.append((self.calls, self.passed, self.total.clone(), self.weight.detach().clone()))


Step = Callable[[Any], Any]


# -- the programs ------------------------------------------------------------------------------------------------------


def cholesky_of_a_bad_matrix(state: State) -> tuple[Step, list[Any]]:
    def step(x: torch.Tensor) -> torch.Tensor:
        state.begin(x)
        try:
            factor = torch.linalg.cholesky(x)
        except torch.linalg.LinAlgError:
            state.see()
            factor = torch.eye(3)
        state.passed += 1
        return factor.sum()

    return step, [torch.eye(3) * (2.0 if good else -1.0) for good in GOOD]


def cholesky_error_that_leaves_the_step(state: State) -> tuple[Step, list[Any]]:
    def step(x: torch.Tensor) -> torch.Tensor:
        state.begin(x)
        factor = torch.linalg.cholesky(x)
        state.total.mul_(2)
        state.passed += 1
        return factor.sum()

    return step, [torch.eye(3) * (2.0 if good else -1.0) for good in GOOD]


def index_out_of_range(state: State) -> tuple[Step, list[Any]]:
    table = torch.arange(12.0).reshape(4, 3)

    def step(index: torch.Tensor) -> torch.Tensor:
        state.calls += 1
        state.total.add_(1)
        try:
            row = table[index]
        except IndexError:
            state.see()
            row = table[0]
        state.passed += 1
        return row * 2

    return step, [torch.tensor([1, 2 if good else 7]) for good in GOOD]


def item_of_many_elements(state: State) -> tuple[Step, list[Any]]:
    def step(x: torch.Tensor) -> float:
        state.begin(x)
        try:
            value = x.max(-1).values.item()
        except RuntimeError:
            state.see()
            value = -1.0
        state.passed += 1
        return value * 2

    return step, [torch.ones(3) if good else torch.ones(2, 3) for good in GOOD]


def key_error_from_fetched_data(state: State) -> tuple[Step, list[Any]]:
    def step(x: torch.Tensor) -> str:
        state.begin(x)
        try:
            name = state.names[int(x.argmax())]
        except KeyError:
            state.see()
            name = "unknown"
        state.passed += 1
        return name

    return step, [torch.eye(3)[0 if good else 2] for good in GOOD]


def raise_after_an_update(state: State) -> tuple[Step, list[Any]]:
    def step(x: torch.Tensor) -> torch.Tensor:
        state.begin(x)
        state.optimizer.zero_grad()
        loss = (state.weight * x).pow(2).sum()
        loss.backward()
        state.optimizer.step()
        if loss.item() > 100.0:
            raise ValueError("the loss is too large")
        state.passed += 1
        return loss.detach()

    return step, [torch.ones(3) * (1.0 if good else 100.0) for good in GOOD]


def raise_that_is_caught(state: State) -> tuple[Step, list[Any]]:
    def check(x: torch.Tensor) -> None:
        state.total.mul_(2)
        if x.sum() > 100.0:
            raise ValueError("too large")

    def step(x: torch.Tensor) -> torch.Tensor:
        state.begin(x)
        try:
            check(x)
        except ValueError:
            state.see()
            x = x / 100
        else:
            state.passed += 1
        return x * 2

    return step, [torch.ones(3) * (1.0 if good else 100.0) for good in GOOD]


def assertion(state: State) -> tuple[Step, list[Any]]:
    def step(x: torch.Tensor) -> torch.Tensor:
        state.begin(x)
        assert x.sum() < 100.0, "too large"
        state.total.mul_(2)
        state.passed += 1
        return x * 2

    return step, [torch.ones(3) * (1.0 if good else 100.0) for good in GOOD]


def finally_clause(state: State) -> tuple[Step, list[Any]]:
    def step(x: torch.Tensor) -> torch.Tensor:
        state.begin(x)
        try:
            factor = torch.linalg.cholesky(x)
            state.passed += 1
        finally:
            state.see()
            state.total.sub_(1)
        return factor.sum()

    return step, [torch.eye(3) * (2.0 if good else -1.0) for good in GOOD]


def with_statement(state: State) -> tuple[Step, list[Any]]:
    @contextmanager
    def guarded() -> Iterator[None]:
        try:
            yield
        except torch.linalg.LinAlgError:
            state.see()

    def step(x: torch.Tensor) -> torch.Tensor:
        state.begin(x)
        result = x
        with guarded():
            result = torch.linalg.inv(x)
            state.passed += 1
        return result * 2

    return step, [torch.eye(3) * (2.0 if good else 0.0) for good in GOOD]


def error_in_backward(state: State) -> tuple[Step, list[Any]]:
    class Checked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            if grad.sum() > 100.0:
                raise ArithmeticError("the gradient is too large")
            return grad * 2

    def step(x: torch.Tensor) -> torch.Tensor:
        state.begin(x)
        state.optimizer.zero_grad()
        loss = (Checked.apply(state.weight) * x).sum()
        try:
            loss.backward()
        except ArithmeticError:
            state.see()
            return torch.zeros(())
        state.optimizer.step()
        state.passed += 1
        return loss.detach()

    return step, [torch.ones(3) * (1.0 if good else 100.0) for good in GOOD]


PROGRAMS: tuple[Callable[[State], tuple[Step, list[Any]]], ...] = (
    cholesky_of_a_bad_matrix,
    cholesky_error_that_leaves_the_step,
    index_out_of_range,
    item_of_many_elements,
    key_error_from_fetched_data,
    raise_after_an_update,
    raise_that_is_caught,
    assertion,
    finally_clause,
    with_statement,
    error_in_backward,
)


# -- one system, one program -------------------------------------------------------------------------------------------


@dataclass
class Run:
    """What one system made of a program: for each call its result or error, and the state after it."""

    outcomes: list[tuple[Any, ...]] = field(default_factory=list)
    states: list[tuple[Any, ...]] = field(default_factory=list)
    handled: list[tuple[Any, ...]] = field(default_factory=list)
    note: str = ""


def run(make: Callable[[State], tuple[Step, list[Any]]], system: str) -> Run:
    """All calls of a program under ``"eager"``, ``"torchjanus"``, or ``"torch.compile"`` with the name of a backend."""
    state = State()
    step, calls = make(state)
    code = step.__code__  # type: ignore[attr-defined]
    own = {line for _, _, line in code.co_lines()}
    janus = None
    if system == "torchjanus":
        janus = step = torchjanus.speculate(step, executor="replay")
    elif system != "eager":
        torch._dynamo.reset()
        step = torch.compile(step, backend=system.partition(" ")[2])
    out = Run(handled=state.handled)
    for call in calls:
        try:
            out.outcomes.append(("returned", step(call)))
        except Exception as error:
            frames = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == code.co_filename]
            lines = [line - code.co_firstlineno for line in frames if line in own]
            out.outcomes.append(("raised", type(error).__name__, lines[-1] if lines else None))
        out.states.append((state.calls, state.passed, state.total.clone(), state.weight.detach().clone()))
    if janus is not None:
        out.note = f"{janus.statistics().speculated} of {len(calls)}"
    return out


@dataclass(frozen=True)
class Compared:
    """One system beside eager. ``handlers``: how often handlers ran, and how often eager's did."""

    program: str
    system: str
    handlers: tuple[int, int]
    state_seen: bool  # by the handlers
    state_after: bool
    results: bool
    errors: str  # "" where eager raises none; else what is wrong with them, or "as eager's"
    note: str = ""  # how many calls were speculated

    @property
    def right(self) -> bool:
        ran, wanted = self.handlers
        return ran == wanted and self.state_seen and self.state_after and self.results and self.errors in ("", _SAME)


_SAME = "as eager's"


def compared(name: str, system: str, eager: Run, other: Run) -> Compared:
    """The differences of a run from eager's."""
    pairs = list(zip(eager.outcomes, other.outcomes, strict=True))
    raised = [(one, two) for one, two in pairs if "raised" in (one[0], two[0])]
    wrong = [f"{_reported(two)} for {_reported(one)}" for one, two in raised if one != two]
    errors = "; ".join(dict.fromkeys(wrong)) or (_SAME if raised else "")
    return Compared(
        name,
        system,
        (len(other.handled), len(eager.handled)),
        _close(eager.handled, other.handled),
        _close(eager.states, other.states),
        all(_close(one, two) for one, two in pairs if one[0] == "returned" == two[0]),
        errors,
        other.note,
    )


def _reported(outcome: tuple[Any, ...]) -> str:
    if outcome[0] == "returned":
        return "no error"
    return f"{outcome[1]} at line +{outcome[2]}" if outcome[2] is not None else f"{outcome[1]} without a line"


def _close(one: Any, two: Any) -> bool:
    """Whether values agree; floating-point ones up to the rounding of another compiler."""
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(_close, one, two))
    if isinstance(one, torch.Tensor):
        return one.shape == two.shape and torch.allclose(one, two, rtol=1e-5, atol=1e-6)
    return type(one) is type(two) and bool(abs(one - two) < 1e-5 if isinstance(one, float) else one == two)


def table(rows: list[Compared]) -> Table:
    shown = Table(box=SIMPLE)
    for head in ("program", "system", "handler ran", "saw state", "state after", "result", "speculated", "error"):
        shown.add_column(head)
    for row in rows:
        ran, wanted = row.handlers
        said = ["eager's" if yes else "WRONG" for yes in (row.state_seen, row.state_after, row.results)]
        handled = (f"{ran} of {wanted}", said[0]) if wanted or ran else ("-", "-")
        shown.add_row(row.program, row.system, *handled, *said[1:], row.note or "-", row.errors or "-")
    return shown


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="inductor" if shutil.which("c++") else "aot_eager")
    parser.add_argument("--only", default="", help="programs whose name holds this")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    systems = ("torchjanus", f"torch.compile {options.backend}")
    rows = []
    for make in PROGRAMS:
        if options.only in make.__name__:
            eager = run(make, "eager")
            rows += [compared(make.__name__, system, eager, run(make, system)) for system in systems]
    Console(width=None if sys.stdout.isatty() else 160).print(table(rows))
    right = {system: sum(row.right for row in rows if row.system == system) for system in systems}
    count = len(rows) // len(systems)
    print("\n" + ", ".join(f"{system}: {number} of {count} programs as eager" for system, number in right.items()))
    if options.record:
        content = {"programs": count, "right": right, "rows": [{**asdict(row), "right": row.right} for row in rows]}
        print(write("exceptions", sys.argv[1:] if given is None else given, "cpu", content))
    return 0 if right["torchjanus"] == count else 1


if __name__ == "__main__":
    sys.exit(main())
