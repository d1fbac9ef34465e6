"""What staged code has changed of ordinary objects: lists, dictionaries, sets, attributes.

An arm of a switch is run although the program may take the other one: its changes are taken back, and merged with
those of the other arm. Knows nothing of graphs.
"""

from __future__ import annotations

import contextlib
import gc
import operator
from collections import deque
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CellType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.semantics.staged.unknown.tensors import is_fake
from torchjanus.semantics.staged.unknown.values import StagedList, StagedValue

__all__ = ["MUTATORS", "Held", "Journal", "changed", "contents_of", "reachable", "restore", "snapshot", "unchanged"]

MUTATORS = frozenset({
    "append", "extend", "insert", "pop", "popleft", "appendleft", "remove", "clear", "sort", "reverse", "update",
    "setdefault", "popitem", "add", "discard", "__setitem__", "__delitem__", "__iadd__", "rotate",
    "intersection_update", "difference_update", "symmetric_difference_update", "extendleft", "move_to_end",
})  # fmt: skip
NOTHING = object()


class Held(tuple[Any, ...]):
    """What a variable held, or an object with what it held: of a journal, not of the program."""


def contents_of(obj: Any) -> Any:
    """Return what an object holds, such that ``restore`` can put it back; None if that is not known."""
    if isinstance(obj, CellType):
        try:
            return Held((obj.cell_contents,))
        except ValueError:
            return ()
    if isinstance(obj, StagedList):
        return obj.ref, obj.type
    if isinstance(obj, list):
        return list(obj)
    if isinstance(obj, dict):
        return dict(obj)
    if isinstance(obj, set):
        return set(obj)
    held = getattr(obj, "__dict__", None)
    return dict(held) if type(held) is dict else None


def restore(obj: Any, contents: Any) -> None:
    """Let the object hold this again."""
    if isinstance(obj, CellType):
        if contents:
            obj.cell_contents = contents[0]
        else:
            del obj.cell_contents
    elif isinstance(obj, StagedList):
        obj.ref, obj.type = contents
    elif isinstance(obj, list):
        obj[:] = contents
    elif isinstance(obj, dict):
        obj.clear()
        obj.update(contents)
    elif isinstance(obj, set):
        obj.clear()
        obj.update(contents)
    else:
        obj.__dict__.clear()
        obj.__dict__.update(contents)


# Of these classes and no other: an object of a subclass has attributes.
_LEAVES = frozenset(map(id, (int, float, bool, str, bytes, complex, type(None))))
_LIBRARIES = frozenset(
    """builtins types collections functools torch abc enum typing torchjanus numpy dataclasses weakref inspect
    contextlib""".split()
)
_NATIVE = (ModuleType, BuiltinFunctionType, torch.Tensor)
MOST = 200_000  # objects that are looked at


def reachable(roots: Iterable[Any]) -> set[int]:
    """Return the ids of the objects that can be reached by attributes, elements and closures."""
    found: set[int] = set()
    waiting = list(roots)
    while waiting and len(found) < MOST:
        one = waiting.pop()
        if id(one) in found or id(type(one)) in _LEAVES or isinstance(one, ModuleType):
            continue
        found.add(id(one))
        if isinstance(one, StagedValue) or is_fake(one):  # behind them is the staging, and all that it knows
            continue
        if isinstance(one, type):
            waiting += (type(one), *vars(one).values(), *one.__mro__) if _is_of_program(one) else ()
            continue
        waiting.append(type(one))
        if isinstance(one, CellType):
            waiting += contents_of(one)
        elif isinstance(one, list | tuple | set | frozenset):
            waiting += one
        elif isinstance(one, dict):
            waiting += one.values()
        else:
            waiting += _behind(one)
        if type(getattr(one, "__dict__", None)) is dict:
            waiting.append(one.__dict__)
    return found


def _is_of_program(cls: type) -> bool:
    return cls.__module__.partition(".")[0] not in _LIBRARIES


def _behind(one: Any) -> Iterable[Any]:
    """Return what a function, a method or an object of native code refers to."""
    if isinstance(one, MethodType):
        return one.__self__, one.__func__
    if isinstance(one, FunctionType):
        return *(one.__closure__ or ()), *(one.__defaults__ or ()), one.__kwdefaults__
    if isinstance(one, classmethod | staticmethod):
        return (one.__func__,)
    return gc.get_referents(one)


def snapshot(roots: Iterable[Any]) -> dict[int, tuple[Any, ...]]:
    """Return what the objects hold that can be reached, and the classes of the program among theirs."""
    found: dict[int, tuple[Any, ...]] = {}
    waiting = list(roots)
    while waiting and len(found) < MOST:
        one = waiting.pop()
        if id(one) in found or id(type(one)) in _LEAVES or isinstance(one, _NATIVE):
            continue
        cls = one if isinstance(one, type) else type(one)
        if cls.__module__.startswith(("torchjanus.", "torch.fx.", "torch._", "sympy.")):
            continue
        if _is_of_program(cls) and id(cls) not in found:
            found[id(cls)] = cls, dict(vars(cls)), type(cls)
            waiting += (*vars(cls).values(), *cls.__mro__)
        if isinstance(one, type):
            continue
        contents = _held(one)
        found[id(one)] = one, contents, type(one)
        if isinstance(contents, dict):
            waiting += contents.values()
        elif contents is not None and not isinstance(contents, str):
            waiting += contents
        waiting += _behind(one)
    return found


def changed(before: dict[int, tuple[Any, ...]]) -> Any:
    """Return an object that holds something else now; None if there is none."""
    for one, contents, cls in before.values():
        if type(one) is not cls:
            return one
        now: Any = dict(vars(one)) if isinstance(one, type) else _held(one)
        if not unchanged(now, contents):
            return one
    return None


def _held(obj: Any) -> Any:
    """Return what an object holds, also one that ``restore`` could not put back; of an iterator its position, as
    text."""
    contents = contents_of(obj)
    if isinstance(obj, deque):
        return (*obj, *(contents or {}).values())
    if contents is None and isinstance(obj, tuple | frozenset):
        return tuple(obj)
    if contents is None and _is_of_program(type(obj)):
        return tuple(_in_slots(obj))
    return _position(obj) if contents is None and hasattr(type(obj), "__next__") else contents


def _in_slots(obj: Any) -> Iterator[Any]:
    for cls in type(obj).__mro__:
        for member in vars(cls).values():
            if type(member) is MemberDescriptorType:
                with contextlib.suppress(AttributeError):  # not set
                    yield member.__get__(obj)


def _position(iterator: Iterator[Any]) -> str:
    """Return what shows that an iterator has been advanced: of generators where they stand, of those of Python's
    containers how much is left, of counters the next number. Methods of the program's own iterators are not called."""
    if type(iterator).__module__ not in ("itertools", "builtins"):
        return ""
    frame = getattr(iterator, "gi_frame", None)
    return str((operator.length_hint(iterator, -1), frame.f_lasti if frame is not None else -1, repr(iterator)))


def unchanged(one: Any, other: Any) -> bool:
    """Whether two contents hold the same objects."""
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(one[key] is other[key] for key in one)
    if isinstance(one, set) and isinstance(other, set):
        return {*map(id, one)} == {*map(id, other)}
    return one is other or (type(one) is str and one == other)


class Journal:
    """The objects that a part of the program has changed, with what they held before."""

    def __init__(self) -> None:
        self.before: dict[int, tuple[Any, ...]] = {}

    def note(self, obj: Any) -> bool:
        """Keep what an object holds that is about to be changed. Return False if it could not be put back."""
        if id(obj) not in self.before:
            contents = contents_of(obj)
            if contents is None:
                return False
            self.before[id(obj)] = Held((obj, contents))
        return True

    def take_back(self) -> dict[int, tuple[Any, Any]]:
        """Put everything back. Return what the objects held in the end."""
        after: dict[int, tuple[Any, Any]] = {
            number: Held((obj, contents_of(obj))) for number, (obj, _) in self.before.items()
        }
        for obj, contents in self.before.values():
            restore(obj, contents)
        others = [number for number, (obj, _) in after.items() if not isinstance(obj, CellType)]
        if others:
            known = reachable(obj for obj, _ in self.before.values() if isinstance(obj, CellType))
            for number in others:
                if number not in known:  # it was made within the part
                    restore(*after.pop(number))
                    del self.before[number]
        return after
