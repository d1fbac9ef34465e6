"""A loop whose body is compiled once for any trip count, as a differentiable function of torch (JANUS 4.2.1).

``Loop`` is called like a function of torch and becomes one node of the step's forward and one of its backward graph.
How iterations are executed, and how a loop was found, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.core.errors import Refusal, Refused, refused
from torchjanus.graph.ir.program import Program
from torchjanus.graph.operators.loop_op import (
    BACKWARD,
    FORWARD,
    FORWARD_RANDOM,
    UNTIL,
    UNTIL_BACKWARD,
    UNTIL_RANDOM,
    LoopInputs,
    Tangents,
    at_places,
    signature_text,
)
from torchjanus.graph.regions.partition import Partition, kind_of, partition_of, structure_of
from torchjanus.graph.regions.sizes import named, sizes_for
from torchjanus.graph.regions.switch import Switch

__all__ = ["FixedTripCount", "Loop", "TerminatedLoop"]


class FixedTripCount(Refused):
    """Refused because the trip count would have to be constant."""


@dataclass(eq=False)
class Loop:
    """The iterations of a loop as one differentiable function of torch.

    ``body``: one iteration. Its first ``carried`` inputs are loop-carried, the next ``stacked`` are one row each of a
    stacked tensor, the others are loop-invariant. Its outputs are the next carried values, then the iteration's
    outputs.

    A call takes the trip count and three lists of tensors. It returns the carried values after the last iteration, then
    each output of the iterations, stacked. Results are bitwise those of the unrolled loop; gradients agree up to
    rounding, since those of invariants are summed iteration by iteration.

    ``loose``: stacked tensors may have more rows than there are iterations. The runner checks the row count then.
    ``unseen``: outputs that may be cloned. ``trains``: iterations compute gradients themselves, and none flow
    through."""

    body: Program
    carried: int
    stacked: int
    made: dict[Any, Partition] = field(default_factory=dict)
    loose: bool = False
    unseen: frozenset[int] = frozenset()
    trains: bool = False
    __name__ = "loop"

    @property
    def shared(self) -> bool:
        """Whether loops of equal structure share their partitions.

        Blocks are compiled for a loop's own trip counts, so only loops that contain a switch share: paths that diverge
        after such a loop then have it in common."""
        return any(isinstance(node.func, Switch) for node in self.body.nodes)

    def __call__(
        self,
        count: Any,
        carried: Sequence[torch.Tensor],
        stacked: Sequence[torch.Tensor],
        invariants: Sequence[torch.Tensor],
        sizes: Sequence[Any] = (),
    ) -> list[torch.Tensor]:
        if self.loose and any(tensor.requires_grad for tensor in stacked):
            what = "the first rows of a tensor that requires gradients are taken by a number of iterations"
            raise FixedTripCount(Refusal("loop-training", what, "The size of their gradient is not known before."))
        if self.trains and any(tensor.requires_grad for tensor in (*carried, *stacked, *invariants)):
            what = "an iteration of the loop trains by what has a backward graph from before the loop"
            raise refused("loop-training", what, "It cannot be compiled once for all iterations.")
        stacked = [_evenly(tensor) for tensor in stacked]
        partition, known = self._partition(_kinds(carried, stacked, invariants), sizes)
        found = _LoopFunction.apply(  # type: ignore[no-untyped-call]
            partition, count, known, *carried, *stacked, *invariants
        )
        return list(found)

    def _partition(self, kinds: Sequence[tuple[Any, ...]], sizes: Sequence[Any]) -> tuple[Partition, list[Any]]:
        """Return the partition for these inputs, and the sizes to pass in."""
        given = named(kinds, sizes)
        key = (given.kinds, given.others, given.hints)
        partition = self.made.get(key)
        if partition is None:
            # In-place changes would not reach the original of a copy.
            copied = frozenset[int]() if self.trains else self.unseen
            partition = self.made[key] = partition_of(self.body, self.carried, self.stacked, given, self.shared, copied)
        return partition, sizes_for(partition.sizes, partition.conditions, given.values)

    def merged(self) -> Any:
        """Return the structural key: equal for loops whose iterations compute the same."""
        return (type(self), self.carried, self.stacked, self.loose, self.unseen, self.trains, structure_of(self.body))

    def inner(self) -> Iterator[Loop]:
        """Yield this loop and the loops within it."""
        yield self
        for node in self.body.nodes:
            if isinstance(node.func, Loop):
                yield from node.func.inner()


@dataclass(eq=False)
class TerminatedLoop(Loop):
    """A loop that a tensor ends: the last output of an iteration says whether another follows.

    A call takes the greatest trip count (-1: unbounded), tensors that must be true for a first iteration, and the lists
    of tensors. It returns the carried values after the last iteration, that iteration's outputs, and the trip count as
    a tensor. Stacked tensors may have more rows than there are iterations; gradients of the others are zeros.

    ``go``: the outcome on which the loop continues."""

    go: bool = True
    __name__ = "until"

    @property
    def shared(self) -> bool:
        return True

    def __call__(  # type: ignore[override]
        self,
        limit: Any,
        ready: Sequence[torch.Tensor],
        carried: Sequence[torch.Tensor],
        stacked: Sequence[torch.Tensor],
        invariants: Sequence[torch.Tensor],
        sizes: Sequence[Any] = (),
    ) -> list[torch.Tensor]:
        stacked = [_evenly(tensor) for tensor in stacked]
        partition, known = self._partition(_kinds(carried, stacked, invariants), sizes)
        if partition.random and partition.tangents:
            what = "the iterations of a loop that a tensor ends draw random numbers, and have gradients"
            raise refused("loop-random-gradients", what, "Its gradients need the iterations once more.")
        found = _TerminatedLoopFunction.apply(  # type: ignore[no-untyped-call]
            partition, self.go, limit, known, list(ready), *carried, *stacked, *invariants
        )
        return list(found)

    def merged(self) -> Any:
        """See ``Loop``."""
        return (*super().merged(), self.go)


class _TerminatedLoopFunction(torch.autograd.Function):
    """Iterates until a tensor ends the loop; its derivative runs as many iterations backwards."""

    @staticmethod
    def forward(
        ctx: Any,
        partition: Partition,
        go: bool,
        limit: Any,
        sizes: list[Any],
        ready: list[torch.Tensor],
        *given: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        gives = [replace(one, stacked=False) for one in partition.gives[: partition.results]]
        target = UNTIL_RANDOM if partition.random else UNTIL
        made = target(partition.key, signature_text(gives), go, limit, ready, *_lists(partition, given), sizes)
        ctx.mark_non_differentiable(*(one for i, one in enumerate(made) if i not in partition.tangents))
        ctx.save_for_backward(made[-1], *given)
        ctx.partition, ctx.sizes = partition, sizes
        return tuple(made)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        partition: Partition = ctx.partition
        flows = Tangents.of(partition.tangents, tangents)
        if not flows.tangents:
            return (None,) * (5 + partition.inputs)
        count, *tensors = ctx.saved_tensors
        wanted = zip(partition.wanted, partition.gradients, strict=True)
        rows = [tensors[index].size(0) for index, one in wanted if one.stacked]
        gives, lists = signature_text(partition.gradients), _lists(partition, tensors)
        made = UNTIL_BACKWARD(partition.key, gives, flows.present, count, flows.tangents, *lists, rows, ctx.sizes)
        return (None, None, None, None, None, *at_places(partition.inputs, partition.wanted, made))


class _LoopFunction(torch.autograd.Function):
    """Runs all iterations; its derivative runs them backwards."""

    @staticmethod
    def forward(
        ctx: Any, partition: Partition, count: Any, sizes: list[Any], *given: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        lists = _lists(partition, given)
        target = FORWARD_RANDOM if partition.random else FORWARD
        made = target(partition.key, signature_text(partition.gives), count, *lists, sizes)
        visible = tuple(made[: partition.results])
        ctx.mark_non_differentiable(*(v for i, v in enumerate(visible) if i not in partition.tangents))
        ctx.save_for_backward(*partition.operands(made, lists))
        ctx.partition, ctx.count, ctx.sizes = partition, count, sizes
        return visible

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        partition: Partition = ctx.partition
        flows = Tangents.of(partition.tangents, tangents)
        if not flows.tangents:
            return (None,) * (3 + partition.inputs)
        gives, kept = signature_text(partition.gradients), list(ctx.saved_tensors)
        made = BACKWARD(partition.key, gives, ctx.count, flows.present, flows.tangents, kept, ctx.sizes)
        return (None, None, None, *at_places(partition.inputs, partition.wanted, made))


def _lists(partition: Partition, given: Sequence[torch.Tensor]) -> LoopInputs:
    """Split the tensors into carried, stacked and invariant ones."""
    first, second = partition.carried, partition.carried + partition.stacked
    return LoopInputs(list(given[:first]), list(given[first:second]), list(given[second:]))


def _evenly(stacked: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a contiguous copy where the strides of its rows depend on dynamic sizes."""
    return stacked if all(isinstance(size, int) for size in stacked.stride()[1:]) else stacked.contiguous()


def _kinds(
    carried: Sequence[torch.Tensor], stacked: Sequence[torch.Tensor], invariants: Sequence[torch.Tensor]
) -> list[tuple[Any, ...]]:
    """Return the kinds of the inputs of one iteration."""
    return [*map(kind_of, carried), *map(_row, stacked), *map(kind_of, invariants)]


def _row(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return the kind of one row of a stacked tensor."""
    size, stride, *rest = kind_of(tensor)
    return (size[1:], stride[1:], *rest)
