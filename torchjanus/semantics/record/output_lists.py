"""Record the output lists of a step: it makes them empty, and recursive calls append tensors to them.

Calls may not read the lists. The step reads the rows of one tensor, in program order. This module does not watch calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import isinstance
from torchjanus.trace.terms import TensorRef

__all__ = ["OutputLists"]


class OutputLists:
    """The output lists of one step.

    Within calls, a list is identified by its position among the lists of the entry call, so that all entry calls agree.
    ``places``: the places of objects that hold such lists.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # id(list) -> its index in the step
        self._now: list[list[Any]] = []
        self._held: dict[int, int] = {}  # by index: the number of elements that calls have appended
        self.places: tuple[Any, ...] = ()

    def begin(self, given: Iterable[Any], recording: Any, places: Iterable[Any] = (), root: Any = None) -> None:
        """Collect the output lists for a call with these arguments. ``places``, ``root``: see ``Accumulators``."""
        self._now = []
        for value in given:
            self._take(value, recording)
        held: list[tuple[Any, ...]] = []
        for container, key, value in recording.own_writes():
            if type(value) is list and self._take(value, recording):
                held.append((id(container), key, self._place(value)))
        for accumulator in recording.accumulators.begin(recording, places, root):
            self._take(accumulator.terms, recording)
            held.append((accumulator.key, self._place(accumulator.terms), accumulator.tensors))
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
        """Return the access path of a list within calls, None if they may not append to it."""
        if type(value) is not list or not any(known is value for known in self._now):
            return None
        return AccessPath.grown(self._place(value))

    def number_of(self, value: Any) -> int:
        """Return the list's index in the step."""
        return self._numbers[id(value)]

    def lengths(self) -> list[int]:
        """Return the current lengths of the entry call's lists."""
        return [len(value) for value in self._now]

    def grown(self, lengths: list[int], recording: Any) -> tuple[tuple[int, tuple[TensorRef, ...]], ...]:
        """Return, per list, its index and the tensors that a call has appended. ``lengths``: those before the call."""
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
        """Return the access path whose size is the length of the list, if calls have appended all its elements."""
        number = self._numbers.get(id(value))
        return None if number is None or self._held[number] != len(value) or not value else AccessPath.grown(number)
