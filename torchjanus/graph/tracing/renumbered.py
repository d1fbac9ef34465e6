"""Derives the functional graph of a second trace from that of the first one, by exchanging its numbers.

A program is traced twice with different numbers, and making a trace functional takes as long as tracing. Both traces
have the same operations before that, and functionalisation passes numbers on. So the second functional graph is the
first one with the second trace's numbers. Where a number is met whose origin is not known, there is no such graph, and
the second trace is made functional, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchjanus.graph.aten.symbolic_sizes import geometry, key

__all__ = ["Renumbered", "TracedNumbers", "geometries", "leaves", "renumbered", "same"]

# Numbers that functionalisation may add by itself: sizes, strides and steps (the numbers to trace with are larger, and
# so is what is computed from them), an open end of a slice, neutral elements.
_LARGEST_ADDED = 50_000
_OPEN = 2**63 - 1
_NEUTRAL = (0.0, 1.0)


@dataclass(frozen=True, slots=True)
class TracedNumbers:
    """What a traced graph was before it was made functional: its operations, the geometry of their results, and the
    arguments of each, in order. ``names``: those of its nodes; ``constants``: the tensors that it holds."""

    names: tuple[str, ...]
    operations: tuple[tuple[str, str], ...]
    geometries: tuple[Any, ...]
    arguments: tuple[tuple[Any, ...], ...]
    constants: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, module: torch.fx.GraphModule) -> TracedNumbers:
        """Return those of a graph that is not functional yet."""
        nodes = list(module.graph.nodes)
        constants = [getattr(module, str(node.target)) for node in nodes if node.op == "get_attr"]
        return cls(
            tuple(node.name for node in nodes),
            tuple((node.op, str(node.target)) for node in nodes),
            tuple(geometries(node.meta.get("val")) for node in nodes),
            tuple((*leaves(node),) for node in nodes),
            tuple(constants),
        )


class Renumbered:
    """A graph and, as attributes, the tensors that it holds: what is compared of a traced graph."""

    def __init__(self, graph: torch.fx.Graph, constants: dict[str, torch.Tensor]) -> None:
        self.graph = graph
        self.__dict__.update(constants)


class _Unknown(Exception):
    """Raised for a number of unknown origin."""


def renumbered(functional: torch.fx.GraphModule, first: TracedNumbers, second: TracedNumbers) -> Renumbered | None:
    """Return ``functional``, which was made of the trace ``first``, with the numbers of ``second``; None where it is
    not known what it would be."""
    if first.operations != second.operations or first.geometries != second.geometries:
        return None
    if [*map(len, first.arguments)] != [*map(len, second.arguments)]:
        return None
    if not all(map(_are_tensors, first.constants, second.constants)):
        return None
    tensors = {id(one): other for one, other in zip(first.constants, second.constants, strict=True)}
    try:
        exchange = _exchange(chain.from_iterable(first.arguments), chain.from_iterable(second.arguments))
        constants: dict[str, torch.Tensor] = {}
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in functional.graph.nodes:
            if node.op == "get_attr":
                held = tensors.get(id(getattr(functional, str(node.target))))
                if held is None:
                    return None
                constants[str(node.target)] = held
            copy = copies[node] = graph.node_copy(node, copies.__getitem__)
            copy.args, copy.kwargs = (
                pytree.tree_map(exchange, part, is_leaf=_is_leaf) for part in (copy.args, copy.kwargs)
            )
    except _Unknown:
        return None
    return Renumbered(graph, constants)


def _exchange(first: Iterable[Any], second: Iterable[Any]) -> Callable[[Any], Any]:
    """Return a function from a number of the first trace to that of the second one. It raises _Unknown, as this does
    where the traces differ in something else."""
    others: dict[tuple[type, Any], Any] = {}
    for one, other in zip(first, second, strict=True):
        if type(one) is not type(other):
            raise _Unknown
        if type(one) not in (int, float) or one != one:
            if not same(one, other):
                raise _Unknown
        elif others.setdefault((type(one), one), other) != other:
            raise _Unknown  # by chance, a number to trace with is also one of the program's

    def exchanged(value: Any) -> Any:
        if type(value) not in (int, float) or value != value:
            return value
        if (found := others.get((type(value), value))) is not None:
            return found
        if value in _NEUTRAL if type(value) is float else abs(value) <= _LARGEST_ADDED or value == _OPEN:
            return value
        raise _Unknown

    return exchanged


def leaves(node: torch.fx.Node) -> Iterator[Any]:
    """Yield the arguments of a node, without the lists that they are in. All nodes are alike here."""
    for leaf in pytree.tree_leaves((node.args, dict(node.kwargs)), is_leaf=_is_leaf):
        yield torch.fx.Node if isinstance(leaf, torch.fx.Node) else leaf


def _is_leaf(value: Any) -> bool:
    return isinstance(value, torch.fx.Node)


def _are_tensors(one: Any, other: Any) -> bool:
    """Whether both are tensors of one shape and type."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return False
    return one.shape == other.shape and one.dtype == other.dtype


def same(expected: Any, met: Any) -> bool:
    """Whether values and types are equal: an int slot as a float has been converted. NaN equals itself here."""
    if type(expected) is not type(met):
        return False
    return bool(expected == met or (isinstance(expected, float) and math.isnan(expected) and math.isnan(met)))


def geometries(value: Any) -> Any:
    """Return what is compared of a node's value: sizes, strides and dtypes of tensors, types of others."""
    if isinstance(value, torch.Tensor):
        return (*geometry(value), value.dtype)
    if isinstance(value, torch.SymInt):
        return key(value)
    if isinstance(value, list | tuple):
        return tuple(geometries(part) for part in value)
    return type(value)
