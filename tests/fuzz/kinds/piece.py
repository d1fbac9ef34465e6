"""A part of a program about the object model: its classes, what the step may do with them, what it may read of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tests.fuzz.choices import Choices

__all__ = ["Kind", "Lines", "Piece", "lines_of"]

Lines = list[str]


def lines_of(text: str) -> Lines:
    """The lines of a text that begins with an empty one and is indented as a whole."""
    rows = text.strip("\n").split("\n")
    margin = min((len(row) - len(row.lstrip()) for row in rows if row.strip()), default=0)
    return [row[margin:].rstrip() for row in rows]


@dataclass
class Piece:
    """``outside``: in the module. ``before``: in the function that makes the program, before its step. The step does
    some of ``actions``, each some lines, and computes with ``numbers``. ``changes`` are made between calls. ``state``
    is compared after each call."""

    outside: str = ""
    before: str = ""
    actions: list[str] = field(default_factory=list)
    numbers: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)


# Makes a piece whose names end with a number, so that several can be in one program.
Kind = Callable[[Choices, int], Piece]
