"""Determines which inputs of a switched loop receive gradients, which depends on the arms that its iterations take.

Eager leaves the gradient of an unused input None, and optimizers skip it. The graph therefore asserts which inputs
gradients reach; another outcome is another execution path. Works on gradient flow between results and inputs.
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

MOST = 256  # bound on the sets of carried variables that are visited

Matrix = Sequence[Sequence[Sequence[bool]]]  # for each arm and each result, whether its gradient flows into each input


@dataclass(frozen=True, slots=True)
class Flows:
    """Gradient flow through iterations.

    ``last``: results of the last iteration that are used after the loop; ``each``: results of all iterations that are.
    """

    matrix: Matrix
    last: frozenset[int]
    each: frozenset[int]

    def back(self, arm: int, live: Iterable[int]) -> frozenset[int]:
        """Return the inputs of an iteration that gradients of its live results reach."""
        rows = [self.matrix[arm][result] for result in {*live, *self.each}]
        return frozenset(i for row in rows for i, flows in enumerate(row) if flows)

    def reached(self, arms: Sequence[int]) -> frozenset[int]:
        """Return the inputs that gradients reach: carried ones before the first iteration, others in any iteration."""
        found: set[int] = set()
        live = self.last
        for arm in reversed(arms):
            given = self.back(arm, live)
            found |= given
            live = frozenset(i for i in given if i < self.results)
        return frozenset(i for i in found if i >= self.results) | live

    @property
    def results(self) -> int:
        """The number of results of an iteration, which is the number of its carried inputs."""
        return len(self.matrix[0])

    def dependent(self) -> frozenset[int]:
        """Return the inputs that gradients of some live-outs reach and those of others do not.

        For these it matters whether all live-outs are differentiated."""
        single = [replace(self, last=frozenset({one}), each=frozenset()) for one in self.last]
        single += [replace(self, last=frozenset(), each=frozenset({one})) for one in self.each]
        arms = range(len(self.matrix))
        found = [frozenset.intersection(*(one.back(arm, one.last) for arm in arms)) for one in single]
        partly = frozenset[int]().union(*(one.uncertain() for one in single))
        return partly | (frozenset[int]().union(*found) - frozenset.intersection(*found) if found else frozenset())

    def uncertain(self) -> frozenset[int]:
        """Return the inputs that gradients reach for some sequences of arms only."""
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
    """The identity; whether it passes gradients on is decided later."""

    @staticmethod
    def forward(ctx: Any, flow: Flow, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)  # without this, a missing gradient would arrive as zeros
        ctx.flow = flow
        flow.begin()
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor | None) -> Any:
        if gradient is not None:
            ctx.flow.check()
        return None, None if getattr(ctx, "closed", False) else gradient


class _Used(torch.autograd.Function):
    """The identity; records whether a gradient reaches it."""

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
    """The gradient checks of one loop. ``asked``: the inputs that they are about."""

    flows: Flows
    asked: tuple[int, ...]
    used: set[int] = field(default_factory=set)
    met: set[int] = field(default_factory=set)
    key: int | None = None  # the key that graphs refer to it by

    def __post_init__(self) -> None:
        self.gate, self.reach, self.close = _Gating(self), _Reaching(self), _closed

    def known_as(self, key: int) -> None:
        """Register it under a key that graphs refer to."""
        self.key = key
        register(key, self)  # type: ignore[arg-type]

    def begin(self) -> None:
        """Reset the records before the iterations."""
        self.used, self.met = set(), set()

    def check(self) -> None:
        """Check that gradients reached all live-outs that are used. Raises Refused."""
        if self.used - self.met:
            what = "the gradients of a loop's iterations depend on the arms that these take"
            raise refused("branch-gradients", what, "And not all that the loop leaves is differentiated.")

    def reached(self, arms: Sequence[int]) -> list[bool]:
        """Whether gradients reach each asked input, for the arms taken; see ``switch_op.Reaching``."""
        if any(arm < 0 for arm in arms):
            return [False] * len(self.asked)
        found = self.flows.reached(arms)
        return [index in found for index in self.asked]

    def mark(self, number: int) -> Any:
        """Return the function to apply to a live-out that is used after the loop."""
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
    """Close the gate that returned this tensor, so that it passes no gradient on."""
    if tensor.grad_fn is not None:
        tensor.grad_fn.closed = True  # type: ignore[attr-defined]


def asking_of(func: Any) -> tuple[Flow, str, int] | None:
    """Return the checks, the name and the number of a gate, mark or reach function; None for other functions."""
    if not isinstance(func, _Gating | _Marking | _Reaching):
        return None
    return func.flow, func.__name__, func.number if isinstance(func, _Marking) else 0


def asked_by(flow: Flow, name: str, number: int) -> Any:
    """Return the function from the result of ``asking_of``."""
    return {"gate": flow.gate, "reached": flow.reach}.get(name) or flow.mark(number)
