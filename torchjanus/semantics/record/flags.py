"""Flags that a step has set on objects (``model.eval()``), which recursive calls may see.

A call that finds other flags is a call of another function: that is how ways through it are told apart. Knows nothing
of how calls are watched.
"""

from __future__ import annotations

from typing import Any

from torchjanus.core.access_path import AccessPath, token_of

__all__ = ["Flags"]


class Flags:
    """Of one run. Objects are told apart by identity: the trace keeps them alive."""

    def __init__(self) -> None:
        self._set: dict[int, dict[Any, Any]] = {}
        self._token: tuple[Any, ...] | None = ()

    def store(self, container: Any, place: Any, value: Any, base: AccessPath) -> None:
        """The run has written there."""
        self._token = None
        if type(value) is bool or value is None:
            self._set.setdefault(id(container), {})[place] = (base.token, token_of(place), value)
        else:
            self._set.get(id(container), {}).pop(place, None)

    def forget(self, container: Any) -> None:
        """It is no longer known what is there."""
        self._token = None
        self._set.pop(id(container), None)

    def at(self, container: Any) -> set[Any]:
        """The names under which flags have been set there."""
        return set(self._set.get(id(container), ()))

    @property
    def token(self) -> tuple[Any, ...]:
        """All that are set, whatever the order in which that was done."""
        if self._token is None:
            flags = [flag for some in self._set.values() for flag in some.values()]
            self._token = tuple(sorted(flags, key=repr))
        return self._token
