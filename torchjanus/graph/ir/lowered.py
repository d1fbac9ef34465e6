"""The result of lowering a Program: one functional ATen graph, and how the results of the call are made from it.

Knows neither how the graph is made nor how it is run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch

from torchjanus.core.errors import NOWHERE, JanusError, Place, Refusal
from torchjanus.core.remarks import Remark
from torchjanus.graph.ir.program import Assertion, Program, Ref, Symbol
from torchjanus.trace.values import Expr, leaves

__all__ = [
    "Fresh", "FromInput", "GradState", "Leaf", "Lowered", "NoGradient", "Pin", "Pullback", "Replaced", "Result",
    "Saves", "Source", "ViewOf",
]  # fmt: skip


class GradState(Enum):
    """The autograd state that a result would have in eager mode."""

    PLAIN = "plain"  # requires_grad is False
    LEAF = "leaf"  # requires_grad, and nothing computed it
    FREED = "freed"  # requires_grad, but its backward graph has been freed: another backward raises
    LIVE = "live"  # requires_grad, and a later backward through it has to work


@dataclass(frozen=True, slots=True)
class Fresh:
    """Value number ``index`` of the graph. Two results with the same index are the same tensor object."""

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
    ``negated``: whether this bit differs from that of the base (``x.conj()`` changes no memory). ``dtype``: if it is
    another one, the base is ``reinterpreted(base, dtype)``, without these bits."""

    base: Fresh | FromInput
    size: tuple[int | Expr, ...]
    stride: tuple[int | Expr, ...]
    offset: int | Expr
    conjugated: bool = False
    negated: bool = False
    dtype: torch.dtype | None = None

    @property
    def bits(self) -> str:
        """The method calls, as text, that set these bits on the result of ``as_strided``."""
        return f"{'.conj()' if self.conjugated else ''}{'._neg_view()' if self.negated else ''}"

    def __repr__(self) -> str:
        return f"view of {self.base} [{', '.join(map(str, self.size))}]"


@dataclass(frozen=True, slots=True)
class NoGradient:
    """None: a leaf whose ``.grad`` is None after the call."""

    def __repr__(self) -> str:
        return "None"


Source = Fresh | FromInput | ViewOf | NoGradient


@dataclass(frozen=True, slots=True)
class Result:
    """How one tensor of the results is made. ``inference``: eager would have made an inference tensor. ``base``: the
    tensor that it is a view of to autograd; a result without one that shares the memory of another was detached from
    it. ``creation``: autograd's creation metadata of the view, which decides whether it may be changed in place.
    ``apart``: it has a version counter of its own (``x.data``). ``hidden``: it is visible only as the base of others;
    the number distinguishes equal ones."""

    source: Source
    state: GradState = GradState.PLAIN
    inference: bool = False
    base: Result | None = None
    creation: str = "DEFAULT"
    apart: bool = False
    hidden: int | None = None


@dataclass(frozen=True, slots=True)
class Leaf:
    """The ``.grad`` of input ``index`` after the call. ``changed`` is False where it is the same object as at entry; it
    may still have been updated in place, and is then among ``Lowered.mutated``. ``thrown``: the old gradient is dropped
    before anything can read it; ``later``: but other work comes before that."""

    index: int
    result: Result
    changed: bool
    thrown: bool = False
    later: bool = False


@dataclass(frozen=True, slots=True)
class Replaced:
    """Input ``index`` shares the memory of this result after the call: ``x.data = y``. ``changed``: it was also changed
    in place, which increments ``_version``."""

    index: int
    result: Result
    changed: bool


@dataclass(frozen=True, slots=True)
class Saves:
    """What autograd saves in a forward pass for the backward pass of some results.

    ``results``: their positions in ``Program.outputs``; ``saved``: the tensors; ``packs``: the number of a save, and
    the position of its tensor in ``saved``; ``uses``: the input of each gradient of a use, in the order of the backward
    pass; ``nodes``: the names of the results' autograd nodes; ``inner``: for each result the uses of others that it is
    computed from, by position in ``results``, in the order of the backward pass; ``order``: the results in the order in
    which they were made."""

    results: tuple[int, ...]
    saved: tuple[Source, ...]
    packs: tuple[tuple[int, int], ...]
    uses: tuple[int, ...]
    nodes: tuple[str, ...]
    inner: tuple[tuple[int, ...], ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pullback:
    """The backward pass of results that leave the call: a graph of the saved tensors and then the gradients of the
    results, which are laid out as these are. Its outputs are the gradients of ``saves.uses``."""

    saves: Saves
    backward: Lowered


@dataclass(frozen=True, slots=True)
class Lowered:
    """A whole call as one functional ATen graph.

    The graph takes the program's input tensors and then its slots as Python numbers. It returns a flat tuple: the
    ``fresh`` values; if there are assertions, one bool tensor with a flag for each; the new contents of the ``mutated``
    inputs, in order. It changes nothing: the caller commits. Random operations draw in eager's order. It must run with
    ``default_dtype`` in force.
    """

    program: Program
    graph: torch.fx.GraphModule
    fresh: int
    mutated: tuple[int, ...]
    outputs: tuple[Result, ...]
    leaves: tuple[Leaf, ...]
    requires_grad_set: tuple[tuple[int, bool], ...]  # inputs whose requires_grad flag the call leaves changed
    pinned: Mapping[int, float | int]  # slots specialised on these constants: each needs a value guard
    pin_reasons: Mapping[int, str]
    random: bool
    default_dtype: torch.dtype
    nodes: int
    conditions: tuple[Expr, ...] = ()  # conditions on the sizes of the inputs
    measures: tuple[int | Expr, ...] = ()  # ``Program.measures`` as expressions of the host
    drawn: tuple[int, ...] = ()  # for each cut of the program, how many random operations come before it
    replaced: tuple[Replaced, ...] = ()
    restored: tuple[int, ...] = ()  # inputs that are written to (``_version`` increases) and then restored
    uncounted: tuple[int, ...] = ()  # mutated inputs whose ``_version`` stays (running statistics, ``x.data``)
    sized: tuple[Expr, ...] = ()  # assertions on sizes that the graph computes; they follow the program's assertions
    remarks: tuple[Remark, ...] = ()  # what lowering did not optimise
    lent: int | None = None  # inputs from this position on belong to the run and may be freed after their last use
    scratch: frozenset[int] = frozenset()  # of those, the inputs that nothing else reads: a run may overwrite them
    saves: Saves | None = None
    uses: tuple[int, ...] = ()  # of a backward graph: the wanted input of each output
    pullback: Pullback | None = None
    undifferentiable: Refusal | None = None  # why results have no backward pass

    @property
    def assertions(self) -> tuple[Assertion, ...]:
        """The assertion of each flag: those of the program, then those on sizes that the graph computes."""
        asked = (
            Assertion(Ref(-1), True, len(self.program.nodes), self._place_of(condition)) for condition in self.sized
        )
        return (*self.program.assertions, *asked)

    def _place_of(self, condition: Expr) -> Place:
        """Return the source location of the selection that computes a size in this condition."""
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
        """Return the graph and its results as text for people."""
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
    """These slots cannot vary in one graph: specialise each on a constant with a guard, or refuse the path."""

    def __init__(self, slots: Mapping[int, str]) -> None:
        super().__init__("; ".join(f"slot {index}: {reason}" for index, reason in slots.items()))
        self.slots = dict(slots)
