"""Objects that rewritten expressions use: targets of stores, operands, links of chained comparisons.

Rewritten code makes and drops them within one expression or one statement. The program never holds one.
"""

from __future__ import annotations

import sys
from builtins import iter  # a program may rebind builtins.iter
from collections.abc import Iterator
from types import CellType, TracebackType
from typing import Any

from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.frames import hide_frames
from torchjanus.rewrite.hooks.lookup import MISSING, bound_to, on_type
from torchjanus.rewrite.hooks.semantics import Semantics

__all__ = [
    "AttributeSlot", "CellSlot", "Entered", "GlobalSlot", "ItemSlot", "Link", "Operand", "PatternValue", "Unpacked",
    "Updated", "holds", "special",
]  # fmt: skip


def special(obj: Any, name: str) -> Any:
    """Return a bound special method, looked up on the class as Python does; MISSING if there is none."""
    found = on_type(type(obj), name)
    return found if found is MISSING else bound_to(obj, found)


class Updated:
    """The value that an augmented assignment loaded. Its ``+=`` asks the ``inplace`` hook for the user's operator."""

    __slots__ = ("_at", "_op", "_semantics", "_value")

    def __init__(self, semantics: Semantics, at: Site, op: str, value: Any) -> None:
        self._semantics, self._at, self._op, self._value = semantics, at, op, value

    def __iadd__(self, other: Any) -> Any:
        return self._semantics.inplace(self._at, self._op, self._value, other)


class AttributeSlot:
    """The target ``obj.name`` of an assignment, augmented assignment or deletion."""

    __slots__ = ("_at", "_name", "_obj", "_op", "_semantics")

    def __init__(self, semantics: Semantics, at: Site, obj: Any, name: str, op: str = "") -> None:
        self._semantics, self._at, self._obj, self._name, self._op = semantics, at, obj, name, op

    @property
    def value(self) -> Updated:
        loaded = self._semantics.attr(self._at, self._obj, self._name)
        return Updated(self._semantics, self._at, self._op, loaded)

    @value.setter
    def value(self, value: Any) -> None:
        self._semantics.set_attr(self._at, self._obj, self._name, value)

    @value.deleter
    def value(self) -> None:
        self._semantics.del_attr(self._at, self._obj, self._name)


class ItemSlot:
    """The target ``obj[key]`` of an assignment, augmented assignment or deletion."""

    __slots__ = ("_at", "_key", "_obj", "_op", "_semantics")

    def __init__(self, semantics: Semantics, at: Site, obj: Any, key: Any, op: str = "") -> None:
        self._semantics, self._at, self._obj, self._key, self._op = semantics, at, obj, key, op

    @property
    def value(self) -> Updated:
        loaded = self._semantics.item(self._at, self._obj, self._key)
        return Updated(self._semantics, self._at, self._op, loaded)

    @value.setter
    def value(self, value: Any) -> None:
        self._semantics.set_item(self._at, self._obj, self._key, value)

    @value.deleter
    def value(self) -> None:
        self._semantics.del_item(self._at, self._obj, self._key)


class GlobalSlot:
    """A global variable as one of several targets of an assignment."""

    __slots__ = ("_at", "_name", "_owner", "_semantics")

    def __init__(self, semantics: Semantics, at: Site, owner: dict[str, Any], name: str) -> None:
        self._semantics, self._at, self._owner, self._name = semantics, at, owner, name

    def _store(self, value: Any) -> None:
        # As STORE_GLOBAL does, even where the globals are a subclass of dict.
        dict.__setitem__(self._owner, self._name, self._semantics.set_global(self._at, self._owner, self._name, value))

    value = property(None, _store)


class CellSlot:
    """A variable in a closure cell as one of several targets of an assignment."""

    __slots__ = ("_at", "_cell", "_name", "_semantics")

    def __init__(self, semantics: Semantics, at: Site, cell: CellType, name: str) -> None:
        self._semantics, self._at, self._cell, self._name = semantics, at, cell, name

    def _store(self, value: Any) -> None:
        self._cell.cell_contents = self._semantics.set_cell(self._at, self._cell, self._name, value)

    value = property(None, _store)


class PatternValue:
    """Holds a value with which a pattern compares: a value pattern has to be a dotted name."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Operand:
    """An operand of ``and`` or ``or``. Its truth is the answer of the ``branch`` hook, which is asked once."""

    __slots__ = ("_at", "_known", "_semantics", "value")

    def __init__(self, semantics: Semantics, at: Site, value: Any) -> None:
        self._semantics, self._at, self.value = semantics, at, value
        self._known: bool | None = None

    def __bool__(self) -> bool:
        if self._known is None:
            self._known = self._semantics.branch(self._at, self.value)
        return self._known


# Whether the link that a frame has just made holds, by the frame's id. The frame asks right after it makes the link, so
# an entry never outlives its frame. A finalizer or signal handler that runs in between has its own frame.
_holding: dict[int, bool] = {}


def holds(depth: int) -> bool:
    return _holding.pop(id(sys._getframe(depth)))


class Link:
    """``a < b`` at the start of a chained comparison. Keeps ``b`` until the rest is evaluated, if it is."""

    __slots__ = ("_holds", "_right", "_semantics", "_sites", "_value")

    def __init__(
        self, semantics: Semantics, sites: tuple[Site, ...], n: int, op: str, a: Any, b: Any, depth: int
    ) -> None:
        self._semantics, self._sites = semantics, sites
        self._link(n, op, a, b, depth + 1)

    def _link(self, n: int, op: str, a: Any, b: Any, depth: int) -> None:
        self._right = b
        self._value = self._semantics.compare(self._sites[n], op, a, b)
        self._holds = self._semantics.branch(self._sites[n], self._value)
        _holding[id(sys._getframe(depth + 1))] = self._holds

    def then(self, n: int, op: str, b: Any) -> Link:
        if self._holds:
            self._link(n, op, self._right, b, 1)
        else:
            _holding[id(sys._getframe(1))] = False
        return self

    def value(self, n: int, op: str, b: Any) -> Any:
        return self._semantics.compare(self._sites[n], op, self._right, b) if self._holds else self._value

    def decide(self, n: int, op: str, b: Any, branch: int) -> bool:
        if not self._holds:
            return False
        return self._semantics.branch(self._sites[branch], self._semantics.compare(self._sites[n], op, self._right, b))


class Unpacked:
    """A value that is unpacked later. It asks the ``unpack`` hook when Python begins to unpack it."""

    __slots__ = ("_described", "_semantics", "_sites", "_value")

    def __init__(self, semantics: Semantics, sites: tuple[Site, ...], described: tuple[Any, ...], value: Any) -> None:
        self._semantics, self._sites, self._described, self._value = semantics, sites, described, value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.take())

    def take(self) -> tuple[Any, ...]:
        n, before, star, after, nested = self._described
        taken = self._semantics.unpack(self._sites[n], self._value, before, star, after)
        if nested is None:
            return taken
        return tuple(
            value if further is None else Unpacked(self._semantics, self._sites, further, value)
            for value, further in zip(taken, nested, strict=True)
        )


class Entered:
    """A context manager that rewritten code enters. Its exit sees no frames of torchjanus."""

    __slots__ = ("_described", "_enter", "_exit", "_semantics", "_sites")

    def __init__(
        self, semantics: Semantics, sites: tuple[Site, ...], described: tuple[Any, ...] | None, manager: Any
    ) -> None:
        self._semantics, self._sites, self._described = semantics, sites, described
        self._enter, self._exit = special(manager, "__enter__"), special(manager, "__exit__")

    @property
    def complete(self) -> bool:
        return self._enter is not MISSING and self._exit is not MISSING

    def __enter__(self) -> Any:
        value = self._enter()
        return value if self._described is None else Unpacked(self._semantics, self._sites, self._described, value)

    def __exit__(
        self, kind: type[BaseException] | None, exception: BaseException | None, traceback: TracebackType | None
    ) -> Any:
        if exception is not None:
            hide_frames(exception)
            traceback = exception.__traceback__
        return self._exit(kind, exception, traceback)
