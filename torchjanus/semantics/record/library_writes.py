"""What a step has replaced in modules and classes of libraries: ``sys.stdout``, ``time.time``, a method of a class."""

from __future__ import annotations

from typing import Any

from torchjanus.core.kinds import getattr
from torchjanus.rewrite.hooks.lookup import MISSING

__all__ = ["LibraryWrites"]


class LibraryWrites:
    """What a record knows of writes to libraries."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[tuple[int, str], tuple[Any, Any]] = {}  # by owner and name: the owner, and what was there

    def record_replacement(self, owner: Any, name: str) -> None:
        """Record that an attribute of a module or class of a library is about to be set or deleted."""
        self._before.setdefault((id(owner), name), (owner, vars(owner).get(name, MISSING)))

    def replaced_in_libraries(self) -> str | None:
        """Return the name of an attribute that is not what it was when the call began, or None."""
        for (_, name), (owner, before) in self._before.items():
            if vars(owner).get(name, MISSING) is not before:
                return f"{getattr(owner, '__name__', owner)}.{name}"
        return None
