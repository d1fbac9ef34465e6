"""Bounded tables that live as long as the process. A module that keeps one owns what is in it; it says so in a line.

``tests/core/test_caches.py`` lists every such table of the package.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

__all__ = ["Interned", "Recent"]

_Value = TypeVar("_Value")


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
