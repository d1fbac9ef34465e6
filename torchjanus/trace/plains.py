"""What rounds of a loop computed with plain numbers, texts and other values: whether all rounds computed the same.

Where all did, with nothing but values, and what variables hold has settled, so will rounds that nobody has seen: a
flag, a mode, the name of a kind of layer decides in each of them as it did in those.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from torchjanus.trace.rounds import Plain

__all__ = ["are_same", "by_round", "counted", "sums"]


def by_round(plains: Iterable[Plain], limits: Sequence[int]) -> list[list[Plain]]:
    """What each round computed. ``limits``: before which events rounds begin, and the last one ends."""
    plains = list(plains)
    return [[plain for plain in plains if a <= plain.position < b] for a, b in itertools.pairwise(limits)]


def are_same(rounds: Sequence[Sequence[Plain]]) -> bool:
    """Whether all of them computed the same, as far as that can be told."""
    columns = [[plain.told for plain in row] for row in rounds]
    return all(None not in column and column == columns[0] for column in columns)


def counted(rounds: Sequence[Sequence[Plain]]) -> list[tuple[int, int]] | None:
    """Where all of them computed the same, but for sums that go up by the same from round to round: what those are, by
    the first round's and the step. Nothing else may be made of them. None where they computed something else."""
    if len({len(row) for row in rounds}) > 1:
        return None
    found: list[tuple[int, int]] = []
    for row in zip(*rounds, strict=True):
        if are_same([[plain] for plain in row]):
            continue
        totals = [plain.total for plain in row]
        steps = {b - a for a, b in itertools.pairwise(totals) if a is not None and b is not None}
        if None in totals or len({plain.operands[1:] for plain in row}) > 1 or len(steps) > 1:
            return None
        if steps and steps != {0}:
            found.append((totals[0] or 0, steps.pop()))
    return found


def sums(rounds: Sequence[Sequence[Plain]]) -> list[tuple[int, int]]:
    """The sums that go up by the same from round to round, whatever else the rounds computed."""
    columns = [[[plain] for plain in row] for row in zip(*rounds, strict=True)]
    return [sum_ for column in columns for sum_ in counted(column) or ()]
