"""In which rounds of a loop a way may be taken of which not enough has been seen: a graph asserts that.

A way that the number of a round leads to (``if t == 0``, ``if t == n - 1``) may only ever be taken in the first round,
or in the last. What it does is right there, whatever it would do in another. Knows numbers of ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchjanus.graph.switches.analysis.arms import Way

__all__ = ["are_known", "limits_of"]

_FIRST = 1


def limits_of(
    ways: Sequence[Way], begun: Sequence[Any]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Which ways may be taken in one round only, with its number, which only in the last, and which not in all rounds:
    those that let one of the variables be that have ``begun`` with a number."""
    alone = tuple((number, min(way.turns)) for number, way in enumerate(ways) if way.is_alone)
    last = tuple(number for number, way in enumerate(ways) if not way.followed)
    keeping = [tuple(n for n, way in enumerate(ways) if ("name", name) in way.ends(name)) for name in begun]
    return alone, last, tuple(some for some in keeping if some)


def are_known(
    ways: torch.Tensor, alone: Sequence[tuple[int, int]], last: Sequence[int], keeping: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Whether all rounds went a way that is known, and where it may be taken."""
    fine = ways.ge(0)
    if alone or last:
        places = torch.ones_like(ways).cumsum(0)
        for way, turn in alone:
            fine = fine & (ways.ne(way) | places.eq(_FIRST + turn))
        for way in last:
            fine = fine & (ways.ne(way) | places.flip(0).eq(_FIRST))
    known = fine.all()
    for some in keeping:
        kept = torch.zeros_like(fine)
        for way in some:
            kept = kept | ways.eq(way)
        known = known & kept.all().logical_not()
    return known
