"""Where a program keeps what it changes: variables, and lists of unknown length; and what is in a loop-carried value.
Ordinary lists that grow where a staged value decides become such, if nothing but variables holds them.
Knows nothing of graphs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from types import CellType
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.semantics.staged.unknown.journal import Held, contents_of
from torchjanus.semantics.staged.unknown.values import StagedList, StagedValue, Unbound

__all__ = [
    "Elements",
    "Place",
    "cells_holding",
    "flat",
    "grown_apart",
    "grown_lists",
    "held_by",
    "is_carried",
    "lists_in",
    "parts_of",
    "put",
    "value_of",
]

Place = CellType | StagedList


def value_of(place: Place, contents: Any) -> Any:
    """Return the value that a place has with these contents (see ``contents_of``)."""
    if isinstance(place, StagedList):
        return StagedList(place.staging, *contents)
    return contents[0] if contents else Unbound


def held_by(place: Place) -> Any:
    """Return the value that a place has now."""
    return value_of(place, contents_of(place))


def put(place: Place, value: Any) -> None:
    """Let a place have this value."""
    if isinstance(place, StagedList):
        place.ref, place.type = value.ref, value.type
    else:
        place.cell_contents = value


Contents = dict[int, tuple[Any, Any]]  # of objects and variables, by id


def grown_lists(before: Contents, after: Contents) -> dict[int, CellType | None]:
    """Return the ids of ordinary lists whose length has changed, each with a variable that holds it.

    A list counts, too, if its variable now holds a list of unknown length. ``after``: what objects and variables hold
    at the end of a part that has been undone."""
    found: dict[int, CellType | None] = {}
    for number, (obj, contents) in after.items():
        if type(obj) is list and len(obj) != len(contents):
            found[number] = _cell_of(number, before)
        elif isinstance(obj, CellType) and contents and isinstance(contents[0], StagedList) and contents[0].is_new:
            now = contents_of(obj)
            if now and type(now[0]) is list:
                found[id(now[0])] = obj
    return found


def _cell_of(number: int, before: Contents) -> CellType | None:
    """Return a variable that holds the list with this id. Known variables come first: to look for others takes a tenth
    of a second."""
    held = before[number][0]
    for one, _ in before.values():
        if isinstance(one, CellType) and (contents_of(one) or (None,))[0] is held:
            return one
    for one in gc.get_referrers(held):
        if isinstance(one, CellType):
            return one
    return None


def grown_apart(parts: list[tuple[Contents, Contents]]) -> dict[int, CellType | None]:
    """Return the lists that are not of one length after all these parts (see ``grown_lists``)."""
    found = {number: cell for before, after in parts for number, cell in grown_lists(before, after).items()}
    return {
        number: cell for number, cell in found.items()
        if len({_length(after, number) for _, after in parts}) > 1 or not any(number in after for _, after in parts)
    }  # fmt: skip


def _length(after: Contents, number: int) -> int | None:
    known = after.get(number)
    return None if known is None or not isinstance(known[1], list) else len(known[1])


def cells_holding(cell: CellType, ours: set[int]) -> list[CellType]:
    """Return the variables that hold the list which this one holds; none if anything else may hold it. ``ours``: ids of
    containers of this package, which do not count."""
    held = cell.cell_contents
    holders = gc.get_referrers(held)
    uses = 0
    for one in holders:
        if type(one) not in (CellType, Held) and id(one) not in ours:
            return []
        for part in one.values() if isinstance(one, dict) else one if isinstance(one, tuple) else (held,):
            uses += part is held  # no comprehension: it would make ``held`` a variable of two functions, and hold it
            part = None
    if sys.getrefcount(held) > uses + 2:  # one is of ``held``, one of the question
        return []
    return [one for one in holders if type(one) is CellType]


_PLAIN = frozenset(map(type, map(iter, ((), [], {}, {}.values(), {}.items(), set(), "", b"", range(1), range(2**70)))))
_AROUND = (enumerate, zip)


class Elements:
    """What a loop goes over, of which the elements can be asked for again. ``are_plain``: whether to advance to an
    element does nothing else."""

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator = iterator
        self.seen: list[Any] = []
        self.are_plain = _is_plain(iterator)

    def at(self, number: int) -> tuple[Any] | None:
        """Return the element with this number in a tuple; None if there are fewer."""
        if number == len(self.seen):
            try:
                self.seen.append(next(self.iterator))
            except StopIteration:
                return None
        return (self.seen[number],)


def _is_plain(iterator: Any) -> bool:
    if type(iterator) in _PLAIN or type(iterator) is type(reversed([])):
        return True
    if type(iterator) not in _AROUND:
        return False
    parts = [part for one in gc.get_referents(iterator) for part in (one if type(one) is tuple else (one,))]
    return all(_is_plain(one) for one in parts if hasattr(type(one), "__next__"))


def is_carried(value: Any) -> bool:
    """Whether a loop can hand a value from one iteration to the next: a tensor, a number, a tuple or list of such."""
    if isinstance(value, StagedList) and value.is_new:  # the variable stays; what is in it is a place of its own
        return False
    if isinstance(value, torch.Tensor | StagedValue) or type(value) in (int, float, bool):
        return True
    return isinstance(value, tuple | list) and bool(value) and all(map(is_carried, value))


def lists_in(value: Any) -> list[Any]:
    """The lists within a loop-carried value."""
    if not isinstance(value, tuple | list):
        return []
    return [*([value] if isinstance(value, list) else ()), *(one for part in value for one in lists_in(part))]


def parts_of(made: Any, *others: Any) -> Iterator[tuple[Any, ...]]:
    """What a loop-carried value has in it, each with what is in its place in the others."""
    if isinstance(made, tuple | list):
        for parts in zip(made, *others, strict=True):
            yield from parts_of(*parts)
    else:
        yield made, *others


def flat(value: Any) -> list[Any]:
    return [leaf for part in value for leaf in flat(part)] if isinstance(value, tuple | list) else [value]
