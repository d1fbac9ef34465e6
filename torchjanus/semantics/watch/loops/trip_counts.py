"""Trip counts of loops over ranges of traced numbers, sequences, tensors, and iterators that pass these on.

In: native calls (``range``, ``reversed``, ``pairwise``) and their results. Out: the trip count of an iterable, as an
expression over the inputs of the step, or None if other trip counts are not followed.
"""

from __future__ import annotations

import linecache
import operator
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchjanus.core.access_path import Step
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.watch.loops.iteration_values import is_by_steps, is_from
from torchjanus.semantics.watch.loops.untraced import are_alike
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.values import Apply, Expr, Read, Traced, trace_value

__all__ = ["TripCounts", "count_of_range"]

_OVER_RANGE = re.compile(r"\bin\s+(reversed\s*\(\s*)?range\s*\(")
_BACKWARDS = slice(None, None, -1)


def count_of_range(bounds: tuple[Any, ...]) -> Expr | None:
    """Return how many elements ``range(*bounds)`` has, if a traced number decides that in a way that is followed."""
    if isinstance(bounds[-1], Traced) and is_from(bounds[:-1]):
        end = bounds[-1].expr
        return end if not bounds[:-1] or not bounds[0] else Apply(operator.sub, (end, bounds[0]))
    if is_by_steps(bounds):
        upwards = Apply(operator.add, (bounds[1].expr, bounds[2] - 1))
        return Apply(operator.floordiv, (upwards, bounds[2]))
    if isinstance(bounds[0], Traced) and bounds[1:] in ((-1, -1), (0, -1)):
        begin: Expr = bounds[0].expr
        return begin if bounds[1] == 0 else Apply(operator.add, (begin, 1))
    return None


class TripCounts(Part):
    """What is known of the trip counts of iterables."""

    def __init__(self, state: WatchState) -> None:
        super().__init__(state)
        # By id of a range or reversed iterable: it, its trip count, and the range of the induction variable.
        self._ranges: dict[int, tuple[Any, Expr, range | None]] = {}
        self._passing_iterators: dict[int, int] = {}  # by id of an iterator over a list of the run: its trip count

    def span(self, over: Any) -> range | None:
        """Return the range of the induction variable of a loop over ``over``."""
        known = self._ranges.get(id(over))
        return over if type(over) is range else None if known is None else known[2]

    def note_range(self, made: range, count: Expr) -> None:
        """Record the trip count of a range."""
        self._ranges[id(made)] = (made, count, made)

    def count(self, at: Site, over: Any) -> Expr | None:
        """Return the trip count of a loop over ``over`` as an expression, or None."""
        known: tuple[Any, Expr, range | None] | None = self._ranges.get(id(over))
        if type(over) is range or (known is not None and known[2] is not None):
            direct = at is not None and _OVER_RANGE.search(linecache.getline(at.file, at.line))
            return known[1] if known is not None and direct else None
        if known is not None:
            return known[1]
        if is_one_of(type(over), (list, tuple)):
            if (parts := self.framework.sizes.count(over)) is not None:
                return parts
            listed = self.recording.owner(over)
            unwritten = are_alike(over) and listed is not None and not any(map(self.recording.is_written, _held(over)))
            return Read(listed.then(Step.LEN)) if unwritten and listed is not None else None
        if isinstance(over, torch.Tensor):
            return self.framework.sizes.count(over)
        return None

    def pinned(self, over: Any, count: Expr | None) -> Expr | None:
        """Return ``count``. For a list of the run's own, specialise on it until the loop is merged."""
        own = is_one_of(type(over), (list, tuple)) and self.recording.owner(over) is None
        iterations = len(over) if own else self._passing_iterators.get(id(over))
        if count is not None and iterations is not None:
            self.recording.pin(trace_value(iterations, count), "the length decides how often a loop iterates")
        return count

    def note_passing(self, over: Any, result: Any, less: int = 0) -> None:
        """Record the trip count of ``reversed(over)``, or of ``pairwise(over)`` (one ``less``)."""
        known = self._ranges.get(id(over))
        if known is not None and known[2] is not None and not less:
            self._ranges[id(result)] = (result, known[1], over[::-1])
        elif (
            known is None
            and is_one_of(type(over), (tuple, list))
            and (count := self.framework.sizes.count(over)) is not None
        ):
            iterations = Apply(operator.sub, (count, less)) if less else count
            self._ranges[id(result)] = (result, iterations, None)
            self._passing_iterators[id(result)] = len(over) - less

    def note_item(self, obj: Any, key: Any, found: Any) -> None:
        """Record the trip count of a tuple that was read backwards."""
        if type(obj) is tuple and type(key) is slice and key == _BACKWARDS:
            self.note_passing(obj, found)


def _held(over: Sequence[Any]) -> Iterator[Any]:
    """Yield the list and its elements that are containers."""
    yield over
    yield from (one for one in over if is_one_of(type(one), (list, dict)))
