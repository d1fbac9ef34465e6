"""In which iterations of a loop an arm may be taken of which not enough has been seen: a graph asserts that.

A way that the number of an iteration leads to (``if t == 0``, ``if t == n - 1``) may only ever be taken in the first
iteration, or in the last. What it does is right there, whatever it would do in another. Knows numbers of ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchjanus.graph.switches.analysis.arms import Arm

__all__ = ["are_known", "limits_of"]

_FIRST = 1


def limits_of(
    arms: Sequence[Arm], begun: Sequence[Any]
) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Which ways may be taken in one iteration only, with its number, which only in the last, and which not in all
    iterations: those that let one of the variables be that have ``begun`` with a number."""
    alone = tuple((number, min(arm.indices)) for number, arm in enumerate(arms) if arm.is_alone)
    last = tuple(number for number, arm in enumerate(arms) if not arm.followed)
    keeping = [tuple(n for n, arm in enumerate(arms) if ("name", name) in arm.ends(name)) for name in begun]
    return alone, last, tuple(some for some in keeping if some)


def are_known(
    arms: torch.Tensor, alone: Sequence[tuple[int, int]], last: Sequence[int], keeping: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Whether all iterations went a way that is known, and where it may be taken."""
    fine = arms.ge(0)
    if alone or last:
        places = torch.ones_like(arms).cumsum(0)
        for arm, iteration in alone:
            fine = fine & (arms.ne(arm) | places.eq(_FIRST + iteration))
        for arm in last:
            fine = fine & (arms.ne(arm) | places.flip(0).eq(_FIRST))
    known = fine.all()
    for some in keeping:
        kept = torch.zeros_like(fine)
        for arm in some:
            kept = kept | arms.eq(arm)
        known = known & kept.all().logical_not()
    return known
