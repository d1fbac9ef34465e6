"""Bounded tables that live as long as the process. A module that keeps one owns what is in it; it says so in a line.

``tests/core/test_caches.py`` lists every such table of the package.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

__all__ = ["Identities", "Interned", "Recent"]

_Value = TypeVar("_Value")


class Identities(Generic[_Value]):
    """A value for an object as long as the object lives, by its identity: code objects compare by content, and equal
    ones can come from different files."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], _Value]] = {}
        self._lock = threading.RLock()

    def find(self, one: Any) -> _Value | None:
        """Return the object's value, None if there is none."""
        known = self._known.get(id(one))
        return known[1] if known is not None and known[0]() is one else None

    def get(self, one: Any, make: Callable[[], _Value]) -> _Value:
        """Return the object's value; if there is none, it is made."""
        known = self._known.get(id(one))
        if known is not None and known[0]() is one:
            return known[1]
        with self._lock:
            known = self._known.get(id(one))
            return known[1] if known is not None and known[0]() is one else self.put(one, make())

    def put(self, one: Any, value: _Value) -> _Value:
        """Set the object's value. Returns it."""
        number, values = id(one), self._known
        values[number] = weakref.ref(one, lambda _: values.pop(number, None)), value
        return value


class Recent(Generic[_Value]):
    """The ``most`` last used values, by key."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: dict[Any, _Value] = {}  # the last used one is the last
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: Any) -> _Value | None:
        """Return the value of this key, None if there is none."""
        return self._known.get(key)

    def get(self, key: Any, make: Callable[[], _Value]) -> _Value:
        """Return the value of this key; if there is none, it is made."""
        with self._lock:
            if key in self._known:
                return self.put(key, self._known[key])
        return self.put(key, make())

    def put(self, key: Any, value: _Value) -> _Value:
        """Set the value of this key. Returns the value."""
        with self._lock:
            self._known.pop(key, None)
            self._known[key] = value
            while len(self._known) > self.most:
                del self._known[next(iter(self._known))]
        return value


class Interned(Generic[_Value]):
    """One object for each key, so that equal ones can be compared by identity: the same one as long as anything refers
    to it. The ``most`` last used ones are kept in any case."""

    def __init__(self, most: int = 256) -> None:
        self._alive: WeakValueDictionary[Any, _Value] = WeakValueDictionary()
        self._recent: Recent[_Value] = Recent(most)
        self._lock = threading.RLock()

    def get(self, key: Any, make: Callable[[], _Value]) -> _Value:
        """Return the object of this key; if there is none, it is made."""
        with self._lock:
            found = self._alive.get(key)
            if found is None:
                found = self._alive[key] = make()
            return self._recent.put(key, found)
