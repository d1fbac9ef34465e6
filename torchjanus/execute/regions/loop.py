"""Runs the rounds of loops, as many as there are, by ATen calls: what a loop node of a graph does.

The halves of a round (see graph.loops) are printed as Python, as the replay executor prints a whole step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchjanus.execute.regions.switch import ReplayChooser, choices_of
from torchjanus.execute.running.gate import below_autograd
from torchjanus.execute.running.partition import apart, printed
from torchjanus.graph.ir.program import Program
from torchjanus.graph.operators.loop_op import known_rounds, register
from torchjanus.graph.regions.loop_bytes import loops_in
from torchjanus.graph.regions.partition import Halves, Source

__all__ = ["ReplayRounds", "loops_of", "ready"]


class ReplayRounds:
    """See graph.loop_op.Rounds. Forward results are bitwise those of the unrolled loop."""

    def __init__(self, halves: Halves) -> None:
        self.halves = halves
        self._forward = printed(halves.forward)
        self._backward = None if halves.backward is None else printed(halves.backward)
        self._sizes = [source.index for source in halves.forward.sources if source.kind == "size"]
        self._rest = len(halves.gives) - len(halves.histories)

    def forward(
        self,
        count: int,
        carried: Sequence[torch.Tensor],
        stacked: Sequence[torch.Tensor],
        invariants: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        halves = self.halves.sized(sizes)
        first, own = halves.carried, [sizes[index] for index in self._sizes]
        stacked = first_rows(count, stacked)
        rows = list(zip(*(tensor.unbind(0) for tensor in stacked), strict=True)) if stacked else [()] * count
        current = list(carried)
        collected: list[list[torch.Tensor]] = [[] for _ in range(self._rest - first)]
        histories: list[list[torch.Tensor]] = [[] for _ in halves.histories]
        with below_autograd():
            for row in rows:
                for history, index in zip(histories, halves.histories, strict=True):
                    history.append(current[index])
                made = self._forward((*own, *current, *row, *invariants), ())
                current = made[:first]
                for column, value in zip(collected, made[first:], strict=True):
                    column.append(value)
            if not count:
                current = [tensor.clone() for tensor in carried]
            stacks = [
                torch.stack(column) if count else given.empty(0)
                for column, given in zip((*collected, *histories), halves.gives[first:], strict=True)
            ]
        return [*current, *stacks]

    def backward(
        self,
        count: int,
        present: str,
        tangents: Sequence[torch.Tensor],
        kept: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        halves = self.halves.sized(sizes)
        assert self._backward is not None
        assert halves.backward is not None
        with below_autograd():
            reading = Reading(halves, count, present, tangents, kept, sizes)
            flowing = reading.flowing()
            gradients = Gradients(halves, flowing)
            sources = halves.backward.sources
            places = [(p, s.index) for p, s in enumerate(sources) if s.kind == "tangent" and s.index in flowing]
            columns = [reading.rows(source)[::-1] for source in sources]
            for row in zip(*columns, strict=True) if columns else [()] * count:
                given = list(row)
                for place, index in places:
                    given[place] = flowing[index]
                gradients.take(self._backward(given, ()))
            return gradients.results(count)

    def until(
        self,
        go: bool,
        limit: int,
        ready: Sequence[torch.Tensor],
        carried: Sequence[torch.Tensor],
        stacked: Sequence[torch.Tensor],
        invariants: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        halves, own = self.halves.sized(sizes), [sizes[index] for index in self._sizes]
        first, results, forward = halves.carried, halves.results, self._forward
        current, made, count = list(carried), list[torch.Tensor](), 0
        with below_autograd():
            # Where something before has gone another way than assumed, these rounds might never come to an end.
            going = all(map(bool, ready))
            while going:
                row = [tensor.select(0, count) for tensor in stacked]
                made = forward((*own, *current, *row, *invariants), ())
                current = made[:first]
                count += 1
                going = bool(made[results - 1]) == go and count != limit
            if not made:
                made = [*carried, *(one.zeros() for one in halves.gives[first:results])]
            return apart([*made[:results], torch.tensor(count)], carried, stacked, invariants)

    def until_backward(
        self,
        count: int,
        present: str,
        tangents: Sequence[torch.Tensor],
        carried: Sequence[torch.Tensor],
        stacked: Sequence[torch.Tensor],
        invariants: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
    ) -> list[torch.Tensor]:
        halves = self.halves.sized(sizes)
        made = self.forward(count, carried, stacked, invariants, sizes)
        kept = []
        for source in halves.kept:
            match source.kind:
                case "carried":
                    kept.append(carried[source.index])
                case "stacked":
                    kept.append(stacked[source.index])
                case "invariant":
                    kept.append(invariants[source.index])
                case kind:
                    kept.append(made[source.index + (halves.carried if kind == "output" else halves.results)])
        given, rows = iter(tangents), list[torch.Tensor]()
        for index, flag in zip(halves.tangents, present, strict=True):
            if flag == "1":
                tangent = next(given)
                if index >= halves.carried:  # only the last round's output is seen
                    last, tangent = tangent, tangent.new_zeros((count, *tangent.size()))
                    tangent[-1:] = last
                rows.append(tangent)
        gradients = self.backward(count, present, rows, kept, sizes)
        for position, index in enumerate(halves.wanted):
            if halves.gradients[position].stacked:
                taken, whole = gradients[position], stacked[index - halves.carried]
                gradients[position] = taken.new_zeros((whole.size(0), *taken.size()[1:]))
                gradients[position][:count] = taken
        return gradients


class Reading:
    """Where the rounds backwards find what they are given."""

    def __init__(
        self,
        halves: Halves,
        count: int,
        present: str,
        tangents: Sequence[torch.Tensor],
        kept: Sequence[torch.Tensor],
        sizes: Sequence[int] = (),
    ) -> None:
        self._halves, self._count, self._sizes = halves, count, sizes
        self._kept = dict(zip(halves.kept, kept, strict=True))
        for source, tensor in self._kept.items():
            if source.kind == "stacked":
                self._kept[source] = first_rows(count, [tensor])[0]
        given = iter(tangents)
        self._tangents = {
            index: next(given) if flag == "1" else None for index, flag in zip(halves.tangents, present, strict=True)
        }
        self._unbound: dict[Source, Sequence[torch.Tensor]] = {}

    def flowing(self) -> dict[int, torch.Tensor]:
        """The gradients of the carried values after the last round."""
        halves = self._halves
        return {
            index: halves.gives[index].zeros() if tangent is None else tangent
            for index, tangent in self._tangents.items()
            if index < halves.carried
        }

    def rows(self, source: Source) -> Sequence[Any]:
        """What the source is in each round, first to last; of a gradient that flows, nothing yet."""
        halves, count, index = self._halves, self._count, source.index
        match source.kind:
            case "invariant":
                return (self._kept[source],) * count
            case "size":
                return (self._sizes[index],) * count
            case "tangent" if index < halves.carried:
                return (None,) * count
            case "tangent":
                tangent = self._tangents[index]
                return (halves.gives[index].zeros(),) * count if tangent is None else tangent.unbind(0)
            case "carried" if index in halves.shown:
                return (self._kept[source], *self._rows(halves.shown[index]))[:count]
            case "carried":
                saved = len(halves.gives) - halves.results - len(halves.histories)
                return self._rows(Source("saved", saved + halves.histories.index(index)))
        return self._rows(source)

    def stack(self, source: Source) -> torch.Tensor:
        """What the source is in all rounds, or in each."""
        if source.kind == "tangent":
            given, tangent = self._halves.gives[source.index], self._tangents[source.index]
            zeros = given.zeros()
            return zeros.expand(self._count, *given.size).contiguous() if tangent is None else tangent
        return self._kept[source].contiguous() if source.kind == "stacked" else self._kept[source]

    def all_rows(self, source: Source) -> torch.Tensor:
        """What the source is in each round, stacked; not of what is the same in all."""
        halves = self._halves
        if source.kind != "carried":
            return self.stack(source)
        if source.index in halves.shown:
            return torch.cat([self._kept[source].unsqueeze(0), self._kept[halves.shown[source.index]][:-1]])
        return torch.stack(list(self.rows(source)))

    def _rows(self, source: Source) -> Sequence[torch.Tensor]:
        rows = self._unbound.get(source)
        if rows is None:
            rows = self._unbound[source] = self._kept[source].unbind(0)
        return rows


class Gradients:
    """Gathers what the rounds give: carried gradients flow on, those of rows are stacked, others are summed."""

    def __init__(self, halves: Halves, flowing: dict[int, torch.Tensor]) -> None:
        self.halves = halves
        self.flowing = flowing
        self._rounds = 0
        first, second = halves.carried, halves.carried + halves.stacked
        wanted = list(enumerate(halves.wanted))
        self._carried = [(position, index) for position, index in wanted if index < first]
        self._rows: dict[int, list[torch.Tensor]] = {p: [] for p, index in wanted if first <= index < second}
        self._sums: dict[int, torch.Tensor | None] = {p: None for p, index in wanted if index >= second}
        # A carried value of which no round gives a gradient has none in the round before.
        given = {index for _, index in self._carried}
        self._without = {index: halves.gives[index].zeros() for index in flowing if index not in given}

    def take(self, made: Sequence[torch.Tensor]) -> None:
        """What one round gave."""
        for position, index in self._carried:
            self.flowing[index] = made[position]
        self.flowing.update(self._without)
        for position, rows in self._rows.items():
            rows.append(made[position])
        for position, known in self._sums.items():
            if known is None:
                self._sums[position] = made[position]
            elif self._rounds == 1:  # what a round gave may be two things at once
                self._sums[position] = known + made[position]
            else:
                known.add_(made[position])
        self._rounds += 1

    def results(self, count: int) -> list[torch.Tensor]:
        """The gradients of the loop's inputs, in the order of ``wanted``."""
        found: list[torch.Tensor] = []
        for position, (index, given) in enumerate(zip(self.halves.wanted, self.halves.gradients, strict=True)):
            if position in self._rows:
                rows = self._rows[position]
                found.append(torch.stack(rows[::-1]) if count else given.empty(0))
            else:
                made = self._sums[position] if position in self._sums else self.flowing.get(index)
                found.append(given.zeros() if made is None else made if count else made.clone())
        return apart(found)


def first_rows(count: int, stacked: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The rows that the rounds take. Raises IndexError where a round would be without one, as eager does."""
    if any(tensor.size(0) < count for tensor in stacked):
        raise IndexError(f"{count} rounds of a loop, and {min(tensor.size(0) for tensor in stacked)} rows")
    return [tensor if tensor.size(0) == count else tensor[:count] for tensor in stacked]


def loops_of(program: Program) -> Iterator[Halves]:
    """The loops that a program runs, those within others too."""
    for loop in loops_in(program):
        yield from loop.made.values()


def ready(program: Program) -> list[Any]:
    """Who runs the loops of the program, and the rounds in which tensors decide; whoever keeps them can run its
    graph."""
    made: list[Any] = []
    for choice in choices_of(program):
        chooser: Any = known_rounds(choice.key)
        if chooser is None:
            chooser = ReplayChooser(choice)
            register(choice.key, chooser)
        made.append(chooser)
    for halves in loops_of(program):
        rounds = known_rounds(halves.key)
        if rounds is None:
            rounds = ReplayRounds(halves)
            register(halves.key, rounds)
        made.append(rounds)
    return made
