"""The errors and refusals that a user can get. Each has a place, a subject, a reason and a remedy."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

__all__ = [
    "LINES", "OWN_FOLDER", "InternalFault", "JanusError", "NewGraph", "NotStaged", "Place", "Refusal", "Refused",
    "SourceUnavailable", "Unsupported", "refused",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """A user's source position. ``line`` counts from 1, ``column`` from 0; line 0 means that the place is not known."""

    file: str
    line: int
    column: int = 0
    function: str = ""

    @property
    def is_library(self) -> bool:
        """Whether the source is that of an installed library, of Python, or of torchjanus."""
        return (
            "site-packages" in self.file
            or f"{os.sep}lib{os.sep}python3." in self.file
            or self.file.startswith(OWN_FOLDER)
        )

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Place("<unknown>", 0)
# Functions that replace a library's function are in torchjanus.
OWN_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep  # of this package


class JanusError(Exception):
    """The base of every error that torchjanus itself raises to a caller."""


class Unsupported(JanusError):
    """Raised for a Python or PyTorch version, or an argument, that torchjanus cannot work with."""


class SourceUnavailable(JanusError):
    """Raised for a function without source, which cannot be rewritten. Rewritten callers run it as it is."""


LINES = 32  # of the program that a refusal keeps, the innermost: in deep recursion each call may be refused


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a construct is not speculated on: a code of ``core.reasons``, what, why, what the user can do, and where.

    ``caller``: the line of the program that called the library in which the place is; ``of_lifetimes``: the reason is
    that the program can observe when objects are destroyed; ``within``: the lines of the program that were being run
    where it was first met, the innermost first; ``again``: those where it was met later.
    """

    reason: str
    what: str
    why: str = ""
    remedy: str = ""
    place: Place = NOWHERE
    caller: Place = NOWHERE
    of_lifetimes: bool = False
    within: tuple[Place, ...] = field(default=(), compare=False)
    again: tuple[Place, ...] = field(default=(), compare=False)

    def at(self, place: Place) -> Refusal:
        """Return the refusal with this place if it has none."""
        return self if self.place != NOWHERE else replace(self, place=place)

    def __str__(self) -> str:
        place = f"{self.place}" if self.caller == NOWHERE else f"{self.caller} (in {self.place})"
        return f"{place}: {self.what}: {self.why} {self.remedy}".rstrip() + f" [{self.reason}]"


class Refused(JanusError):
    """Carries a Refusal from where it was detected to the runtime. A user never sees it raised."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal

    def at(self, place: Place) -> Refused:
        """Return the exception with this place if it has none."""
        return self if self.refusal.place != NOWHERE else type(self)(self.refusal.at(place))


def refused(reason: str, what: str, why: str = "", remedy: str = "", place: Place = NOWHERE) -> Refused:
    """Return an exception with a refusal, to be raised."""
    return Refused(Refusal(reason, what, why, remedy, place))


class NewGraph(JanusError):
    """Raised under ``stance("fail_on_new_graph")`` for a call that no graph can make. The message says why."""


class NotStaged(Unsupported):
    """Raised where a function cannot be staged. ``refusal`` says where, why, and what to do."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal


class InternalFault(JanusError):
    """Something inside torchjanus broke. The runtime catches it, completes the call imperatively and reports it."""
