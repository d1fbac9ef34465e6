"""Lowers index predicates to tensor operations on the iteration index and on the numbers it is compared with.

All iterations run the same operator, so what distinguishes them must be an operand. Works on resolved trees (see
``carried_numbers``).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.carried_numbers import Tree
from torchjanus.graph.switches.analysis.index_predicates import IndexPredicate
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import TensorPredicate
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr

__all__ = ["PredicateLowering"]

# For integers these give the results of Python.
_FUNCTIONS: dict[Any, Any] = {
    operator.add: torch.add, operator.sub: torch.sub, operator.mul: torch.mul, operator.mod: torch.remainder,
    operator.floordiv: torch.floor_divide, operator.eq: torch.eq, operator.ne: torch.ne, operator.lt: torch.lt,
    operator.le: torch.le, operator.gt: torch.gt, operator.ge: torch.ge,
}  # fmt: skip


@dataclass(slots=True)
class PredicateLowering:
    """Inserts index predicates into the events of an arm. ``begins``: the index of the first iteration."""

    trace: Trace
    begins: int
    modes: Any
    operations: int = 0  # of the arm so far
    added: list[int] = field(default_factory=list)  # per added operation, the arm's operations before it
    # The current predicate:
    _place: Place = NOWHERE
    _iteration: TensorRef | None = None
    _numbers: Mapping[Any, TensorRef] = field(default_factory=dict)

    def moved(self, after: int) -> int:
        """Return a position among the arm's operations with the added operations counted."""
        return after + sum(position < after for position in self.added)

    def ask(self, tree: Tree, question: IndexPredicate, numbered: Callable[[int], int]) -> None:
        """Append a predicate's operations and assertion. ``numbered``: renumbers its tensors. Raises NotMergeable."""
        if tree[0] == "c" and not isinstance(tree[2], Expr):
            return  # its outcome is constant
        self._place, self._iteration = question.place, TensorRef(numbered(question.ref.number))
        self._numbers = {token: TensorRef(numbered(ref.number)) for token, ref in question.numbers}
        answer = self._value(tree)
        if not isinstance(answer, TensorRef):
            raise NotMergeable("branch-index", "the decision depends on nothing that a tensor tells")
        self.trace.events.append(
            TensorPredicate(answer, question.outcome, self.operations + len(self.added), question.place)
        )

    def _value(self, tree: Tree) -> Any:
        if tree[0] == "c":
            return self._number(tree[2])
        if tree[0] == "t":
            more = tree[1] - self.begins
            return self._iteration if not more else self._made(torch.add, (self._iteration, more))
        return self._applied(tree[1], [self._value(part) for part in tree[2:]])

    def _number(self, value: Any) -> Any:
        """Return a loop-invariant number as a tensor or an int. Raises NotMergeable."""
        if isinstance(value, Apply):
            return self._applied(value.func, [self._number(arg) for arg in value.args])
        if not isinstance(value, Expr):
            return value
        if value.token not in self._numbers:
            raise NotMergeable("branch-index", "an iteration compares its index with a number that is not known")
        return self._numbers[value.token]

    def _applied(self, function: Any, parts: list[Any]) -> Any:
        func = _FUNCTIONS.get(function)
        if func is None or not all(isinstance(part, TensorRef) or type(part) is int for part in parts):
            raise NotMergeable("branch-index", "an iteration compares its index in a way that no tensor operation does")
        if function in (operator.mod, operator.floordiv) and (isinstance(parts[1], TensorRef) or not parts[1]):
            raise NotMergeable("branch-index", "an iteration divides its index by a number that may change")
        if not isinstance(parts[0], TensorRef):
            parts[0] = self._made(torch.full_like, (self._iteration, parts[0]))
        return self._made(func, tuple(parts))

    def _made(self, func: Any, args: tuple[Any, ...]) -> TensorRef:
        made = TensorRef(len(self.trace.tensors))
        self.trace.tensors.append(None)
        modes = replace(self.modes, grad=False)
        self.trace.events.append(Op(func, f"torch.{func.__name__}", args, {}, (made,), modes, self._place))
        self.added.append(self.operations)
        return made
