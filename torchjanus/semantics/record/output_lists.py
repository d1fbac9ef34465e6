"""The lists of a step to which recursive calls append: made by the step, empty before the first of them.

The calls see nothing of what is in them. The step sees rows of one tensor, in the order of the program. Knows nothing
of how calls are watched.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import isinstance
from torchjanus.trace.terms import TensorRef

__all__ = ["GrownLists"]


class GrownLists:
    """Of one step. In the calls that one of its own calls leads to, a list is known by its place among those that this
    one was given, so that all such calls are alike; ``places``: where objects hold those of them."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # id(list) -> the index of the step
        self._now: list[list[Any]] = []
        self._held: dict[int, int] = {}  # tensors that calls have put into each, by its number
        self.places: tuple[Any, ...] = ()

    def begin(self, given: Iterable[Any], recording: Any, places: Iterable[Any] = (), root: Any = None) -> None:
        """The step is about to make a call, with these arguments. ``places``, ``root``: see ``Tallies.begin``."""
        self._now = []
        for value in given:
            self._take(value, recording)
        held: list[tuple[Any, ...]] = []
        for container, key, value in recording.own_writes():
            if type(value) is list and self._take(value, recording):
                held.append((id(container), key, self._place(value)))
        for tally in recording.tallies.begin(recording, places, root):
            self._take(tally.terms, recording)
            held.append((tally.key, self._place(tally.terms), tally.tensors))
        self.places = tuple(held)

    def _take(self, value: Any, recording: Any) -> bool:
        if type(value) is not list or recording.owner(value) is not None:
            return False
        number = self._numbers.get(id(value))
        if len(value) != (0 if number is None else self._held[number]):
            return False
        if number is None:
            recording.keep(value)
            self._numbers[id(value)] = len(self._numbers)
            self._held[len(self._numbers) - 1] = 0
        if not any(known is value for known in self._now):
            self._now.append(value)
        return True

    def _place(self, value: Any) -> int:
        return next(place for place, known in enumerate(self._now) if known is value)

    def access_path(self, value: Any) -> AccessPath | None:
        """By what calls know the list, if they may append to it."""
        if type(value) is not list or not any(known is value for known in self._now):
            return None
        return AccessPath.grown(self._place(value))

    def number_of(self, value: Any) -> int:
        """The index of the step the list is."""
        return self._numbers[id(value)]

    def lengths(self) -> list[int]:
        """How long the lists are now."""
        return [len(value) for value in self._now]

    def grown(self, lengths: list[int], recording: Any) -> tuple[tuple[int, tuple[TensorRef, ...]], ...]:
        """What a call has appended to the lists, of which this was the length before it."""
        found = []
        for value, before in zip(self._now, lengths, strict=True):
            number = self._numbers[id(value)]
            refs = []
            for part in value[before:]:
                if isinstance(part, torch.Tensor):
                    known = recording.number(part)
                    refs.append(recording.new_tensor(part) if known is None else TensorRef(known))
            self._held[number] = len(value)
            found.append((number, tuple(refs)))
        return tuple(found)

    def length_of(self, value: Any) -> AccessPath | None:
        """Where the length of a list is found of which calls have appended all that there is."""
        number = self._numbers.get(id(value))
        return None if number is None or self._held[number] != len(value) or not value else AccessPath.grown(number)
