"""Passes: the steps by which a trace becomes a graph. Knows none of them.

The passes of each part stand in a ``PassList`` in the module that runs them; ``torchjanus.graph.passes`` has all of
them in one table. A new pass is one module with an entry function, and one row in the list of its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, Protocol, TypeVar

__all__ = ["Observer", "Part", "Pass", "PassList", "Stage", "is_observed", "observed_by", "unobserved"]

Value = TypeVar("Value")


class Stage(Enum):
    """What a pass takes and what it gives."""

    TRACE = "trace -> trace"
    PROGRAM = "trace -> tensor program"
    REWRITE = "tensor program -> tensor program"
    LOWER = "tensor program -> ATen graph"
    GRAPH = "ATen graph -> ATen graph"


class Part(IntEnum):
    """The lists of passes, in the order in which they are run."""

    RECURSION = 1
    SWITCH_OPERANDS = 2
    SWITCHES = 3
    LOOP_OPERANDS = 4
    LOOPS = 5
    FOLDING = 6
    SELECTIONS = 7
    PROGRAM = 8
    CALL_GROUPS = 9
    ROLLING = 10
    LOWERING = 11
    CLEAN_UP = 12
    FINISHING = 13


class Observer(Protocol):
    """Is told what passes do. Must change nothing and raise nothing."""

    def begins(self, passes: PassList, value: Any) -> None:
        """The passes of a list begin with this value. What this list and later ones gave before is given up; of a
        ``repeated`` list what later ones gave."""

    def passed(self, one: Pass, made: Any) -> None:
        """A pass has given this."""

    def gave_up(self, passes: PassList) -> None:
        """A pass of a ``repeated`` list has raised: what the list gave since it began is not used."""


_observer: ContextVar[Observer | None] = ContextVar("torchjanus_pass_observer", default=None)


@contextmanager
def observed_by(observer: Observer | None) -> Iterator[None]:
    """``observer`` is told of the passes of this thread; nobody is if that is None."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def unobserved() -> AbstractContextManager[None]:
    """Passes are run for something else than the graph of the step: nobody is told."""
    return observed_by(None)


def is_observed() -> bool:
    """Whether somebody is told of the passes of this thread."""
    return _observer.get() is not None


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass. ``run`` takes the value, and the context of its list where ``contextual``; it returns the new value, or
    None where it has changed a graph in place. ``line`` says what it does. ``entry``: its entry function, where ``run``
    calls that with parts of the context."""

    name: str
    stage: Stage
    run: Callable[..., Any]
    line: str
    contextual: bool = False
    entry: Callable[..., Any] | None = None

    def __call__(self, value: Any, context: Any = None) -> Any:
        """Run the pass. Raises what ``run`` raises."""
        made = self.run(value, context) if self.contextual else self.run(value)
        return self.gave(value if made is None else made)

    def gave(self, made: Value) -> Value:
        """Tell the observer what the pass has given, and return it: where it is not called by its list."""
        observer = _observer.get()
        if observer is not None:
            observer.passed(self, made)
        return made

    @property
    def where(self) -> str:
        """The module of its entry function."""
        return str((self.entry or self.run).__module__)


@dataclass(frozen=True, slots=True)
class PassList:
    """The passes of a part in the order in which they are run. ``repeated``: for each loop of a trace anew."""

    part: Part
    passes: tuple[Pass, ...]
    repeated: bool = False

    @property
    def title(self) -> str:
        """``loop operands``."""
        return self.part.name.lower().replace("_", " ")

    def run(self, value: Any, context: Any = None) -> Any:
        """The value after all passes. Raises what they raise."""
        self.begin(value)
        try:
            for one in self.passes:
                value = one(value, context)
        except Exception:
            observer = _observer.get()
            if observer is not None and self.repeated:
                observer.gave_up(self)
            raise
        return value

    def begin(self, value: Any) -> None:
        """Tell the observer that the passes begin with this value."""
        observer = _observer.get()
        if observer is not None:
            observer.begins(self, value)
