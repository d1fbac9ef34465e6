"""What the program's variables may be between the rounds of a loop in which tensors decide.

Knows states, not rounds.
"""

from __future__ import annotations

import itertools
from typing import Any

from torchjanus.graph.loop_scan import UnlikeRounds
from torchjanus.origin import token_of
from torchjanus.trace.rounds import Frames

__all__ = ["check_states"]


def check_states(frames: Frames) -> None:
    """What is neither tensor nor number has to be the same before all rounds and after the last, but for what is only
    there once a round has set it, and how long lists are, which may grow by the same in each."""
    first, *others = frames.states
    for name in set().union(*others):
        row: list[Any] = [state.get(name) for state in others]
        kinds = {None if value is None else value[0] for value in row}
        before = first.get(name)
        if kinds <= {None, "tensor"}:
            if before is not None and before[0] != "tensor":
                raise UnlikeRounds  # there was no tensor at first
        elif name[-1] == "length" and kinds == {"int"}:
            _check_length([value[1] for value in row if value is not None], before)
        elif kinds <= _NUMBERS and before is not None and before[0] in _NUMBERS | {"float"}:
            continue  # where it comes from is settled by comparing rounds
        elif kinds <= _NUMBERS | {None} and before is None:
            continue
        elif kinds <= _NUMBERS | {"float"} and before is not None and before[0] == "float":
            if any(value[0] == "float" and token_of(value[1]) != token_of(before[1]) for value in row):
                raise UnlikeRounds
        elif len({_plainly(value) for value in row}) > 1 or (
            before is not None and _plainly(before) != _plainly(row[0])
        ):
            raise UnlikeRounds


_NUMBERS = frozenset({"int", "fetched", "number"})


def _plainly(value: Any) -> Any:
    if value is None or value[0] not in ("float", "new"):
        return value
    return token_of(value[1]) if value[0] == "float" else value[:2]


def _check_length(values: list[int], before: Any) -> None:
    """A list has to grow by the same in each round."""
    steps = {b - a for a, b in itertools.pairwise(values)}
    if len(steps) > 1 or before not in (None, ("int", values[0] - (steps.pop() if steps else 0))):
        raise UnlikeRounds
