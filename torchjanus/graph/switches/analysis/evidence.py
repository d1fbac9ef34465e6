"""Limits the iterations in which an arm with little evidence may be taken; the graph asserts these limits.

An arm that a predicate of the iteration index selects (``if t == 0``, ``if t == n - 1``) may be known for the first or
the last iteration only. There it is correct, whatever it would do at another index. Arms are numbers here.
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
    """Return the limits of arms: (arm, index) of those allowed at one index only, those allowed last only, and groups.

    All iterations together must not stay within a group: its arms leave one variable of ``begun`` as it was."""
    alone = tuple((number, min(arm.indices)) for number, arm in enumerate(arms) if arm.is_alone)
    last = tuple(number for number, arm in enumerate(arms) if not arm.followed)
    keeping = [tuple(n for n, arm in enumerate(arms) if ("name", name) in arm.ends(name)) for name in begun]
    return alone, last, tuple(some for some in keeping if some)


def are_known(
    arms: torch.Tensor, alone: Sequence[tuple[int, int]], last: Sequence[int], keeping: Sequence[Sequence[int]]
) -> torch.Tensor:
    """Return a scalar boolean tensor: whether each iteration took a known arm, within the limits."""
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
