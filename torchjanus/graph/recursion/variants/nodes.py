"""The operations of one watched call: their inputs and outputs, and the functionalisation of in-place changes.

Independent of how they are cut into cells.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.access_path import token_of
from torchjanus.core.errors import Place
from torchjanus.core.trees import leaves_of_kind, map_leaves, tree_token
from torchjanus.graph.ir.program import Node, Ref, Slot
from torchjanus.graph.operators.batched_numbers import PLAIN
from torchjanus.ops.calls import DROPOUTS, VIEWS

__all__ = [
    "CUTTING", "changed_views", "gives_back", "is_call", "lifted", "named_rows", "seen_before", "slots_of",
    "with_equal_arguments", "without_changes",
]  # fmt: skip

# Functions whose result has no gradient.
CUTTING: frozenset[Any] = frozenset({torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__})  # type: ignore[attr-defined]

# Functions that return equal tensors for equal numbers.
_MAKING = (torch.zeros, torch.ones, torch.full, torch.eye, torch.arange, torch.tensor)


def gives_back(node: Node) -> bool:
    """Whether the node only returns an argument: ``contiguous()`` may, and dropout in evaluation mode."""
    name = str(getattr(node.func, "__name__", ""))
    if name in DROPOUTS:
        if node.kwargs.get("training", node.args[2] if len(node.args) > 2 else True) is not False:
            return False
    elif name.startswith("__") or name not in VIEWS:
        return False
    return {ref.index for ref in node.outs} <= {ref.index for ref in node.inputs}


def is_call(node: Node) -> bool:
    """Whether the node is a recursive call."""
    return bool(getattr(node.func, "__name__", "") == "invoke")


def slots_of(value: Any) -> Iterator[Slot]:
    """Yield the number slots in a structure."""
    return leaves_of_kind(value, Slot)


def seen_before(nodes: Iterable[Node], changed: set[int]) -> set[int]:
    """Return those of the ``changed`` tensors that are changed in place after something else may share their memory."""
    read: set[int] = set()
    found: set[int] = set()
    for node in nodes:
        changes = {ref.index for ref in node.outs} & changed
        if node.func not in PLAIN:
            found.update(changes & {ref.index for ref in node.inputs})
            read.update(ref.index for ref in node.inputs)
        else:
            found.update(changes & read)
            _, *others = node.inputs
            read.update(ref.index for ref in others)
    return found


def changed_views(nodes: Iterable[Node], changed: set[int]) -> Iterator[Node]:
    """Yield the nodes that change a tensor in place while another view of it exists."""
    views: dict[int, set[int]] = {}
    for node in nodes:
        for ref in node.outs:
            if ref.index in changed and len(views.get(ref.index, ())) > 1:
                yield node
        if str(getattr(node.func, "__name__", "")) in VIEWS:
            alike = {ref.index for ref in (*node.inputs, *node.outs)}
            alike = alike.union(*(views.get(index, ()) for index in alike))
            views.update(dict.fromkeys(alike, alike))


def without_changes(nodes: Sequence[Node], own: set[int], free: int) -> tuple[list[Node], dict[int, Ref]]:
    """Return the nodes with in-place changes of the tensors in ``own`` made out of place, and the final tensor of each
    changed one. ``free``: the first unused tensor number."""
    now: dict[int, Ref] = {}
    made: list[Node] = []

    def leaf(value: Any) -> Any:
        return now.get(value.index, value) if isinstance(value, Ref) else value

    for node in nodes:
        args, kwargs = map_leaves(node.args, leaf), map_leaves(node.kwargs, leaf)
        func, outs = node.func, node.outs
        if func in PLAIN and outs[0].index in own:
            now[outs[0].index] = Ref(free)
            func, outs, free = PLAIN[func], (Ref(free),), free + 1
        made.append(Node(func, args, kwargs, outs, node.modes, node.place))
    return made, now


def named_rows(nodes: Sequence[Node], tables: frozenset[int]) -> Iterator[tuple[int, int | float]]:
    """Yield the nodes that take a row of a table by a constant, or make a tensor of one, with that constant."""
    for position, node in enumerate(nodes):
        match node.func, node.args:
            case torch.Tensor.__getitem__, (Ref(index=table), key) if table in tables and type(key) is int:
                yield position, key
            case torch.tensor, (value,) if type(value) in (int, float) and math.isfinite(value):
                yield position, value


def lifted(
    nodes: Sequence[Node], tables: frozenset[int], places: frozenset[Place], free: int
) -> tuple[list[Node], list[int | float]]:
    """Return the nodes with constants at these places replaced by slots, numbered from ``free``; and the constants."""
    made, values = list(nodes), list[int | float]()
    for position, value in named_rows(nodes, tables):
        node = nodes[position]
        if node.place in places:
            made[position] = replace(node, args=(*node.args[:-1], Slot(free + len(values))))
            values.append(value)
    return made, values


def _token(value: Any) -> Any:
    return value if isinstance(value, Slot) else token_of(value)


def with_equal_arguments(nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes with equal new tensors passed to recursive calls replaced by the first."""
    made = Counter(ref.index for node in nodes for ref in node.outs)
    first: dict[Any, Ref] = {}
    equal: dict[int, Ref] = {}
    found: list[Node] = []
    for node in nodes:
        if node.func in _MAKING and len(node.outs) == 1 and not node.inputs:
            (out,) = node.outs
            if made[out.index] == 1:  # never changed in place
                key = (node.func, tree_token((node.args, node.kwargs), _token), node.modes)
                equal[out.index] = first.setdefault(key, out)
        elif is_call(node):
            node = replace(node, args=tuple(equal.get(ref.index, ref) for ref in node.args))
        found.append(node)
    return found
