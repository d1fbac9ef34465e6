"""Views of the subject of a ``match`` statement, through which its patterns ask the hooks of a semantics.

CPython matches natively, in its own order: it asks the view for its class, length, items, attributes and equality. The
view asks the hooks for ``type``, ``len``, ``[]``, ``.`` and ``==``. The parts of a view are views. ``opened`` replaces
a view by its value before the program reads a name that a pattern has bound.
"""

from __future__ import annotations

from builtins import iter  # a program may rebind builtins.iter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.lookup import mro_of
from torchjanus.rewrite.hooks.semantics import Semantics

__all__ = ["Compared", "opened", "viewed"]

# CPython's type flags for values that sequence patterns and mapping patterns match.
_SEQUENCE, _MAPPING = 1 << 5, 1 << 6


class View:
    """Represents a value while patterns look at it."""

    __slots__ = ("_at", "_semantics", "_value")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, semantics: Semantics, at: Site, value: Any) -> None:
        _set_semantics(self, semantics)
        _set_at(self, at)
        _set_value(self, value)

    def __getattribute__(self, name: str) -> Any:
        semantics, at, value = _semantics(self), _at(self), _value(self)
        if name == "__class__":
            return semantics.call(at, type, (value,), {})
        return viewed(semantics, at, semantics.attr(at, value, name))

    def __eq__(self, other: object) -> bool:
        semantics, at = _semantics(self), _at(self)
        return semantics.branch(at, semantics.compare(at, "==", _value(self), opened(other)))


class Compared(View):
    """A value with which a pattern compares the subject. The subject is on the left and need not be a view."""

    __slots__ = ()
    __hash__ = None

    def __eq__(self, other: object) -> bool:
        semantics, at = _semantics(self), _at(self)
        return semantics.branch(at, semantics.compare(at, "==", opened(other), _value(self)))


class SequenceView(View, Sequence[Any]):
    """A view of a value that sequence patterns match."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return _length(self)

    def __getitem__(self, place: Any) -> Any:
        return _part(self, place)

    def __iter__(self) -> Iterator[Any]:
        return (_part(self, place) for place in range(_length(self)))


class MappingView(View, Mapping[Any, Any]):
    """A view of a value that mapping patterns match."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        # The interpreter reads items, and the rest of a mapping, by these methods.
        return object.__getattribute__(self, name) if name in ("get", "keys") else View.__getattribute__(self, name)

    def __len__(self) -> int:
        return _length(self)

    def __iter__(self) -> Iterator[Any]:
        return iter(_semantics(self).star(_at(self), _value(self)))

    def __getitem__(self, key: Any) -> Any:
        return _part(self, key)

    def get(self, key: Any, default: Any = None) -> Any:
        semantics, at, value = _semantics(self), _at(self), _value(self)
        if isinstance(value, dict):
            return _part(self, key) if semantics.branch(at, semantics.compare(at, "in", key, value)) else default
        found = semantics.call(at, semantics.attr(at, value, "get"), (key, default), {})
        return default if found is default else viewed(semantics, at, found)

    def keys(self) -> Any:
        return tuple(_semantics(self).star(_at(self), _value(self)))


# Accessors that avoid the view's own __getattribute__.
_semantics: Callable[[View], Semantics] = vars(View)["_semantics"].__get__
_at: Callable[[View], Site] = vars(View)["_at"].__get__
_value: Callable[[View], Any] = vars(View)["_value"].__get__
_set_semantics, _set_at, _set_value = (vars(View)[name].__set__ for name in ("_semantics", "_at", "_value"))


def _length(view: View) -> int:
    semantics, at = _semantics(view), _at(view)
    length: int = semantics.call(at, len, (_value(view),), {})
    count = int(length)
    if length is not count:  # a traced number, which CPython is about to compare
        semantics.branch(at, semantics.compare(at, "==", length, count))
    return count


def _part(view: View, key: Any) -> Any:
    semantics, at = _semantics(view), _at(view)
    return viewed(semantics, at, semantics.item(at, _value(view), key))


def viewed(semantics: Semantics, at: Site, value: Any) -> Any:
    """Return a view of a value, or the value itself if it is None or a bool, which patterns match by identity."""
    if value is None or value is True or value is False:
        return value
    flags = type(value).__flags__
    kind = SequenceView if flags & _SEQUENCE else MappingView if flags & _MAPPING else View
    return kind(semantics, at, value)


def opened(value: Any) -> Any:
    """Return the value of a view. In a list or dictionary that a pattern made of views (``*rest``, ``**rest``), replace
    the views by their values."""
    if _is_view(value):
        return _value(value)
    if type(value) is list:
        for place, part in enumerate(value):
            if _is_view(part):
                value[place] = _value(part)
    elif type(value) is dict:
        for key, part in value.items():
            if _is_view(part):
                value[key] = _value(part)
    return value


def _is_view(value: Any) -> bool:
    # isinstance() would ask the view for its class.
    return View in mro_of(type(value))
