"""Questions that the host could answer by the number of a round, asked of a tensor that holds that number.

A round of a loop is one operation for all rounds: what tells them apart has to be among what it is given. Knows trees
that are settled (see ``choice_counting``), not rounds.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.graph.choice_counting import Tree
from torchjanus.graph.loop_scan import UnlikeRounds
from torchjanus.trace.events import Asserted, Op, TensorRef, Trace

__all__ = ["Asking"]

# With integers these give what Python gives.
_FUNCTIONS: dict[Any, Any] = {
    operator.add: torch.add, operator.sub: torch.sub, operator.mul: torch.mul, operator.mod: torch.remainder,
    operator.floordiv: torch.floor_divide, operator.eq: torch.eq, operator.ne: torch.ne, operator.lt: torch.lt,
    operator.le: torch.le, operator.gt: torch.gt, operator.ge: torch.ge,
}  # fmt: skip


@dataclass(slots=True)
class Asking:
    """Puts questions among the events of a way. ``begins``: the number of the first round."""

    trace: Trace
    begins: int
    modes: Any
    operations: int = 0  # of the way itself so far
    added: list[int] = field(default_factory=list)  # after how many of those each operation of a question comes

    def moved(self, after: int) -> int:
        """So many operations of the way, with those of questions."""
        return after + sum(position < after for position in self.added)

    def ask(self, tree: Tree, number: int, outcome: bool, place: Place) -> None:
        """``number``: the tensor that holds the number of the round. Raises UnlikeRounds."""
        if tree[0] == "c":
            return  # all rounds know
        answer = self._value(tree, TensorRef(number), place)
        self.trace.events.append(Asserted(answer, outcome, self.operations + len(self.added), place))

    def _value(self, tree: Tree, turn: TensorRef, place: Place) -> Any:
        if tree[0] == "c":
            return tree[2]
        if tree[0] == "t":
            more = tree[1] - self.begins
            return turn if not more else self._made(torch.add, (turn, more), place)
        func = _FUNCTIONS.get(tree[1])
        parts = [self._value(part, turn, place) for part in tree[2:]]
        if func is None or not all(isinstance(part, TensorRef) or type(part) is int for part in parts):
            raise UnlikeRounds
        if not isinstance(parts[0], TensorRef):
            parts[0] = self._made(torch.full_like, (turn, parts[0]), place)
        return self._made(func, tuple(parts), place)

    def _made(self, func: Any, args: tuple[Any, ...], place: Place) -> TensorRef:
        made = TensorRef(len(self.trace.tensors))
        self.trace.tensors.append(None)
        modes = replace(self.modes, grad=False)
        self.trace.events.append(Op(func, f"torch.{func.__name__}", args, {}, (made,), modes, place))
        self.added.append(self.operations)
        return made
