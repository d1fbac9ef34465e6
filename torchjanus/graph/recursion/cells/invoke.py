"""All calls of a recursive function as one differentiable function: JANUS's InvokeOp (sections 4.2.1 and 5).

``Invocation`` is called like a function of torch and becomes one node of the step's graph in each direction.
``EntryCalls`` is what a step calls. Independent of how calls run and of how the schedule is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.errors import Refusal, Refused
from torchjanus.graph.operators.loop_op import Tangents, TensorSignature, at_places, signature_text
from torchjanus.graph.recursion.cells.invoke_op import BACKWARD, FORWARD, laid_out
from torchjanus.graph.recursion.cells.partition import Partition, TracedCells, partition_of
from torchjanus.graph.recursion.variants.plan import LevelSchedule, Recursion

__all__ = ["EntryCalls", "Invocation", "NotBatched"]


class NotBatched(Refused):
    """Recursive calls cannot be batched and have to be unrolled."""


@dataclass(eq=False)
class Invocation:
    """The calls of a recursive function at one place of the step, as one differentiable function.

    It takes the number of entry calls, the shared tensors, the rows that the step supplies (a stack for each seed), and
    the lengths of its lists followed by the numbers of rows of its tables. It returns for each result a stack of one
    row per entry call, or all rows of a list, and then a stack of one boolean for each predicate. A graph that contains
    it runs, forward and backward, within ``use(forest)``.

    Gradients that no call of the forest reaches are zeros; eager's would be None. Raises Refused if a cell cannot be
    batched.
    """

    recursion: Recursion
    traced: TracedCells = field(default_factory=TracedCells)  # shared by recursions that have cells in common
    made: dict[Any, Partition] = field(default_factory=dict)
    notify: Callable[[Partition], object] | None = None  # called with each new partition, for use outside of a graph
    __name__ = "invoke"

    def __call__(
        self,
        roots: int,
        shared: Sequence[torch.Tensor],
        seeds: Sequence[torch.Tensor],
        lengths: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        found = _Calls.apply(  # type: ignore[no-untyped-call]
            self.partition(shared, seeds), roots, tuple(lengths), *shared, *seeds
        )
        return list(found)

    def partition(self, shared: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor]) -> Partition:
        """Return the partition for tensors with these gradient requirements. Raises Refused."""
        grad = torch.is_grad_enabled()
        wanted = tuple(grad and tensor.requires_grad for tensor in (*shared, *seeds))
        partition = self.made.get(wanted)
        if partition is None:
            partition = self.made[wanted] = partition_of(
                self, self.recursion, wanted[: len(shared)], wanted[len(shared) :], self.traced
            )
            if self.notify is not None:
                self.notify(partition)
        return partition

    def use(self, forest: LevelSchedule) -> AbstractContextManager[None]:
        """Return a context in which, for this thread, the calls are those of ``forest``. Its saved values are freed at
        the end. For several recursions at once see ``laid_out``."""
        return laid_out({self: forest})


@dataclass(frozen=True, eq=False)
class EntryCalls:
    """The ``count`` recursive calls that a step makes at one place, as one function.

    ``used``: which shared tensors some call uses; the others have no gradient. ``shown``: whether results may leave the
    step. ``tables``: the indices of the shared tensors that may have fewer rows than the recursion's (-1: not used).

    It takes the shared tensors, the rows that the step supplies (a list for each seed) and the rows of its lists. It
    returns the results of one call after the other, then all rows of each list, then the predicates. Raises NotBatched.
    """

    invocation: Invocation
    count: int
    used: tuple[bool, ...]
    shown: bool
    tables: tuple[int, ...] = ()
    __name__ = "recursion"

    def __call__(
        self,
        shared: Sequence[torch.Tensor],
        seeds: Sequence[Sequence[torch.Tensor]],
        lists: Sequence[torch.Tensor] = (),
    ) -> list[torch.Tensor]:
        shared = [tensor if used else tensor.detach() for tensor, used in zip(shared, self.used, strict=True)]
        stacks = [torch.stack(list(rows)) for rows in seeds]
        recursion = self.invocation.recursion
        bounds = [0 if index < 0 else shared[index].size(0) for index in self.tables]
        for index in {*self.tables} - {-1}:
            shared[index] = _filled_up(shared[index], recursion.shared[index].size(0))
        sizes = [*(one.size() for one in recursion.shared), *(recursion.buffers[n].shape for n in recursion.seeds)]
        for tensor, size in zip([*shared, *(stack[0] for stack in stacks)], sizes, strict=True):
            # Cells are specialised to these sizes; to compare them makes them guards.
            if tuple(map(int, tensor.size())) != tuple(size):
                raise NotBatched(_of_other_sizes(tuple(map(int, tensor.size())), tuple(size)))
        try:
            made = self.invocation(self.count, shared, stacks, [*(rows.size(0) for rows in lists), *bounds])
        except Refused as refused:
            raise NotBatched(refused.refusal) from refused
        results, by_root = len(recursion.results), recursion.by_root
        found = [stack.unbind(0) for stack in made[:by_root]]
        rows = [column[root] for root in range(self.count) for column in found]
        if self.shown:  # each result is a tensor of its own
            rows = [row.clone() for row in rows]
        return [*rows, *made[by_root:results], *(truth.unbind(0)[0] for truth in made[results:])]


def _filled_up(table: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the table padded with zeros to so many rows. Raises NotBatched if it has more."""
    if table.size(0) > rows:
        raise NotBatched(_of_other_sizes((int(table.size(0)),), (rows,)))
    return torch.cat([table, table.new_zeros((rows - table.size(0), *table.shape[1:]))])


def _of_other_sizes(now: tuple[int, ...], before: tuple[int, ...]) -> Refusal:
    what = f"recursive calls use tensors of sizes {list(before)} and {list(now)}"
    return Refusal("recursion-sizes", what, "A graph of all calls is made for one size.", "Let them be of one size.")


class _Calls(torch.autograd.Function):
    """All calls forward, with all calls backward as their derivative."""

    @staticmethod
    def forward(
        ctx: Any, partition: Partition, roots: int, lengths: tuple[int, ...], *given: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        count = len(partition.recursion.shared)
        shared, seeds = list(given[:count]), list(given[count:])
        by_root = partition.recursion.by_root
        rows = [
            TensorSignature(one.dtype, (roots, *one.shape), False, one.device)
            for one in partition.result_buffers[:by_root]
        ]
        rows += [TensorSignature(one.dtype, one.shape, True, one.device) for one in partition.result_buffers[by_root:]]
        gives = signature_text(
            [*rows, *(TensorSignature(torch.bool, (1,), False) for _ in range(partition.recursion.asked))]
        )
        made = tuple(FORWARD(partition.key, gives, list(lengths), shared, seeds))
        ctx.mark_non_differentiable(*(v for i, v in enumerate(made) if i not in partition.tangents))
        if partition.wanted or partition.wanted_seeds:
            ctx.save_for_backward(*shared, *made)
            ctx.gradients = signature_text(
                [
                    TensorSignature(shared[i].dtype, tuple(shared[i].size()), False, shared[i].device)
                    for i in partition.wanted
                ]
                + [
                    TensorSignature(seeds[i].dtype, tuple(seeds[i].size()), False, seeds[i].device)
                    for i in partition.wanted_seeds
                ]
            )
        ctx.partition = partition
        return made

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        partition: Partition = ctx.partition
        flows, count = Tangents.of(partition.tangents, tangents), len(partition.recursion.shared)
        inputs = count + len(partition.recursion.seeds)
        if not flows.tangents:
            return (None,) * (3 + inputs)
        shared, made = list(ctx.saved_tensors[:count]), list(ctx.saved_tensors[count:])
        found = BACKWARD(partition.key, ctx.gradients, flows.present, flows.tangents, shared, made)
        places = (*partition.wanted, *(count + index for index in partition.wanted_seeds))
        return (None, None, None, *at_places(inputs, places, found))
