"""Whether a segment of a program is the iterations of one loop, and what each argument is in each of them.

Knows nothing of what is made of a loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.access_path import token_of
from torchjanus.graph.ir.program import Node, Program, Ref, Slot
from torchjanus.graph.ir.repetition import Segment, leaves_of
from torchjanus.trace.user_code import MARKS

__all__ = ["Argument", "Rolled", "Unfit", "call_name", "is_training"]

MANY = 3  # nodes in an iteration that carries nothing


# What speaks of the tensor itself, or of what autograd knows of it, and not of its value.
def is_training(func: Any) -> bool:
    """Whether this computes gradients."""
    return func is torch.autograd.grad or func is torch.autograd.backward or func is torch.Tensor.backward


_PERSONAL = frozenset(
    """backward grad retain_grad register_hook register_post_accumulate_grad_hook requires_grad_ detach_ set_ set_data
    resize_ resize_as_ untyped_storage storage share_memory_""".split()
)

_NEW = frozenset({"stack", "cat", "clone", "written"})  # they give tensors of their own


class Unfit(Exception):
    """The iterations are not those of one loop."""


@dataclass(slots=True)
class Argument:
    """What one argument is, in each of the iterations. ``kind``: own, carried, same, rows, numbers, slot (a number that
    may be another one at each call), constant."""

    kind: str
    key: Any = None
    values: list[Any] = field(default_factory=list)


class Rolled:
    """One segment as a loop. Raises Unfit."""

    def __init__(self, program: Program, segment: Segment) -> None:
        self.program, self.segment = program, segment
        self.nodes = program.nodes[segment.start : segment.end]
        self.iterations = [
            self.nodes[number * segment.length : (number + 1) * segment.length] for number in range(segment.iterations)
        ]
        # Whether gradients are computed in the iterations: their nodes have been told as functions (see loop_training).
        self.trains = any(is_training(node.func) for node in self.nodes)
        self.made: dict[int, tuple[int, int, int]] = {}  # ref -> iteration, node in it, which of its results
        self._check_nodes()
        self.arguments = [self._arguments(position) for position in range(segment.length)]
        few = segment.length < MANY and not segment.marks
        if few and not any(one.kind == "carried" for found in self.arguments for one in found):
            raise Unfit  # the same for many tensors: there is little to gain
        self._check_outside()

    def _check_nodes(self) -> None:
        last = set(range(len(self.program.inputs)))
        for node in self.program.nodes[: self.segment.start]:
            last.update(ref.index for ref in node.outs)
        for number, nodes in enumerate(self.iterations):
            for position, node in enumerate(nodes):
                if isinstance(node.func, MARKS) or node.modes.autocast or node.modes.inference:
                    raise Unfit
                if (call_name(node) in _PERSONAL or not node.outs) and not (self.trains and self.segment.marks):
                    raise Unfit
                for which, ref in enumerate(node.outs):
                    if ref.index in last:
                        raise Unfit  # changed in place, and there before the loop
                    known = self.made.get(ref.index)
                    if known is None:
                        self.made[ref.index] = (number, position, which)
                    elif known[0] != number:
                        raise Unfit
        if any(self.segment.start <= cut.after <= self.segment.end for cut in self.program.cuts):
            raise Unfit

    def _arguments(self, position: int) -> list[Argument]:
        if len({_merged(nodes[position].func) for nodes in self.iterations}) != 1:
            raise Unfit
        columns = [list(leaves_of((nodes[position].args, nodes[position].kwargs))) for nodes in self.iterations]
        if len({len(column) for column in columns}) != 1:
            raise Unfit
        return [self._classified(position, [column[leaf] for column in columns]) for leaf in range(len(columns[0]))]

    def _classified(self, position: int, values: list[Any]) -> Argument:
        if not isinstance(values[-1], Ref):
            if isinstance(values[-1], Slot) and len(set(values)) == 1:
                return Argument("slot", values[-1], values)
            if any(isinstance(value, Slot | Ref) for value in values):
                raise Unfit
            if len({(type(value), repr(value)) for value in values}) == 1:
                return Argument("constant", None, values)
            return Argument("numbers", None, values)
        where = [self.made.get(value.index) for value in values]
        last = where[-1]
        if last is None:
            if any(place is not None for place in where):
                raise Unfit
            return Argument("same" if len(set(values)) == 1 else "rows", values[0], values)
        number, node, which = last
        behind = len(self.iterations) - 1 - number
        if behind not in (0, 1):
            raise Unfit
        first = behind
        for index in range(first, len(values)):
            if where[index] != (index - behind, node, which):
                raise Unfit
        if behind and where[0] is not None:
            raise Unfit
        return Argument("carried" if behind else "own", (node, which), values)

    def _check_outside(self) -> None:
        """What comes after must not care which tensors the iterations made, only what is in them."""
        tainted = set(self.made)
        for node in self.program.nodes[self.segment.end :]:
            taken = [value.index for value in leaves_of((node.args, node.kwargs)) if isinstance(value, Ref)]
            touched = [index for index in taken if index in tainted]
            if isinstance(node.func, MARKS) and touched:
                raise Unfit
            if not touched:
                continue
            name = call_name(node)
            about_itself = name in _PERSONAL - {"backward", "grad"} or _is_property(node.func)
            if name == "grad" and any(value.index in tainted for value in _inputs_of_grad(node)):
                raise Unfit  # the gradient of a row is not all of what flows into it
            if about_itself or (name == "backward" and any(v.index in tainted for v in _inputs_of_grad(node))):
                raise Unfit
            changed = name.endswith("_") and not name.endswith("__")
            in_place = changed or name in ("__setitem__", "put_back") or name.startswith("__i")
            if (in_place and taken[0] in tainted) or "out" in node.kwargs or _known_outs(node, tainted):
                raise Unfit
            if name != "backward" and name not in _NEW and not in_place:  # what is changed lies where it lay
                tainted.update(ref.index for ref in node.outs)


def call_name(node: Node) -> str:
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
    """What it does: of a loop within an iteration, what its iterations do."""
    merged = getattr(func, "merged", None)
    return token_of(func) if merged is None else merged()


def _known_outs(node: Node, tainted: set[int]) -> bool:
    return any(ref.index in tainted for ref in node.outs)
