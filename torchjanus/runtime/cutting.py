"""Where runs part in the first statements of a function, and no backward pass of those is to come: they are left to
Python, which makes them in each call, and what follows them is speculated on (Terra's co-execution, for a prefix).

A batch that Python draws, filters and puts together is of this kind: lists of changing lengths, flags and ``None`` in
samples. Knows nothing of when that is worth it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.errors import NOWHERE, Place, Refusal, Unsupported
from torchjanus.rewrite import Span, cut, spans_of
from torchjanus.semantics.trusted import is_installed, is_trusted_module
from torchjanus.semantics.virtualize import underlying
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.terms import TensorRef

__all__ = ["Cut"]

MOST = 5  # times that one function is cut, each time further down


@dataclass(frozen=True, slots=True)
class Cut:
    """``first`` takes what the function takes, and returns what ``rest`` takes. ``count``: statements in the first."""

    first: Callable[..., tuple[Any, ...]]
    rest: Callable[..., Any]
    count: int
    times: int
    told: str
    place: Place

    @staticmethod
    def between(fn: Callable[..., Any], traces: Sequence[Trace], known: Cut | None) -> Cut | None:
        """Where the last runs part, or where the last one cannot be speculated on, if the function can be cut behind
        that. ``traces``: of it, or of what the cut that is ``known`` has left of it."""
        try:
            target, leading = underlying(fn)
        except Unsupported:
            return None
        file = target.__code__.co_filename
        if len(leading) > 1 or is_trusted_module(target.__module__) or is_installed(file):
            return None
        spans = spans_of(target)
        met = [found for pair in pairwise(traces) if (found := _parting(*pair, file, spans)) is not None]
        met += [found for refusal in traces[-1].refusals if (found := _refused(refusal, file, spans)) is not None]
        if not met or (known is not None and known.times >= MOST):
            return None
        last, why, place = max(met, key=lambda found: found[0])
        if known is not None and last < known.count:
            return None
        if any(_trains(one, file, spans, last) for one in traces):
            return None
        if any(refusal.of_lifetimes for one in traces for refusal in one.refusals):
            return None  # what the rest takes lives until the call is over
        parts = cut(target, last + 1, len(leading))
        if parts is None:
            return None
        first, rest = parts if not leading else (types.MethodType(part, leading[0]) for part in parts)
        told = f"{why}. What comes up to line {spans[last][1][0]} is Python's in each call; the rest is speculated on"
        return Cut(first, rest, last + 1, 1 if known is None else known.times + 1, told, place)


def _refused(refusal: Refusal, file: str, spans: Sequence[Span]) -> tuple[int, str, Place] | None:
    """In which statement something stands that cannot be speculated on."""
    for place in (refusal.place, refusal.caller):
        if place.file == file and (number := _statement(place, spans)) is not None:
            return number, f"{refusal.what}: {refusal.why}".rstrip("."), place
    return None


def _parting(one: Trace, other: Trace, file: str, spans: Sequence[Span]) -> tuple[int, str, Place] | None:
    """In which statement two runs part, and at what."""
    for (_, before), (number, event) in zip(_placed(one, file, spans), _placed(other, file, spans), strict=False):
        if before.token != event.token:
            return None if number < 0 else (number, f"most runs part here: {before} / {event}", event.place)
    return None


def _placed(trace: Trace, file: str, spans: Sequence[Span]) -> Iterator[tuple[int, Any]]:
    """Each event of a run, with the statement of the function's body in which it comes."""
    number = -1
    for event in trace.events:
        place = getattr(event, "place", NOWHERE)
        if place.file == file:
            found = _statement(place, spans)
            number = number if found is None else found
        yield number, event


def _statement(place: Place, spans: Sequence[Span]) -> int | None:
    at = place.line, place.column
    return next((number for number, (low, high) in enumerate(spans) if low <= at <= high), None)


def _trains(trace: Trace, file: str, spans: Sequence[Span], last: int) -> bool:
    """Whether these statements have to do with what a backward pass is to come of."""
    for number, event in _placed(trace, file, spans):
        if number > last:
            return False
        if isinstance(event, Op) and event.modes.grad:
            refs = (ref for ref in pytree.tree_leaves((event.args, event.kwargs)) if isinstance(ref, TensorRef))
            given = [trace.tensors[ref.number] for ref in refs]
            if any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in given):
                return True
    return False
