"""Serialises the lowered iterations of a program's loops: the forward and backward graph of each.

Where the bytes are stored is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.lazy import deferred
from torchjanus.graph.ir.graph_pickling import graph_bytes
from torchjanus.graph.ir.program import Program
from torchjanus.graph.regions.loop import Loop
from torchjanus.graph.regions.partition import Partition, adopted
from torchjanus.graph.regions.sizes import OwnSizes

__all__ = ["NOTHING", "graphs_of", "has_loops", "loops_in", "pack_iterations", "trimmed", "unpack_iterations"]

pickling = deferred("torch.fx._graph_pickler")

NOTHING = Program((), (), (), (), (), (), ())

PackedLoop = list[tuple[Any, bytes]]  # of one loop: (key of the inputs, bytes of the partition)


def loops_in(program: Program) -> Iterator[Loop]:
    """Yield the loops of a program and those within them, in an order that is the same in every process."""
    for node in program.nodes:
        if isinstance(node.func, Loop):
            yield from node.func.inner()


def has_loops(program: Program) -> bool:
    """Whether the program has rolled loops."""
    return any(isinstance(node.func, Loop) for node in program.nodes)


def graphs_of(program: Program) -> Iterator[torch.fx.GraphModule]:
    """Yield the forward and backward graphs of all loops."""
    for loop in loops_in(program):
        for partition in loop.made.values():
            yield from (
                direction.graph for direction in (partition.forward, partition.backward) if direction is not None
            )


def pack_iterations(program: Program) -> list[PackedLoop] | None:
    """Return the iterations of each loop as bytes. None where a graph contains constants."""
    if not all(map(trimmed, graphs_of(program))):
        return None
    packed = []
    for loop in loops_in(program):
        iterations: PackedLoop = []
        for key, partition in loop.made.items():
            bare = replace(partition, body=NOTHING)  # the program has the body
            iterations.append((key, graph_bytes(bare)))
        packed.append(iterations)
    return packed


def unpack_iterations(program: Program, packed: list[PackedLoop]) -> dict[int, int]:
    """Restore the iterations of the program's loops. Return the old keys that have new ones here: old -> new."""
    renamed: dict[int, int] = {}
    for loop, iterations in zip(loops_in(program), packed, strict=True):
        for key, data in iterations:
            hints = key[2]
            partition = pickling.GraphPickler.loads(data, OwnSizes(hints).symbolic.mode)
            assert isinstance(partition, Partition)
            made = replace(partition, body=loop.body)
            loop.made[key] = adopted(made, loop.body, loop.unseen, key) if loop.shared else made
            if loop.made[key].key != partition.key:
                renamed[partition.key] = loop.made[key].key
    return renamed


def trimmed(graph: torch.fx.GraphModule) -> bool:
    """Reduce the metadata of a graph's nodes to their values; return whether the graph can be packed.

    Contents of tensors cannot be packed."""
    for node in graph.graph.nodes:
        node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    return not any(node.op == "get_attr" for node in graph.graph.nodes)
