"""Generates the statements by which the host traversal notes what one call computes between two recursive calls.

The units between two recursive calls are numbered together. Their levels become local variables, so that the level of a
row made in the same call needs no lookup. Independent of how calls are matched with variants.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["CallNotes", "Unit", "UnitRow"]


@dataclass(frozen=True, slots=True)
class UnitRow:
    """A row that an earlier unit of the same call computes: the name of the ``unit``, and ``which`` of its rows."""

    unit: str
    which: int = 0


Row = UnitRow | str  # a string is the expression of the number of a row from elsewhere


@dataclass(frozen=True, slots=True)
class Unit:
    """A cell that a call runs, or a reduction. ``name`` is unique within the call; ``takes`` are the input rows;
    ``gives`` counts the output rows. ``lines`` are the statements to generate, templates with the fields ``{row}`` (the
    number of its first output row), ``{level}``, and ``{0}``, ``{1}``, ... (the numbers of its input rows)."""

    name: str
    takes: Sequence[Row]
    gives: int
    lines: Sequence[str]


class CallNotes:
    """The generator for one call; it keeps what is known of earlier units from one group of units to the next."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, int]] = {}  # unit -> variable of the first row of its group, offset from it
        self._levels: dict[str, int | None] = {}  # unit -> level, if it is a constant
        self._behind: dict[str, frozenset[Row]] = {}  # unit -> all rows that it depends on

    def row(self, row: Row) -> str:
        """Return the expression of a row's number."""
        if isinstance(row, str):
            return row
        base, first = self._rows[row.unit]
        number = first + row.which
        return f"{base} + {number}" if number else base

    def noted(self, units: Sequence[Unit]) -> Iterator[str]:
        """Yield the statements that note these units, in this order."""
        if not units:
            return
        base, count = f"g_{units[0].name}", 0
        yield f"{base} = len(level)"
        for unit in units:
            self._rows[unit.name] = (base, count)
            count += unit.gives
        outer = [row for unit in units for row in self._waits(unit) if isinstance(row, str)]
        looked = {row: f"m{n}" for n, row in enumerate(dict.fromkeys(outer)) if outer.count(row) > 1}
        yield from (f"{name} = level[{row}]" for row, name in looked.items())
        for unit in units:
            yield from self._level(unit, looked)
        levels = [self._level_text(unit.name) for unit in units for _ in range(unit.gives)]
        yield f"rise({levels[0]})" if count == 1 else f"climb(({', '.join(levels)}))"
        for unit in units:
            rows = [self.row(row) for row in unit.takes]
            row, level = self.row(UnitRow(unit.name)), self._level_text(unit.name)
            yield from (line.format(*rows, row=row, level=level) for line in unit.lines)

    def _waits(self, unit: Unit) -> list[Row]:
        """Return the input rows that determine the level: no other input depends on them."""
        rows = list(dict.fromkeys(UnitRow(row.unit) if isinstance(row, UnitRow) else row for row in unit.takes))
        behind = frozenset[Row]().union(*(self._behind.get(row.unit, ()) for row in rows if isinstance(row, UnitRow)))
        left = [row for row in rows if row not in behind]
        self._behind[unit.name] = behind.union(rows)
        # Levels are not negative, so a row of level 0 matters only where there is no other.
        later = [row for row in left if isinstance(row, str) or self._levels.get(row.unit) != 0]
        if not later:
            self._levels[unit.name] = 1 if left else 0
        return later

    def _level(self, unit: Unit, looked: dict[str, str]) -> Iterator[str]:
        """Yield the statements that compute the unit's level: one more than the highest level of its input rows."""
        if self._levels.get(unit.name) is not None:
            return
        terms = [
            self._level_text(row.unit) if isinstance(row, UnitRow) else looked.get(row, f"level[{row}]")
            for row in self._waits(unit)
        ]
        name = self._level_text(unit.name)
        match terms:
            case [one]:
                yield f"{name} = {one} + 1"
            case [one, other]:
                names = []
                for number, term in enumerate((one, other)):
                    if term.startswith("level["):
                        yield f"high{number} = {term}"
                        term = f"high{number}"
                    names.append(term)
                yield f"{name} = ({names[0]} if {names[0]} > {names[1]} else {names[1]}) + 1"
            case _:
                yield f"{name} = max({', '.join(terms)}) + 1"

    def _level_text(self, unit: str) -> str:
        """Return the expression of the unit's level."""
        known = self._levels.get(unit)
        return f"l_{unit}" if known is None else str(known)
