"""Subscripts by tensors of one integer: ``scores[t, word]``, ``table[action]``, ``text[i : i + 64]``.

Eager fetches the integer and returns a view. A graph cannot fetch it: it gathers the elements by the tensor and has a
copy. Both are the same as long as the program does not keep the view, and neither is changed while the part is in use.
That is checked here, and refused otherwise. An in-place change of the part (``counts[best] += 1``, ``table[state][a] =
v``) is followed by a call that writes the copy back. Knows nothing of how calls are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.known.details import memory_of, version_of
from torchjanus.semantics.record.recording import HELD_NUMBERS, Recording, hold_numbers
from torchjanus.semantics.torch.window_width import width_of
from torchjanus.trace.actions import Op
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, TracedInt, depends_on, plain, trace_value

__all__ = ["DynamicIndexWatch", "picks", "stores"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def _is_dynamic(value: Any) -> bool:
    """Whether it is a tensor of one integer, or an integer that was fetched from a tensor."""
    if isinstance(value, torch.Tensor):
        return value.dim() == 0 and value.dtype in _INTEGERS
    return _is_fetched(value)


def _bounds(part: Any) -> tuple[Any, Any] | None:
    """Return the bounds of a slice between two such integers, else None."""
    if not isinstance(part, slice) or part.step not in (None, 1):
        return None
    return (part.start, part.stop) if _is_dynamic(part.start) and _is_dynamic(part.stop) else None


def _by_numbers(key: Any) -> bool:
    """Whether fetched integers index, and no tensors do."""
    parts = [end for part in (key if type(key) is tuple else (key,)) for end in _bounds(part) or (part,)]
    return any(_is_dynamic(part) for part in parts) and not any(isinstance(part, torch.Tensor) for part in parts)


def _width(tensor: torch.Tensor, dim: int, start: Any, stop: Any) -> int | None:
    """Return the length of the slice; None if it reaches beyond the tensor."""
    with torch._C.DisableTorchFunction():
        first, end, size = int(plain(start)), int(plain(stop)), tensor.size(dim)
    return end - first if 0 <= first <= end <= size else None


def picks(tensor: torch.Tensor, key: Any, place: Place) -> bool:
    """Whether this is a subscript by tensors of one integer, or by slices between them, beside integers and slices.
    ``place``: its location in the program."""
    if place in HELD_NUMBERS and _by_numbers(key):
        return False
    parts = key if type(key) is tuple else (key,)
    known = (_is_dynamic(part) or part is None or part is Ellipsis or isinstance(part, int | slice) for part in parts)
    bare = not any(isinstance(part, bool) for part in parts)
    counted = not tensor.is_inference()  # otherwise changes are not counted
    found = any(_is_dynamic(part) or _bounds(part) is not None for part in parts)
    if not (tensor.dim() > 0 and counted and found and bare and all(known)):
        return False
    slices = [(dim, ends) for dim, part in zip(_dims(tensor, parts), parts, strict=True) if (ends := _bounds(part))]
    if not slices:
        return True
    # Without added or removed dimensions, those of the result are the tensor's.
    simple = all(part is Ellipsis or isinstance(part, slice) for part in parts)
    return simple and all(_width(tensor, dim, *ends) is not None for dim, ends in slices)


def stores(tensor: torch.Tensor, key: Any, value: Any, place: Place) -> bool:
    """Whether this assigns a value that fits to such a subscript, or a fetched number to any other subscript."""
    if isinstance(value, torch.Tensor):
        if not picks(tensor, key, place) or value.device != tensor.device:
            return False
        with torch._C.DisableTorchFunction():
            return _is_one(key) and value.dim() <= tensor[_bare(key)].dim()
    if not isinstance(value, int | float):
        return False
    if picks(tensor, key, place):
        return _is_one(key)
    parts = key if type(key) is tuple else (key,)
    known = all(part is None or part is Ellipsis or isinstance(part, int | slice) for part in parts)
    return known and _is_fetched(value) and place not in HELD_NUMBERS


def _is_fetched(value: Any) -> bool:
    return isinstance(value, TracedInt) and depends_on(value.expr, Fetch)


def _is_one(key: Any) -> bool:
    """Whether the key has exactly one window and no other dynamic index, or only elements."""
    parts = key if type(key) is tuple else (key,)
    windows = sum(_bounds(part) is not None for part in parts)
    return windows == 0 or (windows == 1 and not any(_is_dynamic(part) for part in parts))


def _bare(key: Any) -> Any:
    if type(key) is tuple:
        return tuple(map(_bare, key))
    return slice(*map(plain, (key.start, key.stop, key.step))) if isinstance(key, slice) else plain(key)


def _same(one: Any, other: Any) -> bool:
    """Whether two keys certainly select the same elements."""
    if type(one) is tuple and type(other) is tuple:
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    return bool(_bare(one) == _bare(other))


@dataclass(slots=True)
class _Part:
    """A part that was selected: the view itself, and what shows whether it has been written to since."""

    view: torch.Tensor
    version: int
    place: Place | None  # where a Python integer selected it
    whole: torch.Tensor
    key: Any


class DynamicIndexWatch:
    """The parts selected in one watched run."""

    def __init__(
        self, recording: Recording, framework: Callable[..., Any], really: Callable[..., torch.Tensor]
    ) -> None:
        """``framework`` makes a recorded call; ``really`` makes its first argument and records another call."""
        self._recording = recording
        self._framework = framework
        self._really = really
        self._parts: dict[int, tuple[_Part, torch.Tensor]] = {}  # by id: the parts and views of them
        self._required: list[torch.Tensor] = []  # conditions to assert when the run is in no loop
        self._makers: dict[int, Op] = {}  # operations by the numbers of what they return
        self._looked = 0  # events of the trace that are in ``_makers``

    @property
    def any(self) -> bool:
        """Whether anything has been selected."""
        return bool(self._parts)

    def item(self, tensor: torch.Tensor, key: Any) -> torch.Tensor:
        """Return ``tensor[key]``."""
        parts = [self._of_tensors(part) for part in (key if type(key) is tuple else (key,))]
        found, dims = tensor, _dims(tensor, parts)
        slices = [(dim, ends) for dim, part in zip(dims, parts, strict=True) if (ends := _bounds(part)) is not None]
        if slices:
            return self._part(tensor, key, self._windows(tensor, key, parts, slices))
        rest = tuple(slice(None) if _is_dynamic(part) else part for part in parts)
        if any(part != slice(None) for part in rest):
            found = self._framework(torch.Tensor.__getitem__, found, rest)
        picked = [(dim, part) for dim, part in zip(dims, parts, strict=True) if _is_dynamic(part)]
        for number, (dim, part) in reversed([*enumerate(picked)]):
            row = (*(slice(None),) * dim, self._framework(torch.Tensor.reshape, part, (1,)))
            found = self._framework(torch.Tensor.__getitem__, found, row)
            if number:
                found = self._framework(torch.Tensor.squeeze, found, dim)
        part = self._really(lambda: tensor[key], torch.Tensor.squeeze, found, picked[0][0])
        return self._part(tensor, key, part)

    def store(self, tensor: torch.Tensor, key: Any, value: Any) -> None:
        """Do ``tensor[key] = value``."""

        def assign() -> None:
            tensor[key] = plain(value)

        part = self._parts.get(id(value), (None, None))[0] if isinstance(value, torch.Tensor) else None
        if part is not None and part.view is value and part.whole is tensor and _same(part.key, key):
            # The end of ``tensor[key] += 1``: the part has been written back already and is unchanged.
            with torch._C.DisableTorchFunction():
                assign()
            while part is not None:
                part.version = version_of(part.view)
                part = self._parts.get(id(part.whole), (None, None))[0]
            return
        self._put(tensor, key, value, assign)

    def _put(self, tensor: torch.Tensor, key: Any, value: Any, really: Callable[[], None]) -> None:
        """Do ``really``, and record ``tensor[key] = value``."""
        call = self._framework
        if _is_fetched(value):
            value = call(torch.tensor, value, dtype=tensor.dtype)
        elif isinstance(value, torch.Tensor) and value.dtype != tensor.dtype:
            value = call(torch.Tensor.to, value, tensor.dtype)
        parts = [self._of_tensors(part) for part in (key if type(key) is tuple else (key,))]
        dims = _dims(tensor, parts)
        for number, (dim, part) in enumerate(zip(dims, parts, strict=True)):
            if (ends := _bounds(part)) is not None:
                parts[number] = self._places(tensor, dim, *ends)
            elif _is_dynamic(part):
                parts[number] = call(torch.Tensor.reshape, part, (1,))
        picked = [dim for dim, part in zip(dims, parts, strict=True) if isinstance(part, torch.Tensor)]
        if isinstance(value, torch.Tensor) and not any(_bounds(p) for p in (key if type(key) is tuple else (key,))):
            # Torch puts the dimension of adjacent advanced indices in their place, else first.
            together = picked == list(range(picked[0], picked[0] + len(picked))) if picked else False
            with torch._C.DisableTorchFunction():
                before = tensor[_bare(key)].dim() - value.dim()
            if picked and (place := (picked[0] if together else 0)) > before:
                value = call(torch.Tensor.unsqueeze, value, place - before)
        self._really(really, torch.Tensor.__setitem__, tensor, tuple(parts), value)

    def _of_tensors(self, part: Any) -> Any:
        """Return a part of a key with tensors in place of fetched integers."""
        if _bounds(part) is not None:
            return slice(self._of_tensors(part.start), self._of_tensors(part.stop))
        fetched = isinstance(part, TracedInt) and _is_dynamic(part)
        return self._framework(torch.tensor, part, dtype=torch.int64) if fetched else part

    def _windows(
        self, tensor: torch.Tensor, key: Any, parts: Sequence[Any], slices: Sequence[tuple[int, Any]]
    ) -> torch.Tensor:
        """Return a subscript by slices between tensors, whose lengths and bounds are assumed."""
        call, found = self._framework, tensor
        rest = tuple(slice(None) if _bounds(part) is not None else part for part in parts)
        if any(part != slice(None) and part is not Ellipsis for part in rest):
            found = call(torch.Tensor.__getitem__, found, rest)
        for number, (dim, (start, stop)) in enumerate(slices):
            row = (*(slice(None),) * dim, self._places(tensor, dim, start, stop))
            if number == len(slices) - 1:
                return self._really(lambda: tensor[key], torch.Tensor.__getitem__, found, row)
            found = call(torch.Tensor.__getitem__, found, row)
        raise AssertionError("there is a slice")

    def _places(self, tensor: torch.Tensor, dim: int, start: Any, stop: Any) -> torch.Tensor:
        """Return the indices of a window. Its length is asserted, and that it is within the tensor."""
        call = self._framework
        width = self._expressed(_width(tensor, dim, start, stop), start, stop)
        size = call(torch.Tensor.size, tensor, dim)
        wide = call(torch.Tensor.eq, call(torch.Tensor.sub, stop, start), width)
        within = call(torch.Tensor.logical_and, call(torch.Tensor.ge, start, 0), call(torch.Tensor.le, stop, size))
        self._require(call(torch.Tensor.logical_and, wide, within))
        places = call(torch.Tensor.add, call(torch.Tensor.reshape, start, (1,)), call(torch.arange, width))
        # If the assertion fails, indexing must not raise.
        clamped: torch.Tensor = call(torch.Tensor.clamp, places, 0, size - 1)
        return clamped

    def _require(self, condition: torch.Tensor) -> None:
        """Assert a condition. In a loop, all conditions of its iterations are asserted behind it, as one: the
        iterations are alike, and none of them decides anything."""
        recording = self._recording
        if not self._required:
            recording.behind_loops.append(self._require_all)
        self._required.append(condition)
        recording.note_behind_loops()

    def _require_all(self) -> None:
        conditions, self._required = self._required, []
        call = self._framework
        with torch._C.DisableTorchFunction():  # the mode would record the calls once more
            one = conditions[0] if len(conditions) == 1 else call(torch.all, call(torch.stack, conditions))
        number = self._recording.number(one)
        assert number is not None
        self._recording.require(TensorRef(number))

    def _expressed(self, width: int | None, start: torch.Tensor, stop: torch.Tensor) -> int:
        """Return the width of a window, traced if it is made of numbers of the program."""
        assert width is not None
        low, high = self._recording.number(start), self._recording.number(stop)
        if low is None or high is None:
            return width
        events = self._recording.trace.events
        for event in events[self._looked :]:
            if isinstance(event, Op):
                self._makers.update((ref.number, event) for ref in event.outs)
        self._looked = len(events)
        expr = width_of(low, high, self._makers)
        traced: int = width if expr is None else trace_value(width, expr)
        return traced

    def _part(self, tensor: torch.Tensor, key: Any, result: torch.Tensor) -> torch.Tensor:
        place = self._recording.place if _by_numbers(key) else None
        self._parts[id(result)] = (_Part(result, version_of(result), place, tensor, key), result)
        self._recording.copied[self._recording.number(result)] = place
        return result

    def look(self, taken: Sequence[Any]) -> None:
        """Check the arguments of a call of torch that is about to be made."""
        used = [self._parts[id(one)][0] for one in taken if id(one) in self._parts]
        if changed := [part.place for part in used if version_of(part.view) != part.version]:
            self._refuse(changed)

    def made(self, name: str, taken: Sequence[Any], made: Sequence[Any]) -> None:
        """Follow a call of torch with these arguments and results."""
        used = [self._parts[id(one)] for one in taken if id(one) in self._parts]
        for part, one in used:
            if version_of(part.view) == part.version:
                continue
            if name != "__setitem__" and not any(result is one for result in made):
                self._refuse([part.place])
            elif taken[0] is one or name != "__setitem__":
                self._put_back(part)
        for result in made:
            for part, _ in used:
                if isinstance(result, torch.Tensor) and memory_of(result) == memory_of(part.view):
                    self._parts[id(result)] = (part, result)
                    self._recording.copied[self._recording.number(result)] = part.place

    def _put_back(self, part: _Part) -> None:
        """Write a part that has been changed in place back into the whole. With gradients, the whole's gradient would
        be accumulated differently from eager, down to the signs of zeros."""
        if not _is_one(part.key) or part.view.requires_grad:
            self._refuse([part.place])
            return
        part.version = version_of(part.view)
        self._put(part.whole, part.key, part.view, lambda: None)

    def _refuse(self, places: Sequence[Place | None]) -> None:
        hold_numbers(places)
        self._recording.refuse(
            "index-view",
            "a part of a tensor, picked by a tensor, is used when one of the two has been changed in place",
            "a graph looks the part up, and has a copy.",
            "Use the part before the change, or clone it.",
        )


def _dims(tensor: torch.Tensor, parts: Sequence[Any]) -> list[int]:
    """Return the result's dimension for each part of a key, as if tensors of one integer were slices."""
    taken = sum(part is not None and part is not Ellipsis for part in parts)
    found, dim = [], 0
    for part in parts:
        found.append(dim)
        if part is Ellipsis:
            dim += tensor.dim() - taken
        elif not isinstance(part, int):
            dim += 1
    return found
