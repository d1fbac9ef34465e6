"""What lowering a Program yields: one functional ATen graph and how to make the call's results from it.

Knows nothing of how the graph is made, nor of how it is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from torchjanus.core.errors import NOWHERE, JanusError, Place
from torchjanus.graph.ir.program import Assertion, Program, Ref, Symbol
from torchjanus.trace.values import Expr, leaves

__all__ = [
    "Fresh",
    "FromInput",
    "GradState",
    "Leaf",
    "Lowered",
    "Nothing",
    "Pin",
    "Replaced",
    "Result",
    "Source",
    "ViewOf",
]


class GradState(Enum):
    """What eager autograd would say of a result."""

    PLAIN = "plain"  # requires_grad is False
    LEAF = "leaf"  # requires_grad, and nothing computed it
    FREED = "freed"  # requires_grad, but its backward graph has been used up: another backward raises
    LIVE = "live"  # requires_grad, and a later backward through it would have to work


@dataclass(frozen=True, slots=True)
class Fresh:
    """Value number ``index`` of the graph. Two results with one index are one and the same tensor object."""

    index: int

    def __repr__(self) -> str:
        return f"value {self.index}"


@dataclass(frozen=True, slots=True)
class FromInput:
    """Input ``index`` itself, the very object, as it is after the commit."""

    index: int

    def __repr__(self) -> str:
        return f"input {self.index}"


@dataclass(frozen=True, slots=True)
class ViewOf:
    """A view, made after the commit: ``base.as_strided(size, stride, base.storage_offset() + offset)``. ``conjugated``,
    ``negated``: the view is read so and the base is not, or the other way round (``x.conj()`` changes no memory)."""

    base: Fresh | FromInput
    size: tuple[int | Expr, ...]
    stride: tuple[int | Expr, ...]
    offset: int | Expr
    conjugated: bool = False
    negated: bool = False

    @property
    def bits(self) -> str:
        """The methods to be called on what ``as_strided`` gives, as text."""
        return f"{'.conj()' if self.conjugated else ''}{'._neg_view()' if self.negated else ''}"

    def __repr__(self) -> str:
        return f"view of {self.base} [{', '.join(map(str, self.size))}]"


@dataclass(frozen=True, slots=True)
class Nothing:
    """None: a leaf whose ``.grad`` is None after the call."""

    def __repr__(self) -> str:
        return "None"


Source = Fresh | FromInput | ViewOf | Nothing


@dataclass(frozen=True, slots=True)
class Result:
    """Where one tensor of the call's results comes from. ``inference``: eager would have made an inference tensor.
    ``base``: what it is a view of to autograd; a result that has none and lies in the memory of another was detached
    from that. ``creation``: how autograd has come by the view, which says whether it may be changed in place.
    ``apart``: its changes are not counted as the other's (``x.data``). ``hidden``: it is only seen as the base of
    others, and there may be several alike, which this number tells apart."""

    source: Source
    state: GradState = GradState.PLAIN
    inference: bool = False
    base: Result | None = None
    creation: str = "DEFAULT"
    apart: bool = False
    hidden: int | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """The ``.grad`` of input ``index`` after the call. ``changed`` is False where it is the object it was at entry.

    (An unchanged object may still have been updated in place; then it is among ``Lowered.mutated``.) ``thrown``: what
    it was before is thrown away before anybody could look at it; ``later``: but not before anything else is done.
    """

    index: int
    result: Result
    changed: bool
    thrown: bool = False
    later: bool = False


@dataclass(frozen=True, slots=True)
class Replaced:
    """Input ``index`` lies in the memory of this result after the call: ``x.data = y``. ``changed``: it was changed in
    place, too, which is counted (``_version``)."""

    index: int
    result: Result
    changed: bool


@dataclass(frozen=True, slots=True)
class Lowered:
    """A whole call as one functional ATen graph.

    The graph takes the program's input tensors and then its slots as Python numbers; it returns a flat tuple of
    ``fresh`` values, then, if there are assertions, one bool tensor with a flag for each, then the new contents of the
    ``mutated`` inputs, in order. It changes nothing: whoever runs it commits. Random operations are drawn in
    eager's order. It must run with ``default_dtype`` in force.
    """

    program: Program
    graph: torch.fx.GraphModule
    fresh: int
    mutated: tuple[int, ...]
    outputs: tuple[Result, ...]
    leaves: tuple[Leaf, ...]
    requires_grad_set: tuple[tuple[int, bool], ...]  # inputs whose requires_grad flag the call leaves changed
    pinned: Mapping[int, float | int]  # slots burnt in as these constants: each needs a value guard
    pin_reasons: Mapping[int, str]
    random: bool
    default_dtype: torch.dtype
    nodes: int
    conditions: tuple[Expr, ...] = ()  # what must hold of the sizes of the inputs
    measures: tuple[int | Expr, ...] = ()  # the program's, as the host computes them
    drawn: tuple[int, ...] = ()  # for each of the program's cuts, how many random operations come before it
    replaced: tuple[Replaced, ...] = ()
    restored: tuple[int, ...] = ()  # inputs that are written to, which is counted, and have their old contents after it
    sized: tuple[
        Expr, ...
    ] = ()  # what it asserts of sizes that it finds out by itself, behind its program's assertions
    lent: int | None = None  # inputs behind so many are the run's own, and need not outlive their last use

    @property
    def assertions(self) -> tuple[Assertion, ...]:
        """What its flags stand for. (What is asked of sizes the program has not asked of a tensor.)"""
        asked = (
            Assertion(Ref(-1), True, len(self.program.nodes), self._place_of(condition)) for condition in self.sized
        )
        return (*self.program.assertions, *asked)

    def _place_of(self, condition: Expr) -> Place:
        """Where a selection stands that finds out a size of which this is asked."""
        asked = {leaf.token for leaf in leaves(condition)}
        sizes = [Symbol(k) for k, one in enumerate(self.program.dimensions) if one.expr.token in asked and one.made]
        return next((node.place for node in self.program.nodes if node.args and node.args[-1] in sizes), NOWHERE)

    @property
    def flags(self) -> int | None:
        """The position of the flags in the graph's output, or None where there are none."""
        return self.fresh if self.program.assertions or self.sized else None

    @property
    def updates(self) -> int:
        """The position of the first update in the graph's output."""
        return self.fresh + (self.flags is not None)

    def __str__(self) -> str:
        """The graph and its results as text for people."""
        lines = [f"graph: {self.nodes} operations, {len(self.program.inputs)} inputs, {len(self.program.slots)} slots"]
        for node in self.graph.graph.nodes:
            if node.op == "placeholder":
                lines.append(f"  {node.name}: {_describe(node.meta.get('val'))}")
            elif node.op == "output":
                lines.append(f"  return {', '.join(map(str, node.args[0]))}")
            else:
                arguments = [*map(str, node.args), *(f"{key}={value}" for key, value in node.kwargs.items())]
                described = _describe(node.meta.get("val"))
                lines.append(f"  {node.name} = {node.target}({', '.join(arguments)})  # {described}")
        for number, result in enumerate(self.outputs):
            lines.append(f"  output {number}: {result.source} ({result.state.value})")
        for position, index in enumerate(self.mutated, self.updates):
            name = self.program.inputs[index].name
            lines.append(f"  commit: input {index}{f' ({name})' if name else ''} becomes value {position}")
        lines.extend(f"  grad of input {leaf.index}: {leaf.result.source}" for leaf in self.leaves if leaf.changed)
        lines.extend(f"  memory of input {one.index}: {one.result.source}" for one in self.replaced)
        for slot, value in self.pinned.items():
            lines.append(f"  slot {slot} is held at {value!r}: {self.pin_reasons[slot]}")
        for number, assertion in enumerate(self.assertions):
            lines.append(f"  assert {number}: {assertion.place} stays {assertion.expected}")
        return "\n".join(lines)


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}[{', '.join(map(str, value.shape))}]"
    return type(value).__name__ if not isinstance(value, list | tuple) else ", ".join(_describe(part) for part in value)


class Pin(JanusError):
    """These slots cannot vary in one graph: each must be held at a constant, guarded, or the path refused."""

    def __init__(self, slots: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"slot {index}: {reason}" for index, reason in slots.items()))
        self.slots = dict(slots)
