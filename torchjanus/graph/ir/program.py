"""The tensor program of one path, at the level of the torch API, ready to be lowered. Knows nothing of Python heaps.

A Program is straight-line calls of torch functions on numbered tensors (Ref) and host scalars (Slot). Generalising the
traces makes it; lowering turns it into one ATen graph.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch

from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.trees import leaves_of_kind
from torchjanus.trace.modes import Modes
from torchjanus.trace.values import Expr

__all__ = [
    "Assertion", "Backward", "Cut", "Dimension", "Formula", "Input", "Measure", "Measured", "Node", "Program", "Ref",
    "Slot", "SlotKind", "Symbol", "with_copies",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Ref:
    """The tensor with this number: an input (numbers 0 .. len(inputs) - 1) or a leaf of some node's result."""

    index: int

    def __repr__(self) -> str:
        return f"%{self.index}"


@dataclass(frozen=True, slots=True)
class Slot:
    """A Python number that the host supplies at each call, by its position in ``Program.slots``."""

    index: int

    def __repr__(self) -> str:
        return f"${self.index}"


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that some dimensions of inputs share at each call, by its position in ``Program.dimensions``."""

    index: int


@dataclass(frozen=True, slots=True)
class Measured:
    """A size of an intermediate tensor, by its position in ``Program.measures``."""

    index: int


@dataclass(frozen=True, slots=True)
class Formula:
    """An integer computed from sizes. ``args``: Symbols, Measureds, Formulas and constants."""

    func: Callable[..., Any]
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A size that changes from call to call: where the host reads it, and its value in the last watched run."""

    expr: Expr
    hint: int
    slot: int | None = None  # for a number that is no size of an input: the slot through which the graph takes it
    few: bool = False  # whether it may be 0 or 1
    made: bool = False  # only the graph knows it: the number of elements that it selects


@dataclass(frozen=True, slots=True)
class Measure:
    """``tensor.size(dim)`` at position ``after`` in the node list."""

    ref: Ref
    dim: int
    after: int


@dataclass(frozen=True, slots=True)
class SlotKind:
    """The type of a slot, and its values in the watched runs, in order."""

    type: type  # float or int
    seen: tuple[float | int, ...]
    name: str = ""  # its source, for people
    stage: int = 0  # the number of cuts after which it is known


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor the graph reads from outside, with everything that a guard holds constant about it.

    ``example`` is the live tensor of the last watched run: use its metadata, never its contents. ``grad``: the number
    of the input that is this leaf's ``.grad`` at entry, or None where that is None or never read.
    """

    example: torch.Tensor
    requires_grad: bool
    is_leaf: bool
    grad: Ref | None = None
    name: str = ""
    stage: int = 0  # the number of cuts after which it exists
    # Where dimensions change from call to call: for each dimension its position in ``Program.dimensions`` or None, and
    # its stride or the dimensions whose sizes multiply to it.
    symbols: tuple[int | None, ...] = ()
    strides: tuple[int | tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One call ``func(*args, **kwargs)`` of the torch API.

    args and kwargs are pytrees (tuple, list, dict, slice and anything torch's pytree knows; slices hold their parts)
    whose leaves are Refs, Slots, sizes (Symbol, Measured, Formula) and constants. ``outs`` numbers the tensor leaves of
    the result in pytree order; a number that exists already means that the call returned that very tensor (an in-place
    operation). ``layouts``: the memory layouts of these when the call was watched, if known.
    """

    func: Any  # a function of torch, or a mark where code that autograd calls begins or ends
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outs: tuple[Ref, ...]
    modes: Modes = field(default_factory=Modes)
    place: Place = NOWHERE
    layouts: tuple[Any, ...] = field(default=(), compare=False)

    @property
    def inputs(self) -> tuple[Ref, ...]:
        """The tensors among the arguments, each as often as it occurs."""
        return tuple(leaves_of_kind((self.args, self.kwargs), Ref))


@dataclass(frozen=True, slots=True)
class Assertion:
    """``bool(tensor)`` was ``expected`` in every watched run, after the node with number ``after`` - 1 had run.
    ``event``: the index of the trace event that the assertion comes from; -1 where it comes from none."""

    ref: Ref
    expected: bool
    after: int
    place: Place = NOWHERE
    event: int = -1


@dataclass(frozen=True, slots=True)
class Cut:
    """A point at which the host has to make an extern call, in program order, before the graph can go on. It comes
    before node number ``after``. ``outputs``: positions in the program's outputs that the host needs for it.
    ``begins``: as in ``Effects``; what can wait is computed after such a cut. ``sums``: the host
    adds these up over all processes, or reduces them in another way."""

    after: int
    outputs: tuple[int, ...]
    begins: Literal["", "here", "early"] = ""
    sums: bool = False


@dataclass(frozen=True, slots=True)
class Backward:
    """Makes a program the backward pass of another one with the same nodes. ``results``: the outputs that it starts
    from; ``tangents``: the inputs that hold their gradients; ``saved``: the inputs that stand for what autograd saved
    in the forward pass, by the number of the save. The graph returns the gradients of the ``wanted`` inputs, each use
    by itself, in the order in which autograd adds them."""

    results: tuple[Ref, ...]
    tangents: tuple[Ref, ...]
    saved: Mapping[int, Ref]
    wanted: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """Straight-line tensor work of one whole call.

    ``outputs``: tensors needed after the call (returned, stored, or fetched as numbers), each as it is at position
    ``output_after[k]`` in the node list (a fetch of ``x.item()`` before an in-place change of ``x`` sees the old value;
    len(nodes) for tensors that escape as objects). ``leaves``: inputs whose ``.grad`` may differ after the call.
    ``fetched``: the positions of outputs of which only numbers are needed. ``escaping``: the positions of those that
    the program goes on with as tensors. ``saves``: the graph also returns what autograd saves for the backward pass of
    these, which is still to come.
    """

    inputs: tuple[Input, ...]
    slots: tuple[SlotKind, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Ref, ...]
    output_after: tuple[int, ...]
    assertions: tuple[Assertion, ...]
    leaves: tuple[Ref, ...]
    cuts: tuple[Cut, ...] = ()
    dimensions: tuple[Dimension, ...] = ()
    measures: tuple[Measure, ...] = ()
    fetched: tuple[int, ...] = ()
    escaping: tuple[int, ...] = ()
    saves: bool = False
    backward: Backward | None = None


def with_copies(program: Program, places: Container[int]) -> Program:
    """Return the program with the outputs at ``places`` replaced by copies made at the end."""
    last = 1 + max([len(program.inputs), *(ref.index for node in program.nodes for ref in node.outs)])
    nodes, outputs = list(program.nodes), list(program.outputs)
    for place, ref in enumerate(program.outputs):
        if place in places:
            outputs[place] = Ref(last + place)
            nodes.append(Node(torch.clone, (ref,), {}, (outputs[place],), program.nodes[0].modes))
    return replace(program, nodes=tuple(nodes), outputs=tuple(outputs), output_after=(len(nodes),) * len(outputs))
