"""The two operators for all calls of a recursive function in a graph, forward and backward (JANUS 4.2.1).

They name what to run by a key and describe their outputs in a text, as the loop operator does (see
``graph.operators.loop_op``). The calls and their order change from run to run and are not part of the graph: before a
graph runs, its caller sets the schedule for its own thread. What the backward needs of the forward is kept with that
schedule.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import WeakValueDictionary

import torch

from torchjanus.core.errors import InternalFault
from torchjanus.graph.operators.loop_op import TAGS, define, shapes_of
from torchjanus.graph.recursion.variants.plan import LevelSchedule

__all__ = [
    "BACKWARD", "FORWARD", "Calls", "ScheduledRun", "is_invoke", "known_calls", "laid_now", "laid_out", "register",
]  # fmt: skip


@dataclass(eq=False, slots=True)
class ScheduledRun:
    """A schedule set for one run of a graph. ``states``: by key, what the forward saved for the backward."""

    forest: LevelSchedule
    states: dict[int, Any] = field(default_factory=dict)


class Calls(Protocol):
    """Runs all calls of a schedule. Both methods return new tensors that alias nothing, not even each other."""

    owner: object  # by which the schedule is found

    def forward(
        self, laid: ScheduledRun, key: int, shared: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the rows that the step takes, stacked, and for each buffer of predicates whether all rows are true."""
        ...

    def backward(
        self,
        laid: ScheduledRun,
        key: int,
        present: str,
        tangents: Sequence[torch.Tensor],
        shared: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Return the gradients. ``present``: for each differentiable result "1" if it has a tangent, else "0"."""
        ...


class _Current(threading.local):
    """The schedules set in this thread, by owner."""

    def __init__(self) -> None:
        self.laid: dict[object, ScheduledRun] = {}


_CURRENT = _Current()
_KEYED: WeakValueDictionary[int, Any] = WeakValueDictionary()


@contextmanager
def laid_out(forests: Mapping[Any, LevelSchedule]) -> Iterator[None]:
    """Return a context in which, for this thread, the calls of these owners are those of these schedules. What the
    forward saved is freed at the end."""
    before = _CURRENT.laid
    _CURRENT.laid = {**before, **{owner: ScheduledRun(forest) for owner, forest in forests.items()}}
    try:
        yield
    finally:
        _CURRENT.laid = before


def laid_now() -> Mapping[Any, LevelSchedule]:
    """Return the schedules set in this thread, as ``laid_out`` takes them."""
    return {owner: laid.forest for owner, laid in _CURRENT.laid.items()}


def register(key: int, calls: Calls) -> None:
    """Let ``key`` name these calls as long as they live."""
    _KEYED[key] = calls


def known_calls(key: int) -> Calls | None:
    """Return the calls that ``key`` names, or None."""
    return _KEYED.get(key)


def is_invoke(target: object) -> bool:
    """Whether a node's target is one of the operators."""
    return target in (FORWARD, BACKWARD)


def _found(key: int) -> tuple[Calls, ScheduledRun]:
    """Return the calls that ``key`` names and the schedule set for them. Raises InternalFault."""
    calls: Calls | None = _KEYED.get(key)
    if calls is None:
        raise InternalFault(f"no runner is registered for recursion {key}")
    laid = _CURRENT.laid.get(calls.owner)
    if laid is None:
        raise InternalFault(f"no forest has been laid out for recursion {key}")
    return calls, laid


_FORWARD = "(int key, str gives, SymInt[] lengths, Tensor[] shared, Tensor[] seeds) -> Tensor[]"
_BACKWARD = "(int key, str gives, str present, Tensor[] tangents, Tensor[] shared, Tensor[] results) -> Tensor[]"


@functools.lru_cache
def _roots(gives: str) -> int:
    """Return the number of entry calls, from the text that describes the outputs."""
    _, stacked, size = gives.partition(";")[0].split("|") if gives else ("", "n", "")
    return int(size.partition(",")[0]) if stacked == "1" else 0


def _forward(key: int, gives: str, lengths: Any, shared: Any, seeds: Any) -> list[torch.Tensor]:
    calls, laid = _found(key)
    roots = _roots(gives)
    results, bounds = laid.forest.results, laid.forest.bounds
    lengths, rows = lengths[: len(lengths) - len(bounds)], lengths[len(lengths) - len(bounds) :]
    by_root, lists = results[: len(results) - len(lengths)], results[len(results) - len(lengths) :]
    if any(len(rows) != roots for rows in by_root) or [len(rows) for rows in lists] != list(lengths):
        raise InternalFault(f"the forest laid out for recursion {key} has not {roots} roots, or other lists")
    if any(bound > there for bound, there in zip(bounds, rows, strict=True)):
        raise IndexError("a recursive call picks a row that is not there")  # eager then raises its own error
    return calls.forward(laid, key, shared, seeds)


def _backward(key: int, gives: str, present: str, tangents: Any, shared: Any, results: Any) -> list[torch.Tensor]:
    # ``results`` is an argument so that no scheduler moves this before the forward.
    calls, laid = _found(key)
    return calls.backward(laid, key, present, tangents, shared)


def _forward_shapes(key: int, gives: str, lengths: Any, shared: Any, seeds: Any) -> list[torch.Tensor]:
    found, left = [], iter(lengths)
    for kind in gives.split(";") if gives else ():
        found += shapes_of(kind, next(left) if "|n|" in kind else 0)
    return found


def _backward_shapes(
    key: int, gives: str, present: str, tangents: Any, shared: Any, results: Any
) -> list[torch.Tensor]:
    return shapes_of(gives, 0)


FORWARD = define("invoke", _FORWARD, _forward, _forward_shapes, TAGS)
BACKWARD = define("invoke_backward", _BACKWARD, _backward, _backward_shapes, TAGS)
