"""The operands of a switch operation: initial values of carried variables, and what each iteration reads.

Knows neither arms nor how the run is put together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.arms import ResolvedArms
from torchjanus.graph.switches.analysis.effects import is_shown
from torchjanus.graph.switches.analysis.index_predicates import ITERATION, NUMBER
from torchjanus.graph.switches.analysis.iterations import OUTSIDE, Source, subject_of
from torchjanus.graph.switches.rewrites.positions import PositionRewriter
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Fact
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Size

__all__ = ["OperandRewriter"]

_NUMBER = ((), (), torch.int64, torch.device("cpu"), False)


class OperandRewriter(PositionRewriter):
    """Makes the operands of one switch."""

    def operands(self, resolved: ResolvedArms) -> tuple[list[Any], list[Any]]:
        """Return the initial operands, None for those of each iteration, and the events that make them.

        The events include facts about the heap that iterations found."""
        old = self.old
        known = {subject_of(event) for event in old.events[: self.start] if isinstance(event, Fact)}
        latest = {subject_of(event): event for event in old.events[self.start :] if isinstance(event, Fact)}
        numbers = {access_path.token: number for number, access_path in self.access_paths.items()}
        inputs = {id(self.tensors[number]): number for number in self.access_paths}
        events = []
        for subject, fact in self.switches.facts.items():
            if subject in known:
                continue
            fact = latest.get(subject, fact)
            events.append(fact)
            if isinstance(fact, HeapRead) and fact.kind == "tensor" and fact.access_path.token not in numbers:
                if id(fact.value) in inputs:  # another path to a tensor that was found before
                    numbers[fact.access_path.token] = inputs[id(fact.value)]
                    continue
                number = numbers[fact.access_path.token] = inputs[id(fact.value)] = self.new()
                self.access_paths[number], self.tensors[number] = fact.access_path, fact.value
                self.kinds[number] = _kind(fact.value)
        initial = self.frames.states[0]
        given: list[Any] = []
        for place, name in enumerate(resolved.carried):
            if name not in initial and resolved.is_made(place):
                events.append(self._nothing(name))
                given.append(events[-1].outs[0].number)
            else:
                given.append(self._held(initial.get(name)))
        for source in resolved.fixed:
            if source[0] == "name":
                given.append(self._held(initial.get(source[1])))
            elif source == ITERATION:
                given.append(self._number(events, _zeros, "nothing", *_NUMBER[:4]))
            elif source[0] == NUMBER:
                given.append(self._number(events, _whole, "whole", self._compared(source[1])))
            elif source[0] == "blank":
                events.append(self._nothing(source[1]))
                given.append(events[-1].outs[0].number)
            elif source[0] == "indexed":
                given.append(None if self.is_for_all(source, resolved) else self.order(source, events))
            elif source[0] == OUTSIDE:
                given.append(self.known.tensor(source[1], numbers))
            else:
                given.append(None)
        return given, events

    def _number(self, events: list[Any], func: Any, name: str, *args: Any) -> int:
        """Append an operation that makes a tensor from a number; return the tensor."""
        number = self.new()
        self.kinds[number] = _NUMBER
        modes = replace(self.modes(), grad=False)
        events.append(Op(func, name, args, {}, (TensorRef(number),), modes, self.frames.place))
        return number

    def _compared(self, token: Any) -> Any:
        """Return a number of the host that iterations compare with. Raises NotMergeable where it is not known."""
        if token not in self.switches.compared:
            raise NotMergeable("branch-index", "an iteration compares its index with a number that is not known")
        expr = self.switches.compared[token]
        if isinstance(expr, Size):  # of a tensor from before the loop
            self.acting.fetched[expr.token] = self.kinds[expr.ref][0][expr.dim]
        return expr

    def _nothing(self, name: Any) -> Op:
        """Return the operation that makes the initial value of a variable that each iteration sets before any use."""
        like = self.frames.states[1].get(name, ("", -1))[1]
        if like not in self.kinds and not is_shown(name):
            raise NotMergeable("branch-carried", "a variable that some arms set has no known kind")
        size, stride, dtype, device, _ = name[1] if is_shown(name) else self.kinds[like]
        number = self.new()
        self.kinds[number] = (size, stride, dtype, device, False)
        modes = replace(self.modes(), grad=False)
        args = (size, stride, dtype, device)
        return Op(_zeros, "nothing", args, {}, (TensorRef(number),), modes, self.frames.place)

    @staticmethod
    def _held(value: Any) -> int:
        if value is None or value[0] != "tensor" or value[1] < 0:
            raise NotMergeable("branch-carried", "a variable holds no tensor where one is needed")
        return int(value[1])

    def kind_of_operand(self, resolved: ResolvedArms, place: int, given: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape, strides, dtype, device and whether gradients are required of an operand."""
        if place < len(resolved.carried):
            name = resolved.carried[place]
            if is_shown(name):
                return name[1]  # type: ignore[no-any-return]
            numbers = [value[1] for s in self.frames.states if (value := s.get(name)) and value[0] == "tensor"]
            kinds = [self.kinds[number] for number in numbers if number in self.kinds]
            if not kinds or len({kind[:1] + kind[2:4] for kind in kinds}) > 1:
                raise NotMergeable("branch-arms-differ", "arms give tensors of different types or devices")
            return (*kinds[-1][:4], any(kind[4] for kind in kinds))
        number = given[place]
        if resolved.fixed[place - len(resolved.carried)] == ITERATION:
            return _NUMBER
        if number is None or resolved.fixed[place - len(resolved.carried)][0] == "indexed":
            number = self.of_iteration(resolved.fixed[place - len(resolved.carried)], 0)
        if number not in self.kinds:
            raise NotMergeable("branch-carried", "a loop-carried variable has no known kind")
        return self.kinds[number]

    def of_iteration(self, source: Source, iteration: int) -> int:
        """Return the tensor that a scanned input is in this iteration."""
        if source[0] == "indexed":
            return int(self.picking(source)[0].op.outs[0].number)
        return self.known.tensor(("row", source[1], iteration + source[2]), {})

    def iteration(self, zero: int, iteration: int) -> Op:
        """Return the operation that makes the iteration index as a tensor."""
        number = self.new(zero)
        args = (TensorRef(zero), iteration + self.frames.begins)
        modes = replace(self.modes(), grad=False)
        return Op(torch.add, "torch.add", args, {}, (TensorRef(number),), modes, self.frames.place)


def _zeros(size: tuple[int, ...], stride: tuple[int, ...], dtype: Any, device: Any) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device).zero_()


def _whole(number: int) -> torch.Tensor:
    return torch.full((), number, dtype=torch.int64)


def _kind(tensor: torch.Tensor) -> tuple[Any, ...]:
    with torch._C.DisableTorchFunction():
        size, stride = tuple(tensor.size()), tuple(tensor.stride())
        return (size, stride, tensor.dtype, tensor.device, tensor.requires_grad)
