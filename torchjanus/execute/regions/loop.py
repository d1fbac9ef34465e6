"""Runs the iterations of loops, of any trip count, by ATen calls: what a loop node of a graph does.

The forward and the backward graph of an iteration (see graph.regions.loop) are printed as Python, as the replay
executor prints a whole step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from torchjanus.execute.regions.switch import ReplaySwitch, switches_of
from torchjanus.execute.running.gate import below_autograd
from torchjanus.execute.running.partition import apart, printed
from torchjanus.graph.ir.program import Program
from torchjanus.graph.operators.loop_op import LoopInputs, Tangents, runner_for
from torchjanus.graph.regions.loop_bytes import loops_in
from torchjanus.graph.regions.partition import Partition, Source

__all__ = ["ReplayLoop", "loops_of", "ready"]


class ReplayLoop:
    """See graph.operators.loop_op.Iterations. Forward results are bitwise those of the unrolled loop."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self._forward = printed(partition.forward)
        self._backward = None if partition.backward is None else printed(partition.backward)
        self._sizes = [source.index for source in partition.forward.sources if source.kind == "size"]
        self._rest = len(partition.gives) - len(partition.histories)

    def forward(self, count: int, given: LoopInputs, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
        partition = self.partition.sized(sizes)
        first, own = partition.carried, [sizes[index] for index in self._sizes]
        carried, stacked = given.carried, first_rows(count, given.stacked)
        rows = list(zip(*(tensor.unbind(0) for tensor in stacked), strict=True)) if stacked else [()] * count
        current = list(carried)
        collected: list[list[torch.Tensor]] = [[] for _ in range(self._rest - first)]
        histories: list[list[torch.Tensor]] = [[] for _ in partition.histories]
        with below_autograd():
            for row in rows:
                for history, index in zip(histories, partition.histories, strict=True):
                    history.append(current[index])
                made = self._forward((*own, *current, *row, *given.invariants), ())
                current = made[:first]
                for column, value in zip(collected, made[first:], strict=True):
                    column.append(value)
            if not count:
                current = [tensor.clone() for tensor in carried]
            stacks = [
                torch.stack(column) if count else one.empty(0)
                for column, one in zip((*collected, *histories), partition.gives[first:], strict=True)
            ]
        return [*current, *stacks]

    def backward(
        self, count: int, flows: Tangents, kept: Sequence[torch.Tensor], sizes: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        partition = self.partition.sized(sizes)
        assert self._backward is not None
        assert partition.backward is not None
        with below_autograd():
            reading = Reading(partition, count, flows, kept, sizes)
            flowing = reading.flowing()
            gradients = Gradients(partition, flowing)
            sources = partition.backward.sources
            places = [(p, s.index) for p, s in enumerate(sources) if s.kind == "tangent" and s.index in flowing]
            columns = [reading.rows(source)[::-1] for source in sources]
            for row in zip(*columns, strict=True) if columns else [()] * count:
                given = list(row)
                for place, index in places:
                    given[place] = flowing[index]
                gradients.take(self._backward(given, ()))
            return gradients.results(count)

    def until(
        self, go: bool, limit: int, ready: Sequence[torch.Tensor], given: LoopInputs, sizes: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        partition, own = self.partition.sized(sizes), [sizes[index] for index in self._sizes]
        first, results, forward = partition.carried, partition.results, self._forward
        carried, stacked, invariants = given
        current, made, count = list(carried), list[torch.Tensor](), 0
        with below_autograd():
            # If an earlier assertion does not hold, these iterations might never end.
            going = all(map(bool, ready))
            while going:
                row = [tensor.select(0, count) for tensor in stacked]
                made = forward((*own, *current, *row, *invariants), ())
                current = made[:first]
                count += 1
                going = bool(made[results - 1]) == go and count != limit
            if not made:
                made = [*carried, *(one.zeros() for one in partition.gives[first:results])]
            return apart([*made[:results], torch.tensor(count)], carried, stacked, invariants)

    def until_backward(
        self, count: int, flows: Tangents, given: LoopInputs, sizes: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        partition = self.partition.sized(sizes)
        made = self.forward(count, given, sizes)
        kept = partition.operands(made, given)
        tangents, rows = iter(flows.tangents), list[torch.Tensor]()
        for index, flag in zip(partition.tangents, flows.present, strict=True):
            if flag == "1":
                tangent = next(tangents)
                if index >= partition.carried:  # only the last iteration's output is used
                    last, tangent = tangent, tangent.new_zeros((count, *tangent.size()))
                    tangent[-1:] = last
                rows.append(tangent)
        gradients = self.backward(count, Tangents(flows.present, rows), kept, sizes)
        for position, index in enumerate(partition.wanted):
            if partition.gradients[position].stacked:
                taken, whole = gradients[position], given.stacked[index - partition.carried]
                gradients[position] = taken.new_zeros((whole.size(0), *taken.size()[1:]))
                gradients[position][:count] = taken
        return gradients


class Reading:
    """Provides the arguments of the backward iterations."""

    def __init__(
        self, partition: Partition, count: int, flows: Tangents, kept: Sequence[torch.Tensor], sizes: Sequence[int] = ()
    ) -> None:
        self._partition, self._count, self._sizes = partition, count, sizes
        self._kept = dict(zip(partition.kept, kept, strict=True))
        for source, tensor in self._kept.items():
            if source.kind == "stacked":
                self._kept[source] = first_rows(count, [tensor])[0]
        given, flags = iter(flows.tangents), zip(partition.tangents, flows.present, strict=True)
        self._tangents = {index: next(given) if flag == "1" else None for index, flag in flags}
        self._unbound: dict[Source, Sequence[torch.Tensor]] = {}

    def flowing(self) -> dict[int, torch.Tensor]:
        """Return the gradients of the carried values after the last iteration."""
        partition = self._partition
        return {
            index: partition.gives[index].zeros() if tangent is None else tangent
            for index, tangent in self._tangents.items()
            if index < partition.carried
        }

    def rows(self, source: Source) -> Sequence[Any]:
        """Return the values of the source by iteration, first to last; None for gradients of carried values."""
        partition, count, index = self._partition, self._count, source.index
        match source.kind:
            case "invariant":
                return (self._kept[source],) * count
            case "size":
                return (self._sizes[index],) * count
            case "tangent" if index < partition.carried:
                return (None,) * count
            case "tangent":
                tangent = self._tangents[index]
                return (partition.gives[index].zeros(),) * count if tangent is None else tangent.unbind(0)
            case "carried" if index in partition.shown:
                return (self._kept[source], *self._rows(partition.shown[index]))[:count]
            case "carried":
                saved = len(partition.gives) - partition.results - len(partition.histories)
                return self._rows(Source("saved", saved + partition.histories.index(index)))
        return self._rows(source)

    def stack(self, source: Source) -> torch.Tensor:
        """Return the values of the source in all iterations, stacked, or its single value."""
        if source.kind == "tangent":
            given, tangent = self._partition.gives[source.index], self._tangents[source.index]
            zeros = given.zeros()
            return zeros.expand(self._count, *given.size).contiguous() if tangent is None else tangent
        return self._kept[source].contiguous() if source.kind == "stacked" else self._kept[source]

    def all_rows(self, source: Source) -> torch.Tensor:
        """Return the values of the source by iteration, stacked. Not for loop invariants."""
        partition = self._partition
        if source.kind != "carried":
            return self.stack(source)
        if source.index in partition.shown:
            return torch.cat([self._kept[source].unsqueeze(0), self._kept[partition.shown[source.index]][:-1]])
        return torch.stack(list(self.rows(source)))

    def _rows(self, source: Source) -> Sequence[torch.Tensor]:
        rows = self._unbound.get(source)
        if rows is None:
            rows = self._unbound[source] = self._kept[source].unbind(0)
        return rows


class Gradients:
    """Gathers the gradients that iterations compute: those of carried values are carried on, those of rows stacked,
    others summed."""

    def __init__(self, partition: Partition, flowing: dict[int, torch.Tensor]) -> None:
        self.partition = partition
        self.flowing = flowing
        self._iterations = 0
        first, second = partition.carried, partition.carried + partition.stacked
        wanted = list(enumerate(partition.wanted))
        self._carried = [(position, index) for position, index in wanted if index < first]
        self._rows: dict[int, list[torch.Tensor]] = {p: [] for p, index in wanted if first <= index < second}
        self._sums: dict[int, torch.Tensor | None] = {p: None for p, index in wanted if index >= second}
        # A carried value for which no iteration computes a gradient has none in the iteration before.
        given = {index for _, index in self._carried}
        self._without = {index: partition.gives[index].zeros() for index in flowing if index not in given}

    def take(self, made: Sequence[torch.Tensor]) -> None:
        """Take the gradients of one iteration."""
        for position, index in self._carried:
            self.flowing[index] = made[position]
        self.flowing.update(self._without)
        for position, rows in self._rows.items():
            rows.append(made[position])
        for position, known in self._sums.items():
            if known is None:
                self._sums[position] = made[position]
            # one tensor may be two gradients of an iteration, so the first sum is a new tensor
            elif self._iterations == 1:
                self._sums[position] = known + made[position]
            else:
                known.add_(made[position])
        self._iterations += 1

    def results(self, count: int) -> list[torch.Tensor]:
        """Return the gradients of the loop's inputs, in the order of ``wanted``."""
        found: list[torch.Tensor] = []
        for position, (index, given) in enumerate(zip(self.partition.wanted, self.partition.gradients, strict=True)):
            if position in self._rows:
                rows = self._rows[position]
                found.append(torch.stack(rows[::-1]) if count else given.empty(0))
            else:
                made = self._sums[position] if position in self._sums else self.flowing.get(index)
                found.append(given.zeros() if made is None else made if count else made.clone())
        return apart(found)


def first_rows(count: int, stacked: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the rows that the iterations take. Raises IndexError where there are too few, as eager does."""
    if any(tensor.size(0) < count for tensor in stacked):
        raise IndexError(f"{count} iterations of a loop, and {min(tensor.size(0) for tensor in stacked)} rows")
    return [tensor if tensor.size(0) == count else tensor[:count] for tensor in stacked]


def loops_of(program: Program) -> Iterator[Partition]:
    """Yield the loops that a program runs, nested ones included."""
    for loop in loops_in(program):
        yield from loop.made.values()


def ready(program: Program) -> list[Any]:
    """Return the runners of the program's loops and switches. The graph can be run as long as they are kept."""
    made = [runner_for(one.key, partial(ReplaySwitch, one)) for one in switches_of(program)]
    return [*made, *(runner_for(one.key, partial(ReplayLoop, one)) for one in loops_of(program))]
