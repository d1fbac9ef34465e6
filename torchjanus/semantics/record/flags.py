"""Record the flags (bool or None) that a step has set on objects (``model.eval()``) and recursive calls may read.

Two calls that read different flags take different variants of a recursive function. This module does not watch calls.
"""

from __future__ import annotations

from typing import Any

from torchjanus.core.access_path import AccessPath, token_of

__all__ = ["Flags"]


class Flags:
    """The flags of one run. Objects are keyed by ``id``: the trace keeps them alive."""

    def __init__(self) -> None:
        self._set: dict[int, dict[Any, Any]] = {}
        self._token: tuple[Any, ...] | None = ()

    def store(self, container: Any, place: Any, value: Any, base: AccessPath) -> None:
        """Record a write of the run. Only a flag is kept; any other value removes the flag at this place."""
        self._token = None
        if type(value) is bool or value is None:
            self._set.setdefault(id(container), {})[place] = (base.token, token_of(place), value)
        else:
            self._set.get(id(container), {}).pop(place, None)

    def forget(self, container: Any) -> None:
        """Forget all flags of a container whose content is no longer known."""
        self._token = None
        self._set.pop(id(container), None)

    def at(self, container: Any) -> set[Any]:
        """Return the names under which flags are set in a container."""
        return set(self._set.get(id(container), ()))

    @property
    def token(self) -> tuple[Any, ...]:
        """Return all flags, independent of the order in which they were set."""
        if self._token is None:
            flags = [flag for some in self._set.values() for flag in some.values()]
            self._token = tuple(sorted(flags, key=repr))
        return self._token
