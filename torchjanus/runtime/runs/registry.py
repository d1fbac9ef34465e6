"""What the whole program has speculated on, and which executor is used where none is named.

A report at the end of a program needs to know this even if nothing was speculated on. This module does not know what a
speculated function is, but that it has a number.
"""

from __future__ import annotations

import weakref
from typing import Any

from torchjanus.core.settings import EXECUTOR

__all__ = ["executor_in_use", "keep_speculated", "register", "speculated", "use_executor"]

_live: weakref.WeakSet[Any] = weakref.WeakSet()
_kept: list[Any] | None = None  # what keep_speculated() keeps alive
_executor = EXECUTOR.given or "auto"


def register(step: Any) -> None:
    """Add a speculated function."""
    _live.add(step)
    if _kept is not None:
        _kept.append(step)


def speculated() -> list[Any]:
    """Return every speculated function that is alive, in the order of creation."""
    return sorted(_live, key=lambda step: step.number)


def keep_speculated() -> None:
    """Keep every speculated function, and so what it closes over, alive from now on, for a report at the end."""
    global _kept
    _kept = list(_live)


def executor_in_use() -> str:
    """Return the name of the executor of functions that name none."""
    return _executor


def use_executor(name: str) -> None:
    """Set it. The name is not checked."""
    global _executor
    _executor = name
