"""The errors and refusals that a user can meet. Each says where, what, why, and the way out."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

__all__ = ["InternalFault", "JanusError", "Place", "Refusal", "Refused", "SourceUnavailable", "Unsupported", "refused"]


@dataclass(frozen=True, slots=True)
class Place:
    """A user's source position. ``line`` counts from 1, ``column`` from 0; line 0 means the place is not known."""

    file: str
    line: int
    column: int = 0
    function: str = ""

    @property
    def is_library(self) -> bool:
        """Whether the source is that of an installed library, of Python, or our own."""
        return (
            "site-packages" in self.file or f"{os.sep}lib{os.sep}python3." in self.file or self.file.startswith(_OURS)
        )

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Place("<unknown>", 0)
# What stands in for a library's function is ours.
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class JanusError(Exception):
    """The base of every error that torchjanus itself raises to a caller."""


class Unsupported(JanusError):
    """Raised for a Python or PyTorch version, or an argument, that torchjanus cannot work with."""


class SourceUnavailable(JanusError):
    """A function has no source that can be found, so it cannot be rewritten. Rewriting callers run it as it is."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a construct is not speculated on: a code of ``core.reasons``, what, why, what the user can do, and where.
    ``caller``: which line of the program has called the library in whose source the place lies; ``of_lifetimes``: it
    can be told when objects go."""

    reason: str
    what: str
    why: str = ""
    remedy: str = ""
    place: Place = NOWHERE
    caller: Place = NOWHERE
    of_lifetimes: bool = False

    def at(self, place: Place) -> Refusal:
        """The same, with a place if it has none."""
        return self if self.place != NOWHERE else replace(self, place=place)

    def __str__(self) -> str:
        place = f"{self.place}" if self.caller == NOWHERE else f"{self.caller} (in {self.place})"
        return f"{place}: {self.what}: {self.why} {self.remedy}".rstrip() + f" [{self.reason}]"


class Refused(JanusError):
    """Carries a Refusal from where it was noticed to the runtime. A user never sees it raised."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal

    def at(self, place: Place) -> Refused:
        """The same, with a place if it has none."""
        return self if self.refusal.place != NOWHERE else type(self)(self.refusal.at(place))


def refused(reason: str, what: str, why: str = "", remedy: str = "", place: Place = NOWHERE) -> Refused:
    """A refusal, to be raised."""
    return Refused(Refusal(reason, what, why, remedy, place))


class InternalFault(JanusError):
    """Something inside torchjanus broke. The runtime catches it, completes the call imperatively and reports it."""
