"""Derive the length of a list with one element per iteration of a loop from the trip count of the loop.

The elements themselves are examined, however they came into the list (``append``, a comprehension, ``[1:]``): there is
one of each iteration, in order. Truncation by a number that may exceed the length is recorded elsewhere.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.loops.records import KEPT, LoopInstance, TensorTermination
from torchjanus.trace.values import Expr, Fetch, Traced, leaves, plus

__all__ = ["length_of"]

MOST = 100_000  # limit on the elements
MISSING = 3  # limit on the iterations without an element


def length_of(recording: Recording, parted: Iterable[tuple[Any, Any]], container: Any) -> Expr | None:
    """Return the length of a new list as an expression: of the trip count of a loop that has ended, or of the number of
    parts into which a tensor was ``parted``; None if unknown. There may be further elements before and after, and a
    few of the first or last iterations may be missing."""
    if not is_one_of(type(container), (list, tuple)) or not KEPT <= len(container) <= MOST:
        return None
    if recording.owner(container) is not None:
        return None
    for parts, size in parted:
        if isinstance(size, Traced) and len(parts) >= KEPT:
            places = {id(part): place for place, part in enumerate(parts)}
            more = _more([places.get(id(part), -1) for part in container], len(parts))
            if more is not None:
                return plus(size.expr, more)
    made = [_made_at(recording, part) for part in container] if recording.trace.loop_instances else []
    for instance in reversed(recording.trace.loop_instances):
        if isinstance(instance.count, TensorTermination) or len(instance.starts) < KEPT:
            continue
        more = _more([_iteration_of(instance, at) for at in made], len(instance.starts))
        if more is not None:
            return plus(instance.count, more)
    return None


def _made_at(recording: Recording, part: Any) -> int:
    """Return the number of events before a tensor, or before the tensor of a fetched number; -1 for anything else."""
    if isinstance(part, Traced):
        found = [leaf for leaf in leaves(part.expr) if isinstance(leaf, Fetch)]
        number = found[0].ref if len(found) == 1 else None
    else:
        number = recording.number(part) if isinstance(part, torch.Tensor) else None
    return -1 if number is None or number in recording.trace.access_paths else recording.made_at[number]


def _iteration_of(instance: LoopInstance, position: int) -> int:
    if not instance.starts[0] <= position < instance.end:
        return -1
    return bisect.bisect_right(instance.starts, position) - 1


def _more(indices: Sequence[int], count: int) -> int | None:
    """Return the number of elements minus ``count``, if consecutive elements belong to consecutive iterations, in
    either direction, with at most ``MISSING`` iterations left out; else None."""
    first = next((at for at, iteration in enumerate(indices) if iteration >= 0), len(indices))
    inside = [iteration for iteration in indices if iteration >= 0]
    if len(inside) < KEPT or any(iteration < 0 for iteration in indices[first : first + len(inside)]):
        return None
    step = 1 if inside[1] > inside[0] else -1
    if inside != list(range(inside[0], inside[0] + step * len(inside), step)) or count - len(inside) > MISSING:
        return None
    return len(indices) - count
