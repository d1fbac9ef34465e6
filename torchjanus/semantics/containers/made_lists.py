"""How long lists are to which each iteration of a loop has added one element: as long as the loop has iterations.

Seen in their elements, when the program asks: however they came into the list (``append``, a comprehension, ``[1:]``),
there is one of each iteration, in order. What cuts off a list by a number that may be larger than its length is noted
elsewhere. Knows what a run has recorded, not hooks.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.recording import Recording
from torchjanus.trace.loop_records import KEPT, LoopInstance, Until
from torchjanus.trace.values import Expr, Fetch, Traced, leaves, plus

__all__ = ["length_of"]

MOST = 100_000  # elements
MISSING = 3  # elements that are looked for at either end


def length_of(recording: Recording, parted: Iterable[tuple[Any, Any]], container: Any) -> Expr | None:
    """The length of a list that the run has made, by the number of iterations of a loop that has come to its end, or by
    how many parts a tensor was ``parted`` into; None where it is not known. There may be more elements before those,
    and behind them, and some of the first or last may be missing."""
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
    made = [_made_at(recording, part) for part in container] if recording.trace.iterations else []
    for iterations in reversed(recording.trace.iterations):
        if isinstance(iterations.count, Until) or len(iterations.starts) < KEPT:
            continue
        more = _more([_iteration_of(iterations, at) for at in made], len(iterations.starts))
        if more is not None:
            return plus(iterations.count, more)
    return None


def _made_at(recording: Recording, part: Any) -> int:
    """How many events there were when it was made, or the tensor from which it was fetched; -1 where it was not."""
    if isinstance(part, Traced):
        found = [leaf for leaf in leaves(part.expr) if isinstance(leaf, Fetch)]
        number = found[0].ref if len(found) == 1 else None
    else:
        number = recording.number(part) if isinstance(part, torch.Tensor) else None
    return -1 if number is None or number in recording.trace.access_paths else recording.made_at[number]


def _iteration_of(iterations: LoopInstance, position: int) -> int:
    if not iterations.starts[0] <= position < iterations.end:
        return -1
    return bisect.bisect_right(iterations.starts, position) - 1


def _more(indices: Sequence[int], count: int) -> int | None:
    """How many more elements there are than iterations, if they are one of each, but for a few of the first or last:
    first to last or last to first, and nothing between them."""
    first = next((at for at, iteration in enumerate(indices) if iteration >= 0), len(indices))
    inside = [iteration for iteration in indices if iteration >= 0]
    if len(inside) < KEPT or any(iteration < 0 for iteration in indices[first : first + len(inside)]):
        return None
    step = 1 if inside[1] > inside[0] else -1
    if inside != list(range(inside[0], inside[0] + step * len(inside), step)) or count - len(inside) > MISSING:
        return None
    return len(indices) - count
