"""Replaces traced values by plain numbers and texts in what native code is given, at any depth, during a call.

Objects that the step has made may hold traced values, which are instances of subclasses of ``int``, ``float`` and
``str``. Code that tests the exact class, such as ``pickle``, would notice. The values are replaced in place, so that
native code sees the same objects, and are put back afterwards.
"""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import native_class
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.containers.parts import slots_of
from torchjanus.semantics.containers.suspended import settle_variables
from torchjanus.semantics.known.foreign import is_foreign_object
from torchjanus.semantics.record.recording import CONSTANT_TYPES, Recording
from torchjanus.trace.values import Traced, plain

__all__ = ["ARGS", "PlainParts"]

ARGS: Any = vars(BaseException)["args"]  # access that bypasses methods of the error's class

_WITHOUT_PARTS = (type, types.ModuleType, types.FunctionType, enum.Enum, torch.Tensor)
_METHODS = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
_NUMBERS: tuple[type, ...] = (int, float, *CONSTANT_TYPES)
_SEEN = 1000  # at most so many objects and elements from before the call are searched


class PlainParts:
    """The arguments of one call of native code, without traced values."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._seen: dict[int, Any] = {}  # by id: visits each object once, and keeps it alive
        self._back: list[Callable[[], None]] = []
        self._old = 0  # the number of unchanged objects from before the call that were visited
        self._tuples: dict[int, Any] = {}  # the program's tuple, by the id of its replacement

    def of(self, value: Any) -> Any:
        """Return the value as the unwatched program would pass it."""
        given = self._one(value)
        pending = [value]
        while pending:
            part = pending.pop()
            if is_one_of(type(part), _NUMBERS) or id(part) in self._seen or isinstance(part, (Traced, *_WITHOUT_PARTS)):
                continue
            self._seen[id(part)] = part
            if self._recording.owner(part) is not None and not self._recording.is_written(part):
                below = native_class(type(part)) if isinstance(part, list | dict | set | collections.deque) else None
                self._old += 1 + (0 if below is None else below.__len__(part))
                if self._old > _SEEN:
                    continue
            suspended = (types.CoroutineType, types.GeneratorType) if self._recording.lost else types.CoroutineType
            if isinstance(part, suspended):
                settle_variables(part, self._kept)  # for good: no graph is made of a run that gives it to native code
            elif not is_foreign_object(part, True):
                pending.extend(self._exchanged(part))
        return given

    def all_of(self, values: Iterable[Any]) -> None:
        """Replace traced values in these objects for good."""
        for value in values:
            self.of(value)

    def new_objects(self) -> Iterator[Any]:
        """Yield the objects of the step's own making that native code was given, at any depth."""
        return (part for part in self._seen.values() if self._recording.owner(part) is None)

    def put_back(self, result: Any = None) -> Any:
        """Restore values where native code has left the replacements. Return the program's object for ``result``."""
        for back in reversed(self._back) if not self._recording.ending else ():  # else objects are settled already
            back()
        self._back.clear()
        return self._tuples.get(id(result), result)

    def _kept(self, value: Any) -> Any:
        self.of(value)
        return self._one(value)

    def _one(self, value: Any) -> Any:
        if isinstance(value, Traced):
            return plain(value)
        if isinstance(value, tuple | slice):
            bare = self._recording.bare(value)
            if bare is not value:
                self._tuples[id(bare)] = value
            return bare
        return value

    def _exchanged(self, value: Any) -> list[Any]:
        """Replace traced values in the object. Return what it holds."""
        held: list[Any] = []
        if isinstance(value, tuple | frozenset):
            return list(value)
        if isinstance(value, dict):
            held += self._of_dict(value)
        elif isinstance(value, list | collections.deque):
            held += self._of_sequence(value)
        elif isinstance(value, set):
            held += self._of_set(value)
        elif isinstance(value, BaseException):
            held += self._of_error(value)
        elif type(value) is functools.partial:
            held += self._of_partial(value)
        elif isinstance(value, _METHODS):
            held.append(value.__self__)
        attributes = attributes_of(value)
        if type(attributes) is dict:
            held += self._of_dict(attributes)
        for slot in slots_of(type(value)):
            held += self._of_slot(slot, value)
        return held

    def _of_dict(self, value: dict[Any, Any]) -> list[Any]:
        items = list(dict.items(value))
        bare = [(self._one(key), self._one(part)) for key, part in items]
        if any(new[0] is not old[0] for new, old in zip(bare, items, strict=True)):
            _refill(value, bare)
            self._back.append(lambda: _refill(value, items) if _holds(dict.items(value), bare) else None)
        else:
            for (key, new), (_, old) in zip(bare, items, strict=True):
                if new is not old:
                    dict.__setitem__(value, key, new)
                    self._back.append(lambda key=key, new=new, old=old: _put(value, key, new, old))  # type: ignore[misc]
        return [part for item in items for part in item]

    def _of_sequence(self, value: Any) -> list[Any]:
        native = native_class(type(value))
        items = list(native.__iter__(value))
        bare = list(map(self._one, items))
        if any(new is not old for new, old in zip(bare, items, strict=True)):
            for place, new in enumerate(bare):
                native.__setitem__(value, place, new)

            def back() -> None:
                now = list(native.__iter__(value))
                if len(now) == len(bare) and all(one is new for one, new in zip(now, bare, strict=True)):
                    for place, old in enumerate(items):
                        native.__setitem__(value, place, old)

            self._back.append(back)
        return items

    def _of_set(self, value: set[Any]) -> list[Any]:
        items = list(set.__iter__(value))
        bare = list(map(self._one, items))
        if any(new is not old for new, old in zip(bare, items, strict=True)):
            set.clear(value)
            set.update(value, bare)
        return items

    def _of_error(self, value: BaseException) -> list[Any]:
        old = ARGS.__get__(value)
        new = self._one(old)
        if new is not old:
            ARGS.__set__(value, new)
            self._back.append(lambda: ARGS.__set__(value, old) if ARGS.__get__(value) is new else None)
        return [old, value.__cause__, value.__context__]

    def _of_partial(self, value: functools.partial[Any]) -> list[Any]:
        old = value.args, dict(value.keywords)
        new = self._one(old[0]), {name: self._one(part) for name, part in old[1].items()}
        if new[0] is not old[0] or any(part is not old[1][name] for name, part in new[1].items()):
            value.__setstate__((value.func, *new, attributes_of(value)))  # type: ignore[attr-defined]
            self._back.append(lambda: value.__setstate__((value.func, *old, attributes_of(value))))  # type: ignore[attr-defined]
        return [value.func, old]

    def _of_slot(self, slot: types.MemberDescriptorType, value: Any) -> list[Any]:
        try:
            old = slot.__get__(value, type(value))
        except AttributeError:
            return []  # the slot is empty
        new = self._one(old)
        if new is not old:
            slot.__set__(value, new)
            self._back.append(lambda: slot.__set__(value, old) if slot.__get__(value, type(value)) is new else None)
        return [old]


def _refill(value: dict[Any, Any], items: list[tuple[Any, Any]]) -> None:
    dict.clear(value)
    for key, part in items:
        dict.__setitem__(value, key, part)


def _holds(items: Any, bare: list[tuple[Any, Any]]) -> bool:
    now = list(items)
    same = (a is c and b is d for (a, b), (c, d) in zip(now, bare, strict=False))
    return len(now) == len(bare) and all(same)


def _put(value: dict[Any, Any], key: Any, new: Any, old: Any) -> None:
    if dict.get(value, key) is new:
        dict.__setitem__(value, key, old)
