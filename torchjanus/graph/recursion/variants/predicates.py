"""Adds the predicates on tensors that a variant depends on as nodes of its program.

If only one outcome was seen, the call asserts it. In a variant merged by if-conversion (see ``if_conversion``) each
call selects its own arm. Independent of how variants are cut into cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.errors import Place, refused
from torchjanus.graph.ir.program import Node, Program, Ref
from torchjanus.graph.recursion.variants.nodes import gives_back
from torchjanus.trace.actions import InvokeOp, Op
from torchjanus.trace.events import Trace

__all__ = ["DECIDED", "MergedVariant", "Path", "Side", "masked", "selected", "with_truths"]

Path = tuple[tuple[int, bool], ...]  # the outcome of each decision, by number of its event


@dataclass(frozen=True, slots=True)
class MergedVariant:
    """A merged variant: ``event`` is the call, with a trace for all paths. ``deciding``: the events that decide;
    ``within``: for other assertions the path on which they apply; ``paths``: for each of the merged variants its
    decisions."""

    event: InvokeOp
    deciding: frozenset[int]
    within: dict[int, Path]
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """Shared ``tensors`` (tokens) that only calls on one of the ``paths`` use."""

    tensors: frozenset[Any]
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class PredicatedNodes:
    """The ``nodes`` of a variant with those of its predicates; ``places``: for each node the number of its event, empty
    if unknown; ``truths``: the predicates that have to hold; ``takings``: for each side whether the call takes it."""

    nodes: list[Node]
    places: list[int]
    truths: list[Ref]
    takings: list[Ref]


def selected(taken: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the value of the arm that is taken."""
    if one.size() != other.size() or one.dtype != other.dtype:
        what = (
            f"the variants on which a tensor decides give tensors of sizes {list(one.size())} and {list(other.size())}"
        )
        raise refused("recursion-branch", what, "Many are one tensor, a row each.", "Let them be alike.")
    return torch.where(taken, one, other)


def masked(taken: torch.Tensor, tensor: torch.Tensor, outcome: bool) -> torch.Tensor:
    """Return the tensor for calls that take the arm, zeros for the others."""
    if not tensor.is_floating_point():
        return tensor
    zeros = torch.zeros_like(tensor)
    return torch.where(taken, tensor, zeros) if outcome else torch.where(taken, zeros, tensor)


DECIDED: frozenset[Any] = frozenset({selected, masked})  # their first argument is the number of the event that decides


def with_truths(
    program: Program, trace: Trace, place: Place, switch: MergedVariant | None, sides: Sequence[Side]
) -> PredicatedNodes:
    """Return the nodes of a variant together with those of its predicates."""
    events = [index for index, event in enumerate(trace.events) if isinstance(event, Op)]
    truths: list[Ref] = []
    takings: list[Ref] = []
    known = len(events) == len(program.nodes)
    nodes: list[Node] = []
    places: list[int] = []
    decided: dict[int, Ref] = {}
    asked = sorted(program.assertions, key=lambda assertion: assertion.after)
    free = max((1 + ref.index for node in program.nodes for ref in node.outs), default=0)
    free = max(free, len(program.inputs))
    for number in range(len(program.nodes) + 1):
        while asked and asked[0].after == number:
            assertion = asked.pop(0)
            func = _is_true if assertion.expected else _is_false
            truth, free = Ref(free), free + 1
            nodes.append(Node(func, (assertion.ref,), {}, (truth,), place=assertion.place))
            places.append(assertion.event)
            if switch is not None and assertion.event in switch.deciding:
                decided[assertion.event] = truth
                continue
            if switch is not None and assertion.event in switch.within:
                path = [(decided[event], outcome) for event, outcome in switch.within[assertion.event]]
                nodes.append(Node(_or_elsewhere, (truth, path), {}, (Ref(free),), place=assertion.place))
                places.append(assertion.event)
                truth, free = Ref(free), free + 1
            truths.append(truth)
        if number < len(program.nodes) and not gives_back(program.nodes[number]):
            node = program.nodes[number]
            if node.func in DECIDED:
                node = replace(node, args=(decided[node.args[0]], *node.args[1:]))
            nodes.append(node)
            places += events[number : number + 1]
    for side in sides:
        paths = [[(decided[event], outcome) for event, outcome in path] for path in side.paths]
        nodes.append(Node(_takes_one, (paths,), {}, (Ref(free),), place=place))
        places.append(len(trace.events))
        takings.append(Ref(free))
        free += 1
    return PredicatedNodes(nodes, places if known else [], truths, takings)


def _is_true(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.ne(0).reshape(())


def _is_false(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.eq(0).reshape(())


def _holds(path: Sequence[tuple[torch.Tensor, bool]]) -> torch.Tensor:
    """Return whether a call takes the path."""
    found = [truth if outcome else truth.logical_not() for truth, outcome in path]
    return torch.stack(found).all()


def _or_elsewhere(truth: torch.Tensor, path: Sequence[tuple[torch.Tensor, bool]]) -> torch.Tensor:
    """Return whether the predicate holds or the call takes another path."""
    return torch.logical_or(truth, _holds(path).logical_not())


def _takes_one(paths: Sequence[Sequence[tuple[torch.Tensor, bool]]]) -> torch.Tensor:
    """Return whether a call takes one of the paths."""
    return torch.stack([_holds(path) for path in paths]).any()
