"""Who gets a gradient from a loop in which tensors decide: that depends on the arms that its iterations went.

Eager leaves the gradient of what no iteration has used None, and optimizers skip it. So the arms that were taken are
asked for after the loop, and where the answer is another one the run is another path. Knows functions of torch, not
traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.core.errors import refused
from torchjanus.graph.operators.loop_op import new_key, register
from torchjanus.graph.operators.switch_op import REACHED

__all__ = ["Flow", "Flows", "asked_by", "asking_of"]

MOST = 256  # sets of variables

Matrix = Sequence[Sequence[Sequence[bool]]]  # of each arm, for each result, into which inputs its gradient flows


@dataclass(frozen=True, slots=True)
class Flows:
    """How gradients flow through iterations. ``last``: the results of the last iteration that are used after the loop;
    ``each``: those of all iterations that are."""

    matrix: Matrix
    last: frozenset[int]
    each: frozenset[int]

    def back(self, arm: int, live: Iterable[int]) -> frozenset[int]:
        """The inputs of an iteration into which the gradients of its results flow, if these have any."""
        rows = [self.matrix[arm][result] for result in {*live, *self.each}]
        return frozenset(i for row in rows for i, flows in enumerate(row) if flows)

    def reached(self, arms: Sequence[int]) -> frozenset[int]:
        """The inputs that get a gradient: carried ones before the first iteration, others in any."""
        found: set[int] = set()
        live = self.last
        for arm in reversed(arms):
            given = self.back(arm, live)
            found |= given
            live = frozenset(i for i in given if i < self.results)
        return frozenset(i for i in found if i >= self.results) | live

    @property
    def results(self) -> int:
        """How many results an iteration has, and so how many of its inputs are carried."""
        return len(self.matrix[0])

    def dependent(self) -> frozenset[int]:
        """The inputs that get a gradient for some of the results that are used after the loop, and not for others: it
        matters, then, whether all of those are differentiated."""
        single = [replace(self, last=frozenset({one}), each=frozenset()) for one in self.last]
        single += [replace(self, last=frozenset(), each=frozenset({one})) for one in self.each]
        arms = range(len(self.matrix))
        found = [frozenset.intersection(*(one.back(arm, one.last) for arm in arms)) for one in single]
        partly = frozenset[int]().union(*(one.uncertain() for one in single))
        return partly | (frozenset[int]().union(*found) - frozenset.intersection(*found) if found else frozenset())

    def uncertain(self) -> frozenset[int]:
        """The inputs that get a gradient in some runs only."""
        results, arms = self.results, range(len(self.matrix))
        met, pending = set[frozenset[int]](), [self.last]
        ever: set[int] = set()
        while pending and len(met) < MOST:
            live = pending.pop()
            for arm in arms:
                given = self.back(arm, live)
                ever |= given
                following = frozenset(i for i in given if i < results)
                if following not in met:
                    met.add(following)
                    pending.append(following)
        always = frozenset.intersection(*(self.back(arm, self.last) for arm in arms))
        carried = frozenset.intersection(*met) if not pending else frozenset()
        certain = frozenset(i for i in always if i >= results) | carried
        return frozenset(ever) - certain


class _Gate(torch.autograd.Function):
    """The tensor itself; whether a gradient gets through is said later."""

    @staticmethod
    def forward(ctx: Any, flow: Flow, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # where no gradient comes, none goes on
        ctx.flow = flow
        flow.begin()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is not None:
            ctx.flow.check()
        return None, None if getattr(ctx, "closed", False) else gradient


class _Used(torch.autograd.Function):
    """The tensor itself; it is noted whether a gradient comes to it."""

    @staticmethod
    def forward(ctx: Any, flow: Flow, number: int, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.flow, ctx.number = flow, number
        flow.used.add(number)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is not None:
            ctx.flow.met.add(ctx.number)
        return None, None, gradient


@dataclass(eq=False)
class Flow:
    """What is asked about the gradients of one loop, and done about them. ``asked``: the inputs that it is about."""

    flows: Flows
    asked: tuple[int, ...]
    used: set[int] = field(default_factory=set)
    met: set[int] = field(default_factory=set)
    key: int | None = None  # by which a graph knows it

    def __post_init__(self) -> None:
        self.gate, self.reach, self.close = _Gating(self), _Reaching(self), _closed

    def known_as(self, key: int) -> None:
        """From now on graphs know it by this key."""
        self.key = key
        register(key, self)  # type: ignore[arg-type]

    def begin(self) -> None:
        """The iterations begin."""
        self.used, self.met = set(), set()

    def check(self) -> None:
        """Gradients have come to all that is used after the loop, as was supposed. Raises Refused."""
        if self.used - self.met:
            what = "the gradients of a loop's iterations depend on the arms that these go"
            raise refused("branch-gradients", what, "And not all that the loop leaves is differentiated.")

    def reached(self, arms: Sequence[int]) -> list[bool]:
        """See ``switch_op.Reaching``."""
        if any(arm < 0 for arm in arms):
            return [False] * len(self.asked)
        found = self.flows.reached(arms)
        return [index in found for index in self.asked]

    def mark(self, number: int) -> Any:
        """A function that gives a tensor that is used after the loop."""
        return _Marking(self, number)


@dataclass(frozen=True, eq=False)
class _Gating:
    flow: Flow
    __name__ = "gate"

    def __call__(self, tensor: torch.Tensor) -> Any:
        return _Gate.apply(self.flow, tensor)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class _Marking:
    flow: Flow
    number: int
    __name__ = "used"

    def __call__(self, tensor: torch.Tensor) -> Any:
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor.view_as(tensor)
        return _Used.apply(self.flow, self.number, tensor)  # type: ignore[no-untyped-call]


@dataclass(frozen=True, eq=False)
class _Reaching:
    flow: Flow
    __name__ = "reached"

    def __call__(self, arms: torch.Tensor) -> torch.Tensor:
        if self.flow.key is None:
            self.flow.known_as(new_key())
        return REACHED(self.flow.key, len(self.flow.asked), arms)  # type: ignore[no-any-return]


def _closed(tensor: torch.Tensor) -> None:
    """No gradient gets through the gate that gave this tensor."""
    if tensor.grad_fn is not None:
        tensor.grad_fn.closed = True  # type: ignore[attr-defined]


def asking_of(func: Any) -> tuple[Flow, str, int] | None:
    """Whose question it is, and which one, if the function asks or does something about gradients."""
    if not isinstance(func, _Gating | _Marking | _Reaching):
        return None
    return func.flow, func.__name__, func.number if isinstance(func, _Marking) else 0


def asked_by(flow: Flow, name: str, number: int) -> Any:
    """The function of which ``asking_of`` says this."""
    return {"gate": flow.gate, "reached": flow.reach}.get(name) or flow.mark(number)
