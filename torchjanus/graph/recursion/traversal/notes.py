"""The text by which a call notes what it computes between two calls of its own: rows, their levels, what they are of.

All rows of such a stretch are numbered at once, and levels are variables: where one follows from another it is not
looked up. Knows nothing of how calls are matched with ways, nor of what the numbers are called in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

__all__ = ["Own", "Stretch", "Unit"]


@dataclass(frozen=True, slots=True)
class Own:
    """A row that an earlier unit of the same call gives: ``unit`` by its name, ``which`` of what it gives."""

    unit: str
    which: int = 0


Row = Own | str  # or the text of the number of a row that comes from elsewhere


@dataclass(frozen=True, slots=True)
class Unit:
    """A cell that a call goes through, or a sum. ``name``: unlike those of all others of the call; ``takes``: the rows
    for which it waits; ``gives``: how many rows it gives. ``lines``: what is noted of it, with ``{row}``, the number of
    its first row, ``{level}``, and ``{0}``, ``{1}``, ... for the numbers of what it takes."""

    name: str
    takes: Sequence[Row]
    gives: int
    lines: Sequence[str]


class Stretch:
    """Stretches of one call, one after the other."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[str, int]] = {}  # of each unit: behind which name its first row is, and how far
        self._levels: dict[str, int | None] = {}  # of each unit, where it is known beforehand
        self._behind: dict[str, frozenset[Row]] = {}  # all that the unit waits for

    def row(self, row: Row) -> str:
        """The text of its number."""
        if isinstance(row, str):
            return row
        base, first = self._rows[row.unit]
        number = first + row.which
        return f"{base} + {number}" if number else base

    def noted(self, units: Sequence[Unit]) -> Iterator[str]:
        """The lines that note these, in this order."""
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
            row, level = self.row(Own(unit.name)), self._level_text(unit.name)
            yield from (line.format(*rows, row=row, level=level) for line in unit.lines)

    def _waits(self, unit: Unit) -> list[Row]:
        """What it takes, but for what is there anyhow before something else that it takes."""
        rows = list(dict.fromkeys(Own(row.unit) if isinstance(row, Own) else row for row in unit.takes))
        behind = frozenset[Row]().union(*(self._behind.get(row.unit, ()) for row in rows if isinstance(row, Own)))
        left = [row for row in rows if row not in behind]
        self._behind[unit.name] = behind.union(rows)
        # Every level is 0 at least.
        later = [row for row in left if isinstance(row, str) or self._levels.get(row.unit) != 0]
        if not later:
            self._levels[unit.name] = 1 if left else 0
        return later

    def _level(self, unit: Unit, looked: dict[str, str]) -> Iterator[str]:
        """Compute its level: one more than that of the highest of the rows that it waits for."""
        if self._levels.get(unit.name) is not None:
            return
        terms = [
            self._level_text(row.unit) if isinstance(row, Own) else looked.get(row, f"level[{row}]")
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
        known = self._levels.get(unit)
        return f"l_{unit}" if known is None else str(known)
