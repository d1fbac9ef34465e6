"""Sums over the rounds of a loop: chains of additions, of which each adds to the one before and nobody sees it between.

The terms of such a chain do not wait for each other: they can be computed all at once, whatever else is done with each
of them, and then added up in the order in which the program does it. Found by what depends on what: a sum(), a loop
that adds, and several of them in one loop are all the same. Knows nothing of cells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from torchjanus.errors import Place
from torchjanus.graph.program import Node, Ref
from torchjanus.graph.way_nodes import refs_of

__all__ = ["Accumulation", "accumulations", "varying"]

_ADDITIONS = (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__)


@dataclass(frozen=True, slots=True)
class Accumulation:
    """``start + items[0] + items[1] ...``; without a start, zeros are (as in ``sum``). ``links``: which of the nodes
    make it; ``carried``: which of their operands is what was added up before."""

    place: Place
    carried: int
    start: Ref | None
    items: tuple[Ref, ...]
    out: Ref
    links: tuple[int, ...]
    grad: bool  # whether gradients flow through it


def accumulations(nodes: Sequence[Node], kept: Iterable[int], carried: int) -> list[Accumulation]:
    """All chains of additions, of one or more. ``kept``: tensors that somebody else sees."""
    uses = Counter(ref.index for node in nodes for ref in refs_of(node))
    uses.update(kept)
    chains: list[list[int]] = []
    ends: dict[tuple[Place, int], list[int]] = {}  # chains that may go on, by their place and what they have made
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


def varying(ways: Iterable[Sequence[Accumulation]]) -> dict[Place, int]:
    """Where sums have more terms in some ways than in others, and which operand is carried there."""
    lengths: dict[tuple[Place, int], set[int]] = {}
    for way in ways:
        for one in way:
            lengths.setdefault((one.place, one.carried), set()).add(len(one.items))
    found: dict[Place, int] = {}
    for (place, carried), some in lengths.items():
        # Where no operand is seen to be carried, there is nothing to be added up.
        if max(some) > 1 and len(some) > 1 and (place not in found or max(some) > max(lengths[place, found[place]])):
            found[place] = carried
    return found
