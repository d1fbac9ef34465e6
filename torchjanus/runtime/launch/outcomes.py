"""What a launch returns besides the call's result: a guard does not hold, an assertion is violated, a call fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchjanus.execute.running.base import Updating, Violated

__all__ = ["LATE", "MISS", "RAISED", "Failure", "Violation", "failure"]


class _Outcome:
    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"<{self._name}>"


MISS: Any = _Outcome("miss")
RAISED: Any = _Outcome("raised")  # an extern call raised; the journal has its exception
LATE: Any = _Outcome("late")  # a value that only an extern call at commit decides


@dataclass(frozen=True, slots=True)
class Violation:
    """The graph ran, some assertion did not hold, and nothing was changed. ``by``: the part of a path tree that has the
    assertion."""

    violated: Violated
    by: Any = None


@dataclass(frozen=True, slots=True)
class Failure:
    """Something raised. Nothing has changed, unless it was in the commit (``committing``): then tensors have been
    updated."""

    error: BaseException
    committing: bool
    by: Any = None  # the entry of a path tree in which it happened


def failure(error: Exception, by: Any = None) -> Failure:
    """Return the Failure for an exception raised while a graph ran. Only Updating says that tensors were updated."""
    return Failure(error.error, True, by) if isinstance(error, Updating) else Failure(error, False, by)
