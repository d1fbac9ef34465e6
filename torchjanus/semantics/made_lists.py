"""How long lists are to which each round of a loop has added one element: as long as the loop has rounds.

Seen in their elements, when the program asks: however they came into the list (``append``, a comprehension), there is
one of each round, in order. Knows what a run has recorded, not hooks.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Sequence
from typing import Any

import torch

from torchjanus.graph.loop_alike import KEPT
from torchjanus.semantics.recording import Recording
from torchjanus.trace.rounds import Rounds, Until
from torchjanus.trace.values import Apply, Expr, Fetch, Traced, leaves

__all__ = ["length_of"]

MOST = 100_000  # elements


def length_of(recording: Recording, container: Any) -> Expr | None:
    """The length of a list that the run has made, by the number of rounds of a loop that has come to its end; None
    where it is not known. There may be more elements before those of the rounds, and behind them."""
    if type(container) not in (list, tuple) or not KEPT <= len(container) <= MOST:
        return None
    if not recording.trace.rounds or recording.owner(container) is not None:
        return None
    made = [_made_at(recording, part) for part in container]
    for rounds in reversed(recording.trace.rounds):
        if isinstance(rounds.count, Until) or not KEPT <= len(rounds.starts) <= len(made):
            continue
        if _are_of_rounds([_round_of(rounds, at) for at in made], len(rounds.starts)):
            more = len(made) - len(rounds.starts)
            return Apply(operator.add, (rounds.count, more)) if more else rounds.count
    return None


def _made_at(recording: Recording, part: Any) -> int:
    """How many events there were when it was made, or the tensor from which it was fetched; -1 where it was not."""
    if isinstance(part, Traced):
        found = [leaf for leaf in leaves(part.expr) if isinstance(leaf, Fetch)]
        number = found[0].ref if len(found) == 1 else None
    else:
        number = recording.number(part) if isinstance(part, torch.Tensor) else None
    return -1 if number is None or number in recording.trace.origins else recording.made_at[number]


def _round_of(rounds: Rounds, position: int) -> int:
    if not rounds.starts[0] <= position < rounds.end:
        return -1
    return bisect.bisect_right(rounds.starts, position) - 1


def _are_of_rounds(turns: Sequence[int], count: int) -> bool:
    """Whether there is one of each round, first to last or last to first, and none between them."""
    inside = [turn for turn in turns if turn >= 0]
    if inside not in (list(range(count)), list(range(count - 1, -1, -1))):
        return False
    first = next(at for at, turn in enumerate(turns) if turn >= 0)
    return all(turn >= 0 for turn in turns[first : first + count])
