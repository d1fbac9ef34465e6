"""Check that a segment of a program is the iterations of one loop, and classify each argument of its nodes.

Does not know what is built from a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.access_path import token_of
from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import leaves_of
from torchjanus.graph.ir.program import Node, Program, Ref, Slot
from torchjanus.graph.ir.repetition import Segment
from torchjanus.ops.calls import FRESH
from torchjanus.trace.user_code import MARKS

__all__ = ["Argument", "RolledSegment", "call_name", "is_training"]

MANY = 3  # the fewest nodes of an iteration without loop-carried values


def is_training(func: Any) -> bool:
    """Whether this function computes gradients."""
    return func is torch.autograd.grad or func is torch.autograd.backward or func is torch.Tensor.backward


# Methods that depend on the identity of the tensor or on its autograd state, not on its value.
_PERSONAL = frozenset(
    """backward grad retain_grad register_hook register_post_accumulate_grad_hook requires_grad_ detach_ set_ set_data
    resize_ resize_as_ untyped_storage storage share_memory_""".split()
)


@dataclass(slots=True)
class Argument:
    """One argument of a node in each iteration. ``kind``: own (made in the same iteration), carried (loop-carried),
    same (loop-invariant), rows (another input in each), numbers (another constant in each), slot, constant."""

    kind: str
    key: Any = None
    values: list[Any] = field(default_factory=list)


class RolledSegment:
    """One segment as a loop. Raises NotMergeable."""

    def __init__(self, program: Program, segment: Segment) -> None:
        self.program, self.segment = program, segment
        self.nodes = program.nodes[segment.start : segment.end]
        self.iterations = [
            self.nodes[number * segment.length : (number + 1) * segment.length] for number in range(segment.iterations)
        ]
        # Whether the iterations compute gradients: then their nodes have become functions (see loop_training).
        self.trains = any(is_training(node.func) for node in self.nodes)
        self.made: dict[int, tuple[int, int, int]] = {}  # ref -> (iteration, node in it, result of the node)
        self._check_nodes()
        self.arguments = [self._arguments(position) for position in range(segment.length)]
        few = segment.length < MANY and not segment.marks
        if few and not any(one.kind == "carried" for found in self.arguments for one in found):
            raise NotMergeable("loop-small", "an iteration makes few calls and carries nothing")
        self._check_outside()

    def _check_nodes(self) -> None:
        """Record which node makes each tensor. Raise NotMergeable for nodes that no loop can contain."""
        last = set(range(len(self.program.inputs)))
        for node in self.program.nodes[: self.segment.start]:
            last.update(ref.index for ref in node.outs)
        for number, nodes in enumerate(self.iterations):
            for position, node in enumerate(nodes):
                if isinstance(node.func, MARKS) or not node.modes.is_plain:
                    raise NotMergeable(
                        "loop-modes",
                        "iterations run under autocast, in inference mode, or without some kernel",
                    )
                if (call_name(node) in _PERSONAL or not node.outs) and not (self.trains and self.segment.marks):
                    raise NotMergeable(
                        "loop-body",
                        "an iteration makes a call that gives no tensor, or depends on which tensor it is given",
                    )
                for which, ref in enumerate(node.outs):
                    if ref.index in last:
                        raise NotMergeable("loop-in-place", "an iteration changes a tensor from before the loop")
                    known = self.made.get(ref.index)
                    if known is None:
                        self.made[ref.index] = (number, position, which)
                    elif known[0] != number:
                        raise NotMergeable("loop-in-place", "an iteration changes what another one has made")
        if any(self.segment.start <= cut.after <= self.segment.end for cut in self.program.cuts):
            raise NotMergeable("loop-native-call", "the host makes a call in the middle of the loop")

    def _arguments(self, position: int) -> list[Argument]:
        if len({_merged(nodes[position].func) for nodes in self.iterations}) != 1:
            raise NotMergeable("loop-iterations-differ", "iterations make different calls")
        columns = [list(leaves_of((nodes[position].args, nodes[position].kwargs))) for nodes in self.iterations]
        if len({len(column) for column in columns}) != 1:
            raise NotMergeable("loop-iterations-differ", "iterations give different numbers of arguments to a call")
        return [self._classified([column[leaf] for column in columns]) for leaf in range(len(columns[0]))]

    def _classified(self, values: list[Any]) -> Argument:
        """Return the Argument for these values of one argument, one for each iteration. Raises NotMergeable."""
        if not isinstance(values[-1], Ref):
            if isinstance(values[-1], Slot) and len(set(values)) == 1:
                return Argument("slot", values[-1], values)
            if any(isinstance(value, Slot | Ref) for value in values):
                raise NotMergeable(
                    "loop-iterations-differ", "an argument is a tensor or a changing number in some iterations only"
                )
            if len({(type(value), repr(value)) for value in values}) == 1:
                return Argument("constant", None, values)
            return Argument("numbers", None, values)
        where = [self.made.get(value.index) for value in values]
        last = where[-1]
        if last is None:
            if any(place is not None for place in where):
                raise NotMergeable(
                    "loop-iterations-differ", "an argument comes from another iteration in some iterations only"
                )
            return Argument("same" if len(set(values)) == 1 else "rows", values[0], values)
        number, node, which = last
        behind = len(self.iterations) - 1 - number
        if behind not in (0, 1):
            raise NotMergeable("loop-carried", "a value is used more than one iteration later")
        first = behind
        for index in range(first, len(values)):
            if where[index] != (index - behind, node, which):
                raise NotMergeable("loop-carried", "iterations take what different calls of the one before have made")
        if behind and where[0] is not None:
            raise NotMergeable("loop-carried", "the first iteration takes what a later one has made")
        return Argument("carried" if behind else "own", (node, which), values)

    def _check_outside(self) -> None:
        """Raise NotMergeable if a later node depends on the identity of a tensor of the iterations, not its value."""
        tainted = set(self.made)
        for node in self.program.nodes[self.segment.end :]:
            taken = [ref.index for ref in node.inputs]
            touched = [index for index in taken if index in tainted]
            if isinstance(node.func, MARKS) and touched:
                raise NotMergeable(
                    "loop-results", "a part of an extern call or of user code takes what an iteration has made"
                )
            if not touched:
                continue
            name = call_name(node)
            about_itself = name in _PERSONAL - {"backward", "grad"} or _is_property(node.func)
            if name == "grad" and any(value.index in tainted for value in _inputs_of_grad(node)):
                raise NotMergeable("loop-results", "the gradient of what one iteration made is asked for")
            if about_itself or (name == "backward" and any(v.index in tainted for v in _inputs_of_grad(node))):
                raise NotMergeable(
                    "loop-results", "a call after the loop depends on which tensor an iteration has made"
                )
            changed = name.endswith("_") and not name.endswith("__")
            in_place = changed or name in ("__setitem__", "put_back") or name.startswith("__i")
            if (in_place and taken[0] in tainted) or "out" in node.kwargs or _known_outs(node, tainted):
                raise NotMergeable("loop-in-place", "what iterations have made is changed in place after the loop")
            if name != "backward" and name not in FRESH and not in_place:  # the storage stays the same
                tainted.update(ref.index for ref in node.outs)


def call_name(node: Node) -> str:
    """Return the name of the function that a node calls, or an empty text."""
    return str(getattr(node.func, "__name__", ""))


def _is_property(func: Any) -> bool:
    """Whether it reads or writes ``.grad``, ``.requires_grad`` or ``.data`` of a tensor."""
    owner = getattr(func, "__self__", None)
    return owner is not None and getattr(owner, "__name__", "") in ("grad", "requires_grad", "data", "_grad")


def _inputs_of_grad(node: Node) -> list[Ref]:
    given = node.kwargs.get("inputs")
    if given is None and call_name(node) == "grad" and len(node.args) > 1:
        given = node.args[1]
    return [value for value in leaves_of(given) if isinstance(value, Ref)]


def _merged(func: Any) -> Any:
    """Return a token of what the function does; for a loop within an iteration, of what its iterations do."""
    merged = getattr(func, "merged", None)
    return token_of(func) if merged is None else merged()


def _known_outs(node: Node, tainted: set[int]) -> bool:
    return any(ref.index in tainted for ref in node.outs)
