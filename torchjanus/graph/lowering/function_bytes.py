"""Serialise what lowering has made of the functions that belong to one program: recursive calls, switches, and queries
of gradient reachability in switches.

Knows neither where bytes are kept nor the graph of the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.lazy import deferred
from torchjanus.graph.ir.graph_pickling import graph_bytes
from torchjanus.graph.ir.program import Node, Program
from torchjanus.graph.recursion.cells.invoke import EntryCalls, Invocation
from torchjanus.graph.recursion.cells.partition import Partition
from torchjanus.graph.recursion.cells.split import CellParts
from torchjanus.graph.regions.loop import Loop
from torchjanus.graph.regions.loop_bytes import NOTHING, trimmed
from torchjanus.graph.regions.sizes import OwnSizes
from torchjanus.graph.regions.switch import Switch, SwitchPartition
from torchjanus.graph.regions.switch_gradients import Flow, asking_of

__all__ = ["graphs_of", "own_calls", "own_functions", "pack_made_of", "unpack_made_of"]

pickling = deferred("torch.fx._graph_pickler")

Own = EntryCalls | Switch | Flow


def own_calls(program: Program) -> Iterator[Own]:
    """Yield the functions made for the program that its nodes call, in order, including those in loops and in arms."""
    for node in program.nodes:
        if isinstance(node.func, Loop):
            yield from own_calls(node.func.body)
        elif (own := _own(node)) is not None:
            yield own
            if isinstance(own, Switch):
                for arm in own.arms:
                    yield from own_calls(arm.body)


def own_functions(program: Program) -> list[Own]:
    """Return these functions, each once, in an order that is the same in every process."""
    return list({id(own): own for own in own_calls(program)}.values())


def _own(node: Node) -> Own | None:
    if isinstance(node.func, EntryCalls | Switch):
        return node.func
    asking = asking_of(node.func)
    return None if asking is None else asking[0]


def graphs_of(own: Own) -> Iterator[torch.fx.GraphModule]:
    """Yield the graphs that lowering has made of a function and that may contain keys of other functions."""
    if isinstance(own, Switch):
        for switch in own.made.values():
            for arm in switch.arms:
                yield from (direction.graph for direction in (arm.forward, arm.backward) if direction is not None)


def pack_made_of(functions: Sequence[Own]) -> list[Any] | None:
    """Return what lowering has made of these functions. None where it holds the contents of tensors."""
    packed = [*map(_packed, functions)]
    return None if None in packed else packed


def _packed(own: Own) -> Any:
    match own:
        case EntryCalls(invocation=invocation):
            return _pack_calls(invocation)
        case Switch():
            return _pack_arms(own)
        case Flow():
            return (own.key,)


def unpack_made_of(functions: Sequence[Own], packed: Sequence[Any]) -> dict[int, int]:
    """Give these functions what was made of them. Returns the packed keys that differ here, with those here."""
    known: dict[int, int] = {}
    for own, one in zip(functions, packed, strict=True):
        match own:
            case EntryCalls(invocation=invocation):
                _unpack_calls(invocation, one)
            case Switch():
                _unpack_arms(own, one, known)
            case Flow(key=None) if one[0] is not None:
                own.known_as(one[0])
            case Flow(key=int(key)) if one[0] is not None:
                known[one[0]] = key
    return known


# -- recursive calls


def _pack_calls(invocation: Invocation) -> list[tuple[Any, bytes]] | None:
    packed = []
    for wanted, partition in invocation.made.items():
        if not all(trimmed(part.graph) for cell in partition.cells for part in _parts(cell)):
            return None
        cells = tuple(replace(parts, cell=None) for parts in partition.cells)  # type: ignore[arg-type]
        # The reader has the program, and so its cells.
        bare = replace(partition, owner=None, recursion=None, cells=cells)  # type: ignore[arg-type]
        packed.append((wanted, graph_bytes(bare)))
    return packed


def _unpack_calls(invocation: Invocation, packed: Sequence[tuple[Any, bytes]]) -> None:
    recursion = invocation.recursion
    for wanted, data in packed:
        partition = pickling.GraphPickler.loads(data, OwnSizes(()).symbolic.mode)
        assert isinstance(partition, Partition)
        shared = wanted[: len(recursion.shared)]
        cells = tuple(
            invocation.traced.keep(replace(parts, cell=cell), recursion, shared, partition.active)
            for parts, cell in zip(partition.cells, recursion.cells, strict=True)
        )
        invocation.made[wanted] = replace(partition, owner=invocation, recursion=recursion, cells=cells)


def _parts(cell: CellParts) -> list[Any]:
    return [part for part in (cell.common, cell.forward, cell.rows, cell.sums) if part is not None]


# -- switches


def _pack_arms(switch: Switch) -> list[tuple[Any, bytes]] | None:
    if not all(map(trimmed, graphs_of(switch))):
        return None
    packed = []
    for kinds, partition in switch.made.items():
        bare = replace(partition, arms=tuple(replace(arm, body=NOTHING) for arm in partition.arms))
        packed.append((kinds, graph_bytes(bare)))
    return packed


def _unpack_arms(switch: Switch, packed: Sequence[tuple[Any, bytes]], known: dict[int, int]) -> None:
    for kinds, data in packed:
        partition = pickling.GraphPickler.loads(data, OwnSizes(()).symbolic.mode)
        assert isinstance(partition, SwitchPartition)
        if kinds in switch.made:  # another path of this process has the same switch: keep that
            known[partition.key] = switch.made[kinds].key
            continue
        arms = tuple(replace(arm, body=one.body) for arm, one in zip(partition.arms, switch.arms, strict=True))
        switch.made[kinds] = replace(partition, arms=arms)
