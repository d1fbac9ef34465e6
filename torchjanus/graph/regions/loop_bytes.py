"""What lowering has made of the loops of a program as bytes: their rounds in both directions.

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
from torchjanus.graph.regions.partition import Halves, adopted
from torchjanus.graph.regions.sizes import OwnSizes

__all__ = ["NOTHING", "graphs_of", "has_loops", "loops_in", "pack_rounds", "trimmed", "unpack_rounds"]

NOTHING = Program((), (), (), (), (), (), ())

Rounds = list[tuple[Any, bytes]]  # of one loop: for which inputs, and the halves


def loops_in(program: Program) -> Iterator[Loop]:
    """The loops of a program, those within others too, in an order that is the same in every process."""
    for node in program.nodes:
        if isinstance(node.func, Loop):
            yield from node.func.inner()


def has_loops(program: Program) -> bool:
    """Whether the program has loops that are rolled up."""
    return any(isinstance(node.func, Loop) for node in program.nodes)


def graphs_of(program: Program) -> Iterator[torch.fx.GraphModule]:
    """The rounds of all loops in both directions."""
    for loop in loops_in(program):
        for halves in loop.made.values():
            yield from (half.graph for half in (halves.forward, halves.backward) if half is not None)


def pack_rounds(program: Program) -> list[Rounds] | None:
    """The rounds of each loop. None where a round holds the contents of tensors."""
    if not all(map(trimmed, graphs_of(program))):
        return None
    packed = []
    for loop in loops_in(program):
        rounds: Rounds = []
        for key, halves in loop.made.items():
            bare = replace(halves, body=NOTHING)  # whoever has the program has it
            rounds.append((key, bytes(GraphPickler.dumps(bare, Options(ops_filter=None)))))
        packed.append(rounds)
    return packed


def unpack_rounds(program: Program, packed: list[Rounds]) -> dict[int, int]:
    """Let the loops of the program have these rounds. Returns under which keys they are known here that had others
    there."""
    renamed: dict[int, int] = {}
    for loop, rounds in zip(loops_in(program), packed, strict=True):
        for key, data in rounds:
            hints = key[2]
            halves = GraphPickler.loads(data, OwnSizes(hints).symbolic.mode)
            assert isinstance(halves, Halves)
            made = replace(halves, body=loop.body)
            loop.made[key] = adopted(made, loop.body, loop.unseen, key) if loop.shared else made
            if loop.made[key].key != halves.key:
                renamed[halves.key] = loop.made[key].key
    return renamed


def trimmed(graph: torch.fx.GraphModule) -> bool:
    """Leave of what is known of a graph's values only what they are like. Whether it can be packed then: the contents
    of tensors are no part of a packed graph."""
    for node in graph.graph.nodes:
        node.meta = {"val": node.meta["val"]} if "val" in node.meta else {}
    return not any(node.op == "get_attr" for node in graph.graph.nodes)
