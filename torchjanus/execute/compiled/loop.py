"""Runs the iterations of loops by compiled code: blocks of iterations, with one artifact for each direction.

The outputs of the iterations are stacked in buffers that are allocated before the first; a block writes its rows.
Nothing is stacked or allocated between blocks. This module does not know how artifacts are made or loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.execute.regions.loop import Reading, ReplayLoop, first_rows, loops_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Input, Program
from torchjanus.graph.lowering.for_inductor import Prepared, prepare
from torchjanus.graph.operators.loop_op import (
    LoopInputs,
    LoopRunner,
    Tangents,
    compiled_key,
    is_loop,
    register,
    runners_of,
)
from torchjanus.graph.regions.blocks import Block, backward_block, forward_block, width_for
from torchjanus.graph.regions.partition import Partition, Source

__all__ = ["CompiledLoop", "PreparedBlock", "compiled_loops", "loops_to_compile", "prepared_blocks"]

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class PreparedBlock:
    """A block prepared for Inductor: its arguments are tensors, a buffer for each output, and constants.

    It adds the outputs in ``added`` to the contents of their buffers.
    """

    prepared: Prepared
    block: Block
    examples: tuple[torch.Tensor, ...]

    def bare(self) -> PreparedBlock:
        """Return what is needed to run the block once it has been compiled."""
        prepared = self.prepared.bare()
        return PreparedBlock(prepared, replace(self.block, graph=prepared.graph), ())


def prepared_blocks(partition: Partition, counts: Iterable[int | None]) -> list[PreparedBlock]:
    """Return what has to be compiled for loops of these trip counts: forward and backward of blocks, and of single
    iterations if some are left over."""
    counts = list(counts)
    width = width_for(partition, counts)
    widths = [width] if all(count is not None and count % width == 0 for count in counts) else [width, 1]
    found = []
    for one in dict.fromkeys(widths):
        found.append(_writing(forward_block(partition, one), frozenset()))
        if partition.backward is not None:
            block, first = backward_block(partition, one, width), partition.carried + partition.stacked
            added = (number for number, position in enumerate(block.gives) if partition.wanted[position] >= first)
            found.append(_writing(block, frozenset(added)))
    return found


def loops_to_compile(lowered: Lowered) -> list[tuple[Partition, set[int | None]]]:
    """Return the loops that the graph runs, with their trip counts (None where the count varies)."""
    partition_made = [direction for partition in loops_of(lowered.program) for direction in _both(partition)]
    counts: dict[int, set[int | None]] = {}
    graphs = [lowered.graph, *(direction.graph for direction in partition_made)]
    for graph in graphs:
        for node in graph.graph.nodes:
            if is_loop(node.target):
                count = node.args[2]
                counts.setdefault(node.args[0], set()).add(count if isinstance(count, int) else None)
    known = (partition for partition in loops_of(lowered.program) if not partition.sizes and _on_processor(partition))
    return [(partition, counts[partition.key]) for partition in known if partition.key in counts]


def _on_processor(partition: Partition) -> bool:
    """Whether all tensors are on the CPU: on other devices ATen runs the iterations."""
    nodes = (node for direction in _both(partition) for node in direction.graph.graph.nodes if node.op == "placeholder")
    return all(node.meta["val"].device.type == "cpu" for node in nodes if "val" in node.meta)


def _both(partition: Partition) -> list[Any]:
    return [direction for direction in (partition.forward, partition.backward) if direction is not None]


def compiled_loops(lowered: Lowered, made: Sequence[CompiledLoop]) -> list[LoopRunner]:
    """Return the runners of a compiled graph's loops. The graph can be run as long as they are kept."""
    for iterations in made:
        register(compiled_key(iterations.partition.key), iterations)
    return [runners_of(compiled_key(partition.key)) for partition, _ in loops_to_compile(lowered)]


def _writing(block: Block, added: frozenset[int]) -> PreparedBlock:
    placeholders = [node for node in block.graph.graph.nodes if node.op == "placeholder"]
    examples = []
    for source, rows, node in zip(block.sources, block.rows, placeholders, strict=True):
        like = node.meta["val"]
        if rows or source.kind not in ("stacked", "invariant"):
            examples.append(torch.empty(like.size(), dtype=like.dtype))
        else:
            examples.append(torch.empty_strided(like.size(), like.stride(), dtype=like.dtype))
    program = Program(tuple(Input(e, False, True) for e in examples), (), (), (), (), (), ())
    count = len(block.graph.graph.output_node().args[0])  # type: ignore[arg-type]
    size = len(block.graph.graph.nodes)
    lowered = Lowered(program, block.graph, count, (), (), (), (), {}, {}, False, torch.get_default_dtype(), size)
    prepared = prepare(lowered)
    graph = prepared.graph.graph
    output: Any = graph.output_node()
    dropped = dict(prepared.copies)
    given = iter(output.args[0])
    found: list[Any] = []
    for position in range(count):
        found.append(found[dropped[position]] if position in dropped else next(given))
    behind = [node for node in graph.nodes if node.op == "placeholder"][len(examples) :]
    after = behind[0] if behind else next(node for node in graph.nodes if node.op != "placeholder")
    with graph.inserting_before(after):
        buffers = [graph.placeholder(f"buffer_{position}") for position in range(count)]
    with graph.inserting_before(output):
        for position, (buffer, value) in enumerate(zip(buffers, found, strict=True)):
            written = graph.call_function(aten.add.Tensor, (buffer, value)) if position in added else value
            graph.call_function(aten.copy_.default, (buffer, written))
    output.args = ((),)
    examples += [torch.empty(v.meta["val"].size(), dtype=v.meta["val"].dtype) for v in found]
    for node in graph.nodes:
        node.meta.clear()  # Inductor derives it again from the examples, for buffers too
    graph.lint()
    prepared.graph.recompile()
    return PreparedBlock(replace(prepared, copies=()), block, tuple(examples))


Call = Callable[..., Any]


class CompiledLoop:
    """See graph.operators.loop_op.Iterations."""

    def __init__(self, partition: Partition, made: Sequence[PreparedBlock], calls: Sequence[Call]) -> None:
        """``calls``: the compiled functions of ``made``."""
        self.partition = partition
        parts = [(writing.block, call, writing.prepared.constants) for writing, call in zip(made, calls, strict=True)]
        step = 1 if partition.backward is None else 2
        self._forward = parts[::step]
        self._backward = parts[1::step] if step == 2 else []
        self._none = ReplayLoop(partition)

    def _phases(self, count: int) -> list[tuple[int, int]]:
        """Return where the iterations of blocks, and then the single ones, begin and end."""
        width = self._forward[0][0].width
        end = count // width * width
        return [(0, end), (end, count)]

    def forward(self, count: int, given: LoopInputs, sizes: Sequence[int] = ()) -> list[torch.Tensor]:
        if not count:
            return self._none.forward(count, given)
        partition = self.partition
        first = partition.carried
        invariants = given.invariants
        stacks = [one.empty(count) for one in partition.gives[first:]]
        current = [tensor.contiguous() for tensor in given.carried]
        stacked = [tensor.contiguous() for tensor in first_rows(count, given.stacked)]
        stacked += [
            ahead.made(stacked, invariants) for ahead in self._forward[0][0].ahead
        ]  # for single iterations, too
        hidden = [index for index in range(first) if index not in partition.shown]
        shown = {index: stacks[_place(partition, index)] for index in partition.shown}
        for (begin, end), (block, call, constants) in zip(self._phases(count), self._forward, strict=False):
            width = block.width
            blocks = (end - begin) // width
            if not blocks:
                continue
            targets: list[Sequence[torch.Tensor]] = []
            columns: dict[Source, Sequence[torch.Tensor]] = {}
            for index in hidden:
                targets.append(_in_turn(current[index], blocks))
                columns[Source("carried", index)] = (current[index], *targets[-1][:-1])
                current[index] = targets[-1][-1]
            for index, stack in shown.items():
                ends = stack[begin + width - 1 : end : width].unbind(0)
                columns[Source("carried", index)] = (current[index], *ends[:-1])
                current[index] = ends[-1]
            targets += [_blocks(stack, begin, end, width) for stack in stacks]
            for source in block.sources:
                if source.kind == "stacked":
                    columns[source] = _blocks(stacked[source.index], begin, end, width)
                elif source.kind == "invariant":
                    columns[source] = (invariants[source.index],) * blocks
            for row in zip(*(columns[source] for source in block.sources), *targets, strict=True):
                call(*row, *constants)
        finals = [tensor.clone() if index in shown else tensor for index, tensor in enumerate(current)]
        return [*finals, *stacks]

    def backward(
        self, count: int, flows: Tangents, kept: Sequence[torch.Tensor], sizes: Sequence[int] = ()
    ) -> list[torch.Tensor]:
        if not count:
            return self._none.backward(count, flows, kept)
        partition = self.partition
        dense = Tangents(flows.present, [tangent.contiguous() for tangent in flows.tangents])
        reading = Reading(partition, count, dense, kept)
        flowing = reading.flowing()
        factored = self._backward[0][0].factored  # the same in blocks and in single iterations
        factors = [given.empty(count) for given in factored.rows]
        results = [given.empty(count) if given.stacked else given.zeros() for given in partition.gradients]
        for (begin, end), (block, call, constants) in reversed(
            list(zip(self._phases(count), self._backward, strict=False))
        ):
            width = block.width
            blocks = (end - begin) // width
            if not blocks:
                continue
            targets: list[Sequence[torch.Tensor]] = []
            columns: dict[Source, Sequence[torch.Tensor]] = {}
            places = {position: number for number, position in enumerate(block.gives)}
            for position in places:
                index = partition.wanted[position]
                if partition.gradients[position].stacked:
                    targets.append(_blocks(results[position], begin, end, width)[::-1])
                elif index >= partition.carried:
                    targets.append((results[position],) * blocks)
                else:
                    targets.append(_in_turn(results[position], blocks))
                    results[position] = targets[-1][-1]
            targets += [_blocks(rows, begin, end, width)[::-1] for rows in factors]
            for index, start in flowing.items():
                if index in partition.wanted:
                    following = targets[places[partition.wanted.index(index)]]
                else:
                    following = (torch.zeros_like(start),) * blocks
                columns[Source("tangent", index)] = (start, *following[:-1])
                flowing[index] = following[-1]
            for source, rows in zip(block.sources, block.rows, strict=True):
                if source in columns:
                    continue
                if rows:
                    columns[source] = _blocks(reading.stack(source), begin, end, width)[::-1]
                elif source.kind == "invariant":
                    columns[source] = (reading.stack(source),) * blocks
                else:  # a carried value as the first iteration of each block gets it
                    columns[source] = reading.rows(source)[begin:end:width][::-1]
            for given in zip(*(columns[source] for source in block.sources), *targets, strict=True):
                call(*given, *constants)
        for product in factored.products:
            left, right = (
                factors[factor] if isinstance(factor, int) else reading.all_rows(factor)
                for factor in (product.left, product.right)
            )
            results[product.position] = torch.mm(left.flatten(0, 1).t(), right.flatten(0, 1))
        return results


def _in_turn(value: torch.Tensor, blocks: int) -> Sequence[torch.Tensor]:
    """Return where each block writes a value that it hands to the next one: two tensors like it, in turn."""
    both = torch.empty_like(value), torch.empty_like(value)
    return [both[number % 2] for number in range(blocks)]


def _blocks(stack: torch.Tensor, begin: int, end: int, width: int) -> Sequence[torch.Tensor]:
    return torch.split(stack if end - begin == stack.size(0) else stack[begin:end], width)


def _place(partition: Partition, index: int) -> int:
    """Return the position, among the stacks, of the one that contains the carried value."""
    source = partition.shown[index]
    return source.index + (partition.results - partition.carried if source.kind == "saved" else 0)
