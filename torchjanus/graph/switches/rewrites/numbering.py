"""Renumbers the tensors of a rewritten run, so that runs that do the same have equal traces."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef

__all__ = ["Renumbering"]


class Renumbering(TraceRewriter):
    """Numbers the tensors in the order in which they occur in the run."""

    def __init__(self, old: Trace) -> None:
        super().__init__(old)
        self.numbers: dict[int, int] = {}
        by_access_path: dict[Any, list[int]] = {}
        for number, access_path in old.access_paths.items():
            by_access_path.setdefault(access_path, []).append(number)
        for event in old.events:
            found: list[int] = []
            if isinstance(event, HeapRead):
                found = by_access_path.get(event.access_path, [])
            elif isinstance(event, Op):
                found = [ref.number for ref in event.outs]
            for number in found:
                self.numbers.setdefault(number, len(self.numbers))
        for number in range(len(old.tensors)):
            self.numbers.setdefault(number, len(self.numbers))

    def tensor(self, number: int, after: int) -> int:
        return self.numbers[number]

    def final(self, number: int) -> int:
        return self.numbers[number]

    def operation(self, op: Op, after: int) -> Op:
        made = super().operation(op, after)
        return replace(made, outs=tuple(TensorRef(self.numbers[ref.number]) for ref in op.outs))

    def held(self, value: Any) -> Any:
        if value[0] == "tensor" and value[1] >= 0:
            return ("tensor", self.numbers[value[1]])
        return super().held(value)

    def trace(self) -> Trace:
        old = self.old
        events = [self.event(event, 0) for event in old.events]
        order = sorted(self.numbers, key=self.numbers.__getitem__)
        return self.made(
            events,
            tensors=[old.tensors[number] for number in order],
            memory=[old.memory[number] for number in order],
            access_paths={self.numbers[number]: access_path for number, access_path in old.access_paths.items()},
            kinds={self.numbers[number]: kind for number, kind in old.kinds.items()},
            **self.moved(range(len(old.events) + 1)),  # no event moves, but trip counts and states name tensors
        )
