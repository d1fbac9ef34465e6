"""What lowering has made of the loops of a program as bytes: their iterations in both directions.

Knows nothing of where bytes are kept, nor of the step's own graph.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.fx._graph_pickler import GraphPickler, Options

from torchjanus.graph.ir.program import Program
from torchjanus.graph.regions.loop import Loop
from torchjanus.graph.regions.partition import Partition, adopted
from torchjanus.graph.regions.sizes import OwnSizes

__all__ = ["NOTHING", "graphs_of", "has_loops", "loops_in", "pack_iterations", "trimmed", "unpack_iterations"]

NOTHING = Program((), (), (), (), (), (), ())

PackedLoop = list[tuple[Any, bytes]]  # of one loop: for which inputs, and the halves


def loops_in(program: Program) -> Iterator[Loop]:
    """The loops of a program, those within others too, in an order that is the same in every process."""
    for node in program.nodes:
        if isinstance(node.func, Loop):
            yield from node.func.inner()


def has_loops(program: Program) -> bool:
    """Whether the program has loops that are rolled up."""
    return any(isinstance(node.func, Loop) for node in program.nodes)


def graphs_of(program: Program) -> Iterator[torch.fx.GraphModule]:
    """The iterations of all loops in both directions."""
    for loop in loops_in(program):
        for partition in loop.made.values():
            yield from (
                direction.graph for direction in (partition.forward, partition.backward) if direction is not None
            )


def pack_iterations(program: Program) -> list[PackedLoop] | None:
    """The iterations of each loop. None where an iteration holds the contents of tensors."""
    if not all(map(trimmed, graphs_of(program))):
        return None
    packed = []
    for loop in loops_in(program):
        iterations: PackedLoop = []
        for key, partition in loop.made.items():
            bare = replace(partition, body=NOTHING)  # whoever has the program has it
            iterations.append((key, bytes(GraphPickler.dumps(bare, Options(ops_filter=None)))))
        packed.append(iterations)
    return packed


def unpack_iterations(program: Program, packed: list[PackedLoop]) -> dict[int, int]:
    """Let the loops of the program have these iterations. Returns under which keys they are known here that had others
    there."""
    renamed: dict[int, int] = {}
    for loop, iterations in zip(loops_in(program), packed, strict=True):
        for key, data in iterations:
            hints = key[2]
            partition = GraphPickler.loads(data, OwnSizes(hints).symbolic.mode)
            assert isinstance(partition, Partition)
            made = replace(partition, body=loop.body)
            loop.made[key] = adopted(made, loop.body, loop.unseen, key) if loop.shared else made
            if loop.made[key].key != partition.key:
                renamed[partition.key] = loop.made[key].key
    return renamed


def trimmed(graph: torch.fx.GraphModule) -> bool:
    """Leave of what is known of a graph's values only what they are like. Whether it can be packed then: the contents
    of tensors are no part of a packed graph."""
    for node in graph.graph.nodes:
        node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    return not any(node.op == "get_attr" for node in graph.graph.nodes)
