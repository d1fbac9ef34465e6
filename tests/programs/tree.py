"""``python -m tests.programs.tree [WORD ...]``: the watched runs of the corpus as trees, beside their flat traces.

Each program runs speculated; each run that is watched on the way becomes a tree, and what follows from the tree must be
the flat trace. Ends with 1 if that is not so for a program.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import random
import sys
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torchjanus
from tests.programs import harness
from torchjanus.runtime.parts import calls
from torchjanus.trace.actions import InvokeOp
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.outline import outlined
from torchjanus.tracegraph.flatten import flatten
from torchjanus.tracegraph.graph import Graph, walk
from torchjanus.tracegraph.record import tree_of
from torchjanus.tracegraph.text.parsing import parse_graph
from torchjanus.tracegraph.text.printing import constants_of, print_graph
from torchjanus.tracegraph.verify import broken_rules

__all__ = ["Findings", "differences", "tree_findings"]

FEW = 2  # calls of a program, where no graphs are made


@dataclass
class Findings:
    """Of one program: how many runs were watched, and where trees differ from what they should be."""

    runs: int = 0
    differences: list[str] = field(default_factory=list)
    nodes: Counter[str] = field(default_factory=Counter)


def tree_findings(category: str, name: str, served: bool = True) -> Findings:
    """Run a program of the corpus and look at the tree of each watched run. ``served``: graphs are made of some."""
    findings = Findings()
    with outlined(), _watched_runs(findings), contextlib.nullcontext() if served else _no_graphs():
        try:
            harness.run(category, name, "replay", _all if served else _few)
        except _Enough:
            pass
        except Exception as error:  # the program itself, outside of its step
            findings.differences.append(f"does not run: {type(error).__name__}: {error}")
    return findings


class _Enough(BaseException):
    """Raised before a call that need not be made."""


def _all(number: int, steps: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext()


def _few(number: int, steps: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
    if number == FEW:
        raise _Enough
    return contextlib.nullcontext()


@contextmanager
def _no_graphs() -> Iterator[None]:
    """More runs are watched before a graph is made than any program makes."""
    speculate = torchjanus.speculate
    torchjanus.speculate = functools.partial(_speculate, speculate)  # type: ignore[assignment]
    try:
        yield
    finally:
        torchjanus.speculate = speculate


def _speculate(speculate: Any, *args: Any, **options: Any) -> Any:
    return speculate(*args, **{**options, "watch": 10_000})


@contextmanager
def _watched_runs(findings: Findings) -> Iterator[None]:
    watch = calls.watch_call

    def watched(*args: Any, **kwargs: Any) -> tuple[Any, Trace]:
        result, trace = watch(*args, **kwargs)
        findings.runs += 1
        try:
            findings.differences += differences(trace, findings.nodes, text=findings.runs % 2 == 0)
        except Exception:
            findings.differences.append(" | ".join(traceback.format_exc(limit=-2).split("\n")[1:]))
        return result, trace

    calls.watch_call = watched
    try:
        yield
    finally:
        calls.watch_call = watch


def differences(trace: Trace, nodes: Counter[str] | None = None, text: bool = True) -> list[str]:
    """Where the tree of a run does not lead back to the run. ``text``: also by way of its text."""
    graph = tree_of(trace)
    if nodes is not None:
        nodes.update(node.kind for node in walk(graph.body))
    return [*broken_rules(graph), *_unlike(trace, flatten(graph)), *(_text_differences(trace, graph) if text else ())]


def _text_differences(trace: Trace, graph: Graph) -> Iterator[str]:
    """Where the text of a tree does not lead back to the tree."""
    text = print_graph(graph)
    again = parse_graph(text, constants_of(graph))
    if again != graph:
        yield "the parsed text is another tree"
    if flatten(again).tokens() != trace.tokens():
        yield "the parsed text is another run"
    if (other := print_graph(parse_graph(text))) != text:
        lines = zip(text.splitlines(), other.splitlines(), strict=False)
        yield next((f"{one} is printed again as {two}" for one, two in lines if one != two), "a text is longer")


def _unlike(trace: Trace, made: Trace) -> Iterator[str]:
    ours, others = trace.tokens(), made.tokens()
    if ours != others:
        first = next((n for n, (one, other) in enumerate(zip(ours, others, strict=False)) if one != other), -1)
        yield f"token {first} of {len(ours)} and {len(others)}: {ours[first]} is {others[first]}"
    calls = [event.call for event in trace.events if isinstance(event, InvokeOp)]
    again = [event.call for event in made.events if isinstance(event, InvokeOp)]
    for one, other in zip(calls, again, strict=False):
        if (one is None) is not (other is None):
            yield "a recursive call has no trace"
        elif one is not None and one.outline is not None:
            yield from _unlike(one, other)


def _main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*", help="only programs whose category-name has one of these")
    parser.add_argument("--sample", type=int, default=0, help="this many programs, chosen by chance")
    parser.add_argument("--first", type=int, default=0, help="leave out so many programs of the part")
    parser.add_argument("--part", default="0/1", help="every nth program, as in 0/2 and 1/2")
    parser.add_argument("--no-graphs", action="store_true", help=f"only watch, {FEW} calls of each: much faster")
    parser.add_argument("--verbose", action="store_true")
    given = parser.parse_args()
    first, step = map(int, given.part.split("/"))
    programs = [one for one in harness.programs() if not given.words or any(w in "-".join(one) for w in given.words)]
    programs = programs[first::step][given.first :]
    if given.sample:
        programs = random.Random(0).sample(programs, min(given.sample, len(programs)))
    runs, unlike, nodes = 0, 0, Counter[str]()
    for number, (category, name) in enumerate(programs):
        found = tree_findings(category, name, not given.no_graphs)
        runs, unlike = runs + found.runs, unlike + bool(found.differences)
        nodes.update(found.nodes)
        if found.differences:
            print(f"{category}-{name}: {found.differences[0]}", flush=True)
        if given.verbose and number % 50 == 49:
            print(f"{number + 1} programs, {runs} runs, {unlike} unlike", file=sys.stderr, flush=True)
        if number % 20 == 0:
            gc.collect()
    print(f"{len(programs)} programs, {runs} watched runs: {len(programs) - unlike} equal, {unlike} not")
    print(", ".join(f"{kind} {count}" for kind, count in nodes.most_common()))
    return bool(unlike)


if __name__ == "__main__":
    sys.exit(_main())
