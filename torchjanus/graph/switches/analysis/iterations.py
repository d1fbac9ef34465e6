"""One iteration of a switched loop as data: its events, its results, and the possible sources of its operands.

An operand from an earlier iteration reaches an iteration through a variable of the program. A tensor only shows which
variables may be meant; comparing iterations resolves that (see ``arms``). ``iteration_reader`` makes them of a trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchjanus.core.access_path import Step, token_of
from torchjanus.graph.switches.analysis.effects import ArmEffect
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import (
    EmptinessTest,
    HeapRead,
    IdentityTest,
    KeyLookup,
    KeySetRead,
    NumberPredicate,
    Specialization,
)
from torchjanus.trace.loops.records import LoopSnapshots
from torchjanus.trace.values import Expr, Read, Size, Traced, leaves

__all__ = ["OUTSIDE", "IndexedRead", "Iteration", "Source", "is_decided", "subject_of"]

# ("own", order), ("name", variable), ("outside", path), ("row", unbind, offset), ("indexed", key)
Source = tuple[Any, ...]
OUTSIDE = "outside"


@dataclass(frozen=True, slots=True)
class IndexedRead:
    """``x[:, t]``: an operation that indexes by the iteration index.

    ``position``: which of its integers that is; ``more``: that integer minus the index."""

    op: Op
    position: int
    more: int


@dataclass(slots=True)
class Iteration:
    """One iteration. Its tensors are renumbered: results from 0 on, operands -1, -2, ..."""

    iteration: int
    events: tuple[Any, ...]
    tokens: tuple[Any, ...]
    asked: frozenset[int]  # positions of the predicates among the events
    takes: list[frozenset[Source]]  # possible sources of each operand
    ends: dict[Any, frozenset[Source]]  # possible sources of each variable's final value
    facts: tuple[Any, ...]  # facts it found in the heap
    indexed: dict[Any, IndexedRead]
    last: bool  # whether it is the last iteration
    memory: tuple[int, ...]  # per result, the first result that shares its memory; -1: shared with other tensors
    fetched: dict[Any, Any]
    sizes: int  # number of results
    effects: tuple[ArmEffect, ...]  # calls, appends and writes
    counts: dict[Any, Any]  # possible sources of its number operands
    plain: frozenset[Any]  # number operands that must be loop-invariant
    number_ends: dict[Any, Any]  # possible sources of each number variable's final value
    items: dict[Any, Any]  # the form of what it appends to each of the call's own lists, or None
    shown: dict[Any, Any]  # fetched values by form
    compared: dict[Any, Expr]  # numbers of the host that its predicates compare


def is_decided(frames: LoopSnapshots, trace: Trace, changing: bool = False) -> bool:
    """Whether a tensor predicate or an index predicate occurs in the loop.

    With a constant trip count an index predicate has the same outcomes in all runs. ``changing``: whether the trip
    count differed between runs."""
    if len(frames.starts) > 1 and frames.counting and frames.count is not None:
        if changing or all(map(_is_size, leaves(frames.count))):
            return True
    several = len(frames.starts) > 1 or frames.region
    return several and any(frames.starts[0] <= position < frames.end for position in trace.changed)


def _is_size(leaf: Expr) -> bool:
    return isinstance(leaf, Size) or (isinstance(leaf, Read) and leaf.access_path.step in (Step.SIZE, Step.LEN))


def subject_of(fact: Any) -> Any:
    """Return the subject of a fact, without what the fact states."""
    match fact:
        case HeapRead(access_path=access_path):
            return ("found", access_path.token)
        case KeyLookup(base=base, key=key):
            return ("absent", base.token, key.expr.token if isinstance(key, Traced) else token_of(key))
        case EmptinessTest(access_path=access_path) | KeySetRead(access_path=access_path):
            return (type(fact).__name__, access_path.token)
        case IdentityTest(first=first, second=second):
            return ("same", first.token, second.token)
        case NumberPredicate(expr=expr) | Specialization(expr=expr):
            return (type(fact).__name__, expr.token)
    return fact.token
