"""The small objects that rewritten expressions carry: targets to store to, operands, links of chained comparisons.

Rewritten code makes them and drops them within one expression or one statement; users never get hold of one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import CellType, TracebackType
from typing import Any

from torchjanus.hooks.frames import hide_frames
from torchjanus.hooks.lookup import MISSING, bound_to, on_type
from torchjanus.hooks.semantics import Semantics
from torchjanus.rewrite import Site

__all__ = [
    "AttributeSlot",
    "Carried",
    "CellSlot",
    "Entered",
    "GlobalSlot",
    "ItemSlot",
    "Link",
    "Operand",
    "Unpacked",
    "Updated",
    "holds",
    "special",
]


def special(obj: Any, name: str) -> Any:
    """A special method, looked up as Python does: on the class, past its metaclass; MISSING if there is none."""
    found = on_type(type(obj), name)
    return found if found is MISSING else bound_to(obj, found)


class Updated:
    """What an augmented assignment loaded; ``+=`` (whatever the user's operator is) asks the ``inplace`` hook."""

    __slots__ = ("_at", "_op", "_semantics", "_value")

    def __init__(self, semantics: Semantics, at: Site, op: str, value: Any) -> None:
        self._semantics, self._at, self._op, self._value = semantics, at, op, value

    def __iadd__(self, other: Any) -> Any:
        return self._semantics.inplace(self._at, self._op, self._value, other)


class AttributeSlot:
    """The target ``obj.name``."""

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
    """The target ``obj[key]``."""

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
    """A global variable as one of several targets."""

    __slots__ = ("_at", "_name", "_owner", "_semantics")

    def __init__(self, semantics: Semantics, at: Site, owner: dict[str, Any], name: str) -> None:
        self._semantics, self._at, self._owner, self._name = semantics, at, owner, name

    def _store(self, value: Any) -> None:
        # As STORE_GLOBAL does it, even where the globals are a subclass of dict.
        dict.__setitem__(self._owner, self._name, self._semantics.set_global(self._at, self._owner, self._name, value))

    value = property(None, _store)


class CellSlot:
    """A variable in a closure cell as one of several targets."""

    __slots__ = ("_at", "_cell", "_name", "_semantics")

    def __init__(self, semantics: Semantics, at: Site, cell: CellType, name: str) -> None:
        self._semantics, self._at, self._cell, self._name = semantics, at, cell, name

    def _store(self, value: Any) -> None:
        self._cell.cell_contents = self._semantics.set_cell(self._at, self._cell, self._name, value)

    value = property(None, _store)


class Carried:
    """What a pattern compares with: CPython compiles nothing but attributes there."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


class Operand:
    """An operand of ``and`` or ``or``. Its truth is the ``branch`` hook's answer, asked for once."""

    __slots__ = ("_at", "_known", "_semantics", "value")

    def __init__(self, semantics: Semantics, at: Site, value: Any) -> None:
        self._semantics, self._at, self.value = semantics, at, value
        self._known: bool | None = None

    def __bool__(self) -> bool:
        if self._known is None:
            self._known = self._semantics.branch(self._at, self.value)
        return self._known


# Whether the link that a frame has just made holds, by the frame's id. The frame asks right after making the link, so
# an entry never outlives its frame. A finalizer or signal handler that runs in between has a frame of its own.
_holding: dict[int, bool] = {}


def holds(depth: int) -> bool:
    return _holding.pop(id(sys._getframe(depth)))


class Link:
    """``a < b`` as the beginning of a chained comparison: keeps ``b`` until the rest is evaluated, if it is."""

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
    """A value whose turn to be unpacked has not come: asks the ``unpack`` hook when Python begins to unpack it."""

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
    """A context manager as rewritten code enters it: its exit sees no frames of ours; its value may be unpacked."""

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
