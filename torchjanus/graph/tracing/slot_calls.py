"""Traces once more only the calls that take numbers, where all else of a trace is the same whatever the numbers are.

A program is traced twice with different numbers, to find where they go. Most programs give them to an optimizer's
operations alone, outside of autograd: what such a call does depends on its arguments' layouts and its numbers. So it is
made once more by itself, on tensors like those that it had, and the second trace is the first one with the numbers that
differ. Where a call is another kind, the whole program is traced again. Knows nothing of graphs that are functional.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from torchjanus.core.trees import leaves_of
from torchjanus.graph.aten.in_place import traced
from torchjanus.graph.aten.symbolic_sizes import Symbolic
from torchjanus.graph.ir.program import Formula, Measured, Node, Program, Ref, Slot, Symbol
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.graph.tracing.node_tracing import FETCHES, NodeTracer, is_own
from torchjanus.graph.tracing.quiet import quiet
from torchjanus.graph.tracing.renumbered import TracedNumbers, geometries, leaves

__all__ = ["SlotCalls"]

# Functions and methods of C++; others may do anything.
_NATIVE = (type(torch.add), type(torch.Tensor.add_))


@dataclass(frozen=True, slots=True)
class _Operation:
    """One operation of a trace: a node's name, and what is compared of it."""

    name: str
    what: tuple[Any, ...]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, node: torch.fx.Node) -> _Operation:
        return cls(node.name, (node.op, str(node.target), geometries(node.meta.get("val"))), (*leaves(node),))


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the program that takes numbers: the fakes of its tensors, and the operations that it came to."""

    node: Node
    given: dict[int, FakeTensor]
    operations: list[_Operation]


@dataclass(slots=True)
class SlotCalls:
    """The calls of one trace that take numbers which are not ``held``. ``are_simple``: whether the others do not depend
    on the numbers."""

    program: Program
    held: Container[int]
    are_simple: bool = field(init=False)
    calls: list[_Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        program = self.program
        self.are_simple = not (program.dimensions or program.measures) and not any(
            isinstance(leaf, Slot) for node in program.nodes if is_own(node.func) for leaf in _leaves(node)
        )

    # -- the first trace ------------------------------------------------------------------------------------------

    def before(self, node: Node, values: dict[int, torch.Tensor]) -> torch.fx.Node | None:
        """Return the last node of the graph before a call that takes numbers; None if it takes none."""
        if not self.are_simple or not any(
            isinstance(leaf, Slot) and leaf.index not in self.held for leaf in _leaves(node)
        ):
            return None
        given = {leaf.index: values[leaf.index] for leaf in _leaves(node) if isinstance(leaf, Ref)}
        self.are_simple = _is_simple(node, [*given.values()])
        self.calls.append(_Call(node, given, []))  # type: ignore[arg-type]
        return _graph()._root.prev

    def after(self, last: torch.fx.Node | None, values: dict[int, torch.Tensor]) -> None:
        """Note what the call has come to. ``last``: what ``before`` has returned."""
        if last is None:
            return
        call = self.calls[-1]
        call.operations.extend(map(_Operation.of, _following(last)))
        made = (values[ref.index] for ref in call.node.outs)
        known = all(isinstance(one, FakeTensor) and one.constant is None for one in made)
        self.are_simple &= known and all(one.what[0] == "call_function" for one in call.operations)

    # -- the second one -------------------------------------------------------------------------------------------

    def renumbered(self, before: TracedNumbers, numbers: Sequence[float | int]) -> TracedNumbers | None:
        """Return the traced numbers ``before`` as they are with other ``numbers``; None if that is not known."""
        if not self.are_simple:
            return None
        others: dict[str, tuple[Any, ...]] = {}
        for call, made in zip(self.calls, self._made(numbers), strict=True):
            if [one.what for one in call.operations] != [one.what for one in made]:
                return None
            others.update((one.name, other.arguments) for one, other in zip(call.operations, made, strict=True))
        arguments = (others.get(name, old) for name, old in zip(before.names, before.arguments, strict=True))
        return replace(before, arguments=(*arguments,))

    def _made(self, numbers: Sequence[float | int]) -> list[list[_Operation]]:
        """Make the calls with these numbers, on other fakes, and return the operations of each."""
        found: list[list[_Operation]] = []
        tracer = NodeTracer(self.program, numbers, Symbolic(()), self.held)

        def run(*fakes: torch.Tensor) -> list[torch.Tensor]:
            rest = iter(fakes)
            with Ambient() as ambient:
                for call in self.calls:
                    values = {index: next(rest) for index in call.given}
                    ambient.switch(call.node.modes)
                    last = _graph()._root.prev
                    tracer.make(call.node, values)
                    found.append([*map(_Operation.of, _following(last))])
            return [*fakes]

        with FakeTensorMode(), torch.no_grad():
            fakes = [_like(one) for call in self.calls for one in call.given.values()]
        with quiet():
            traced(run, *fakes)
        return found


def _leaves(node: Node) -> Iterator[Any]:
    return iter(leaves_of((node.args, node.kwargs)))


def _graph() -> torch.fx.Graph:
    mode = get_proxy_mode()
    assert mode is not None
    return mode.tracer.graph


def _following(last: torch.fx.Node) -> Iterator[torch.fx.Node]:
    node = last.next
    while node.op != "root":
        yield node
        node = node.next


def _is_simple(node: Node, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether what a call does follows from its numbers and the layouts of its tensors, outside of autograd."""
    name = getattr(node.func, "__name__", "")
    tracked = node.modes.grad and not node.modes.inference
    return (
        name not in FETCHES
        and not node.modes.autocast
        and torch._C._functorch.get_dynamic_layer_stack_depth() == 0
        and not any(isinstance(leaf, Symbol | Measured | Formula) for leaf in _leaves(node))
        and isinstance(node.func, _NATIVE)
        and all(
            isinstance(one, FakeTensor)
            and one.constant is None
            and not one.is_conj()
            and not one.is_neg()
            and not (tracked and one.requires_grad)
            for one in tensors
        )
    )


def _like(tensor: FakeTensor) -> torch.Tensor:
    """Return a fake like another one, in memory of its own."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
