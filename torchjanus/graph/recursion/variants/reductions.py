"""Sums over the iterations of a loop: chains of additions whose intermediate results nothing else uses.

The terms of a chain do not depend on each other: they can be computed together and then added in program order. Chains
are found by data dependence, so ``sum()``, a loop that adds, and several sums in one loop are alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.errors import Place
from torchjanus.graph.ir.program import Node, Ref

__all__ = ["Accumulation", "accumulations", "stacks_as_sums", "varying"]


@dataclass(frozen=True, slots=True)
class Accumulation:
    """``start + items[0] + items[1] ...``; without a start, zeros are added to (as in ``sum``). ``links``: the nodes
    that compute it; ``carried``: which of their operands is the sum so far."""

    place: Place
    carried: int
    start: Ref | None
    items: tuple[Ref, ...]
    out: Ref
    links: tuple[int, ...]
    grad: bool  # whether gradients flow through it


def stacks_as_sums(nodes: Sequence[Node], kept: Iterable[int], free: int) -> list[tuple[Node, int]]:
    """Return the nodes with ``torch.stack(tensors).sum(0)`` replaced by a chain of additions, each with the index of
    the node it replaces. ``free``: the first unused tensor number."""
    uses = Counter(ref.index for node in nodes for ref in node.inputs)
    uses.update(kept)
    stacks = {node.outs[0].index: number for number, node in enumerate(nodes) if _stacked(node)}
    summed: dict[int, int] = {}  # summing node -> stacking node
    for number, node in enumerate(nodes):
        before = _summed(node)
        stack = None if before is None or uses[before.index] > 1 else stacks.get(before.index)
        if stack is not None and nodes[stack].modes == node.modes:
            summed[number] = stack
    dropped = set(summed.values())
    made: list[tuple[Node, int]] = []
    for number, node in enumerate(nodes):
        if number in dropped:
            continue
        if number not in summed:
            made.append((node, number))
            continue
        stack_node = nodes[summed[number]]
        terms = _stacked(stack_node)
        total: Any = 0
        for place, term in enumerate(terms):
            out = node.outs[0] if place == len(terms) - 1 else Ref(free)
            free += 1
            func, args = (torch.add, (total, term)) if place else (_begun, (term, total))
            made.append((Node(func, args, {}, (out,), node.modes, stack_node.place), number))
            total = out
    return made


def _begun(term: torch.Tensor, zero: int) -> torch.Tensor:
    """Return the sum over a dimension of one term; for integers its type is int64."""
    return torch.stack([term]).sum(zero)


def _stacked(node: Node) -> list[Ref]:
    """Return the tensors that the node stacks along dimension 0, or nothing."""
    if node.func is not torch.stack or not node.args or not isinstance(node.args[0], list | tuple):
        return []
    if [*node.args[1:], *node.kwargs.values()] not in ([], [0]) or not node.kwargs.keys() <= {"dim"}:
        return []
    return list(node.args[0])


def _summed(node: Node) -> Ref | None:
    """Return the tensor that the node sums over its first dimension, or None."""
    if node.func not in (torch.sum, torch.Tensor.sum) or not node.args or not node.kwargs.keys() <= {"dim", "axis"}:
        return None
    before, *dims = (*node.args, *node.kwargs.values())
    return before if dims in ([0], [(0,)], [[0]]) and isinstance(before, Ref) else None


def accumulations(nodes: Sequence[Node], kept: Iterable[int], carried: int) -> list[Accumulation]:
    """Return all chains of one or more additions. ``kept``: tensors with other uses."""
    uses = Counter(ref.index for node in nodes for ref in node.inputs)
    uses.update(kept)
    chains: list[list[int]] = []
    ends: dict[tuple[Place, int], list[int]] = {}  # chains that may continue, by place and current sum
    for number, node in enumerate(nodes):
        if not _adds(node):
            continue
        (out,) = node.outs
        before = node.args[carried]
        chain = ends.pop((node.place, before.index), []) if isinstance(before, Ref) else []
        goes_on = isinstance(node.args[1 - carried], Ref)
        if not chain or not goes_on or nodes[chain[-1]].modes != node.modes:
            chain = []
            chains.append(chain)
        chain.append(number)
        if uses[out.index] == 1:
            ends[node.place, out.index] = chain
    return [_accumulation(nodes, chain, carried) for chain in chains]


_ADDITIONS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, _begun)


def _adds(node: Node) -> bool:
    if node.func not in _ADDITIONS or len(node.args) != 2 or node.kwargs or len(node.outs) != 1:
        return False
    return sum(isinstance(arg, Ref) for arg in node.args) == 2 or any(_is_zero(arg) for arg in node.args)


def _is_zero(value: object) -> bool:
    return type(value) is int and value == 0


def _accumulation(nodes: Sequence[Node], chain: list[int], carried: int) -> Accumulation:
    first, others = nodes[chain[0]], chain[1:]
    start, *items = first.args if carried == 0 else first.args[::-1]
    if _is_zero(first.args[0]) or _is_zero(first.args[1]):
        start, items = None, [arg for arg in first.args if isinstance(arg, Ref)]
    items += [nodes[number].args[1 - carried] for number in others]
    return Accumulation(
        first.place, carried, start, tuple(items), nodes[chain[-1]].outs[0], tuple(chain), first.modes.grad
    )


def varying(variants: Iterable[Sequence[Accumulation]]) -> dict[Place, int]:
    """Return the places of sums whose number of terms differs between variants, with the operand that is carried."""
    lengths: dict[tuple[Place, int], set[int]] = {}
    for variant in variants:
        for one in variant:
            lengths.setdefault((one.place, one.carried), set()).add(len(one.items))
    found: dict[Place, int] = {}
    for (place, carried), some in lengths.items():
        # Without two terms no operand is known to be carried.
        if max(some) > 1 and len(some) > 1 and (place not in found or max(some) > max(lengths[place, found[place]])):
            found[place] = carried
    return found
