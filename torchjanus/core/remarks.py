"""Remarks: which parts of a step are not optimised, where, and why. The step is speculated on all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torchjanus.core.errors import NOWHERE, Place

__all__ = ["NotMergeable", "Remark", "Remarks", "collected", "remark"]

MOST = 64  # of one run, or of one function


class NotMergeable(Exception):
    """Iterations of a loop, arms of a branch or recursive calls cannot be one operation.

    ``reason``: a code of ``core.reasons``; ``detail``: what tells them apart, in words ("" where the title of the
    reason says it all).
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True)
class Remark:
    """A loop, branch or recursion that is not optimised: a code of ``core.reasons``, where it is, and details."""

    reason: str
    place: Place
    detail: str = ""


class Remarks:
    """The remarks of one watched run, or of one function: the last one of each source line, at most ``MOST``."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Remark] = {}
        self._merged: dict[tuple[str, int], Place] = {}  # where something has been optimised

    def __iter__(self) -> Iterator[Remark]:
        return iter(self._known.values())

    def note(self, place: Place, reason: str, detail: str = "") -> None:
        """Remember why what is written at ``place`` is not optimised."""
        where = (place.file, place.line)
        if place != NOWHERE and (where in self._known or len(self._known) < MOST):
            self._known[where] = Remark(reason, place, detail)
            self._merged.pop(where, None)

    def merged(self, place: Place) -> None:
        """What is written there has been optimised, after all."""
        self._known.pop((place.file, place.line), None)
        if len(self._merged) < MOST:
            self._merged[place.file, place.line] = place

    def take(self, run: Remarks, concerns: Callable[[Remark], bool]) -> None:
        """Add those of one more run that are of ``concerns``."""
        for place in run._merged.values():
            self.merged(place)
        self.add(filter(concerns, run))

    def add(self, remarks: Iterable[Remark]) -> None:
        """Add these remarks."""
        for one in remarks:
            self.note(one.place, one.reason, one.detail)


_collector: ContextVar[Remarks | None] = ContextVar("torchjanus_remarks", default=None)


@contextmanager
def collected() -> Iterator[Remarks]:
    """Collect what ``remark`` is reported in this thread."""
    remarks = Remarks()
    token = _collector.set(remarks)
    try:
        yield remarks
    finally:
        _collector.reset(token)


def remark(place: Place, reason: str, detail: str = "") -> None:
    """Record why the code at ``place`` is not optimised. Has no effect unless remarks are being collected."""
    remarks = _collector.get()
    if remarks is not None:
        remarks.note(place, reason, detail)
