"""The outline of a run that is to become a tree (``tracegraph``): where regions begin among its events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

__all__ = ["IterationStart", "Outline", "Written", "is_outlined", "outlined"]


@dataclass(frozen=True, slots=True)
class IterationStart:
    """An iteration of a loop begins, or a ``while`` ends. ``site``: that of the iterable, or of the test."""

    site: Any


@dataclass(frozen=True, slots=True)
class Written:
    """The operation that follows has changed these tensors, by number."""

    tensors: tuple[int, ...]


@dataclass(slots=True)
class Outline:
    """Where, among the events of a run, regions begin, numbers are fetched and tensors are written.

    ``entries``: each with the number of events before it. A site (with the regions that enclose it) is the first one at
    which a hook was called after the region changed; an ``IterationStart`` begins an iteration, or ends a ``while``; a
    ``Fetch`` or ``Size`` is a number that Python was given; ``Written`` refers to the next operation. ``kinds``: see
    ``Trace.kinds``, of all tensors. It is kept only where somebody asks for the tree.
    """

    entries: list[tuple[int, Any]] = field(default_factory=list)
    kinds: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def without(self, removed: list[int]) -> Outline:
        """Return the outline of the run without the events at these positions."""
        entries = [(at - sum(gone < at for gone in removed), entry) for at, entry in self.entries]
        return Outline(entries, self.kinds)


_ASKED: ContextVar[bool] = ContextVar("torchjanus outlined", default=False)


@contextmanager
def outlined(asked: bool = True) -> Iterator[None]:
    """Runs that begin here have an outline, if ``asked``."""
    before = _ASKED.set(asked or _ASKED.get())
    try:
        yield
    finally:
        _ASKED.reset(before)


def is_outlined() -> bool:
    """Whether a run that begins now has an outline."""
    return _ASKED.get()
