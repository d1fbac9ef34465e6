"""Sites: the source constructs at which rewritten code asks a hook. This module knows neither hooks nor code
generation."""

from __future__ import annotations

import ast
from builtins import len  # torchjanus' own, even where a program replaces it
from dataclasses import dataclass, field

from torchjanus.core.errors import Place

__all__ = ["Location", "Region", "Site", "SiteTable", "location_of"]

Location = tuple[int, int, int, int]  # line, column, end line, end column: lines from 1, columns in UTF-8 bytes from 0


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """A construct that encloses sites, or one arm of it (``then``, ``else``, ``test``, ``body``, ``case``). One object
    for each in one rewritten function, so that they compare by identity."""

    kind: str
    arm: str
    location: Location


@dataclass(frozen=True, slots=True)
class Site:
    """One source construct of one rewritten code object. ``number`` counts within the outermost function. ``path``: the
    regions that enclose it, the innermost function first; one tuple for all sites of a region."""

    number: int
    kind: str
    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    function: str
    path: tuple[Region, ...] = field(default=(), compare=False, repr=False)
    place: Place = field(init=False, compare=False, repr=False)  # made once: each hook asks for it

    def __post_init__(self) -> None:
        object.__setattr__(self, "place", Place(self.file, self.line, self.column, self.function))

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def location_of(node: ast.AST) -> Location:
    """Return the node's location in the user's source."""
    line: int = node.lineno  # type: ignore[attr-defined]
    column: int = node.col_offset  # type: ignore[attr-defined]
    end_line: int | None = node.end_lineno  # type: ignore[attr-defined]
    end_column: int | None = node.end_col_offset  # type: ignore[attr-defined]
    return line, column, line if end_line is None else end_line, column if end_column is None else end_column


class SiteTable:
    """Numbers the sites of one outermost function in the order of creation."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._sites: list[Site] = []

    def add(self, kind: str, location: Location, function: str, path: tuple[Region, ...] = ()) -> int:
        number = len(self._sites)
        self._sites.append(Site(number, kind, self.file, *location, function, path))
        return number

    def freeze(self) -> tuple[Site, ...]:
        return tuple(self._sites)
