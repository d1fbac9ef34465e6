"""The pass framework: the passes that turn a trace into a graph, and their lists. Knows no particular pass.

Each part of the compiler has a ``PassList`` in the module that runs it; ``torchjanus.graph.passes`` has all lists in
one table. A new pass is one module with an entry function, and one row in the list of its part.
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
    """What a pass takes and returns."""

    TRACE = "trace -> trace"
    PROGRAM = "trace -> tensor program"
    REWRITE = "tensor program -> tensor program"
    LOWER = "tensor program -> ATen graph"
    GRAPH = "ATen graph -> ATen graph"


class Part(IntEnum):
    """The lists of passes, in the order in which they run."""

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
    """Receives what passes do. Must change nothing and raise nothing."""

    def begins(self, passes: PassList, value: Any) -> None:
        """A list begins with this value. Discard what this list and later ones returned before; for a ``repeated``
        list, only what later ones returned."""

    def passed(self, one: Pass, made: Any) -> None:
        """A pass has returned this value."""

    def gave_up(self, passes: PassList) -> None:
        """A pass of a ``repeated`` list has raised: discard what the list returned since it began."""


_observer: ContextVar[Observer | None] = ContextVar("torchjanus_pass_observer", default=None)


@contextmanager
def observed_by(observer: Observer | None) -> Iterator[None]:
    """Let ``observer`` (or none, if None) receive the passes of this thread."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def unobserved() -> AbstractContextManager[None]:
    """Run passes for something other than the graph of the step, without an observer."""
    return observed_by(None)


def is_observed() -> bool:
    """Whether an observer receives the passes of this thread."""
    return _observer.get() is not None


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass. ``run`` takes the value, and the context of its list where ``contextual``; it returns the new value, or
    None where it changes a graph in place. ``line``: one sentence on what it does. ``entry``: its entry function, where
    ``run`` calls that with parts of the context."""

    name: str
    stage: Stage
    run: Callable[..., Any]
    line: str
    contextual: bool = False
    entry: Callable[..., Any] | None = None

    def __call__(self, value: Any, context: Any = None) -> Any:
        """Run the pass and return the new value. Raises what ``run`` raises."""
        made = self.run(value, context) if self.contextual else self.run(value)
        return self.gave(value if made is None else made)

    def gave(self, made: Value) -> Value:
        """Report the result of the pass to the observer and return it; for passes that no list calls."""
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
    """The passes of a part in the order in which they run. ``repeated``: they run once for each loop of a trace."""

    part: Part
    passes: tuple[Pass, ...]
    repeated: bool = False

    @property
    def title(self) -> str:
        """The name of the part in words, as ``loop operands``."""
        return self.part.name.lower().replace("_", " ")

    def run(self, value: Any, context: Any = None) -> Any:
        """Return the value after all passes. Raises what they raise."""
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
        """Report to the observer that the passes begin with this value."""
        observer = _observer.get()
        if observer is not None:
            observer.begins(self, value)
