"""Traces a program on fake tensors under make_fx, first to a graph without autograd, then to a functional graph.

Owns the mapping from program references to graph values. Slots are numbers here.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode

from torchjanus.core.autograd_thread import one_thread
from torchjanus.core.errors import NOWHERE, Refused, refused
from torchjanus.core.lazy import deferred
from torchjanus.graph.aten.flags import stack_flags
from torchjanus.graph.aten.functional import functionalize
from torchjanus.graph.aten.in_place import traced
from torchjanus.graph.aten.memory import Memory
from torchjanus.graph.aten.symbolic_sizes import Symbolic, quiet
from torchjanus.graph.aten.verify import require_fit
from torchjanus.graph.aten.view_bases import ViewBases
from torchjanus.graph.ir.loop_matching import is_training
from torchjanus.graph.ir.lowered import Leaf, NoGradient, Replaced, Result, Saves, Source, ViewOf
from torchjanus.graph.ir.program import Input, Program
from torchjanus.graph.ir.tensor_versions import memory_of
from torchjanus.graph.operators import data_sizes
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.graph.tracing.autograd_probe import grad_states
from torchjanus.graph.tracing.early_release import SET_GRAD, thrown_early
from torchjanus.graph.tracing.node_tracing import NodeTracer, not_strided
from torchjanus.graph.tracing.outside_gradients import OutsideGraphs
from torchjanus.graph.tracing.pull import pull
from torchjanus.graph.tracing.renumbered import Renumbered, TracedNumbers, renumbered
from torchjanus.graph.tracing.saved_tensors import SavedTensors, drop_forward, saves_of
from torchjanus.graph.tracing.slot_calls import SlotCalls
from torchjanus.graph.tracing.snapshots import Snapshots
from torchjanus.graph.tracing.user_code_calls import UserCodeReplay
from torchjanus.trace.layout import ResultLayout, result_layout_of
from torchjanus.trace.modes import Modes
from torchjanus.trace.user_code import MARKS

__all__ = ["Traced", "made_at", "trace"]

symbolic_shapes = deferred("torch.fx.experimental.symbolic_shapes")


@dataclass(frozen=True, slots=True)
class Traced:
    """One trace: the functional graph, and how results are made of its flat output (see ``Lowered``)."""

    graph: torch.fx.GraphModule
    fresh: int
    mutated: tuple[int, ...]
    restored: tuple[int, ...]
    outputs: tuple[Result, ...]
    leaves: tuple[Leaf, ...]
    requires_grad_set: tuple[tuple[int, bool], ...]
    replaced: tuple[Replaced, ...]
    drawn: tuple[int, ...]  # random operations before each cut
    symbolic: Symbolic
    measures: tuple[Any, ...]  # the program's measures as symbolic integers
    layouts: tuple[ResultLayout, ...]  # layouts of the fresh values
    made: tuple[torch.Tensor, ...]  # fakes of the inputs and, where a size may be 0 or 1, of all results
    uncounted: frozenset[int]  # the inputs whose version does not increase
    saves: Saves | None
    uses: tuple[int, ...]
    before: TracedNumbers  # what it was before it was made functional
    slot_calls: SlotCalls
    twin: Renumbered | None = None  # in place of ``graph``, which is the other trace's: see ``trace``

    @property
    def results(self) -> tuple[Any, ...]:
        """The structure of its results, to compare traces."""
        return self.outputs, self.leaves, self.mutated, self.restored, self.replaced


def trace(
    program: Program, numbers: Sequence[float | int], held: Container[int] = (), other: Traced | None = None
) -> Traced:
    """Trace ``program`` with these numbers in its slots; slots in ``held`` are constants. No real tensor is touched.

    ``other``: a trace with other numbers, of which the functional graph is derived where that is possible. Raises Pin
    where a slot selects an element by a view that has to stay a view."""
    if other is not None and (found := _renumbered(other, numbers)) is not None:
        return found
    symbolic = Symbolic(program.dimensions)
    run = _Run(program, numbers, symbolic, held)
    given = [k for k, one in enumerate(program.dimensions) if one.slot is not None or one.made]
    counts = [symbolic.sizes[k] for k in given]
    with quiet(), symbolic.sparing(), Ambient() as ambient:
        try:
            first = run.traced(counts)
        except symbolic_shapes.GuardOnDataDependentSymNode as error:
            raise symbolic.unsuited("another size does not follow from them by a formula") from error
        symbolic.check()
        drop_forward(first, run.forward)
        if program.nodes:
            # No gradients and no autocast from here on, but the default dtype still decides promotions.
            ambient.switch(Modes(grad=False, default_dtype=program.nodes[0].modes.default_dtype))
        before = TracedNumbers.of(first)
        # Where sizes vary, what functionalisation computes of them may depend on numbers.
        alike = other if not program.dimensions else None
        twin = None if alike is None else renumbered(alike.graph, alike.before, before)
        if alike is not None and twin is not None:
            graph, mutated, restored = alike.graph, alike.mutated, alike.restored
        else:
            graph, mutated, restored = _functionalise(first, program, symbolic, counts)
    places = zip(given, graph.graph.nodes, strict=False)
    data_sizes.fold(graph, [node for k, node in places if program.dimensions[k].made])
    measured = run.snapshots.measured
    return Traced(
        graph,
        run.memory.fresh,
        mutated,
        restored,
        run.outputs,
        run.leaves,
        run.flips,
        run.replaced,
        tuple(run.snapshots.drawn),
        symbolic,
        tuple(measured[number] for number in range(len(program.measures))),
        tuple(map(result_layout_of, run.memory.values)),
        tuple(run.nodes.made),
        run.uncounted,
        run.saves,
        run.uses,
        before,
        run.slot_calls,
        twin,
    )


def _renumbered(other: Traced, numbers: Sequence[float | int]) -> Traced | None:
    """Return the trace with these numbers, if it is known to be the other one with the numbers exchanged."""
    before = other.slot_calls.renumbered(other.before, numbers)
    twin = None if before is None else renumbered(other.graph, other.before, before)
    return None if before is None or twin is None else replace(other, before=before, twin=twin)


def made_at(
    program: Program, numbers: Sequence[float | int], held: Container[int], sizes: Sequence[int]
) -> list[torch.Tensor]:
    """Return fakes of the inputs and of all results for these dynamic sizes. Raises what tracing raises."""
    run = _Run(program, numbers, Symbolic(program.dimensions, sizes), held)
    with quiet(), Ambient():
        run.traced([sizes[k] for k, one in enumerate(program.dimensions) if one.slot is not None or one.made])
    return run.nodes.made


def _functionalise(
    graph: torch.fx.GraphModule, program: Program, symbolic: Symbolic, counts: Sequence[Any]
) -> tuple[torch.fx.GraphModule, tuple[int, ...], tuple[int, ...]]:
    try:
        return functionalize.functionalise(graph, program.inputs, symbolic, counts)
    except RuntimeError as error:
        if not program.dimensions:
            raise
        raise symbolic.unsuited(f"the step cannot be made functional ({error})") from error


def _fake(entry: Input, symbolic: Symbolic) -> torch.Tensor:
    example = entry.example
    with torch._C.DisableTorchFunction():  # its class must not see the query
        layout = "quantized" if example.is_quantized else example.layout
    if type(example) not in (torch.Tensor, torch.nn.Parameter) or layout != torch.strided:
        what = f"a tensor of type {type(example).__name__} with layout {layout} is read"
        raise refused("tensor-layout", what, "Only plain strided tensors go into a graph.", "Convert it beforehand.")
    return symbolic.fake(entry).requires_grad_(entry.requires_grad)


class _Run:
    """The function that make_fx traces: runs the program, node by node, on fake tensors."""

    def __init__(
        self, program: Program, numbers: Sequence[float | int], symbolic: Symbolic, held: Container[int]
    ) -> None:
        self.program = program
        self.symbolic = symbolic
        self.memory = Memory()
        self.outputs: tuple[Result, ...] = ()
        self.leaves: tuple[Leaf, ...] = ()
        self.flips: tuple[tuple[int, bool], ...] = ()
        self.replaced: tuple[Replaced, ...] = ()
        self.nodes = NodeTracer(program, numbers, symbolic, held)
        self.slot_calls = SlotCalls(program, held)
        self.replacing, self.picks = self.nodes.replacing, self.nodes.picks
        self.uncounted: frozenset[int] = frozenset()
        self.saves: Saves | None = None
        self.forward: frozenset[str] = frozenset()  # the nodes before the backward pass, where only that is wanted
        self.uses: tuple[int, ...] = ()

    def traced(self, counts: Sequence[Any]) -> torch.fx.GraphModule:
        """Return the traced graph, which takes ``counts`` first."""
        fakes = [_fake(entry, self.symbolic) for entry in self.program.inputs]
        self.nodes.made = [*fakes]
        graph = traced(lambda *given: self(*given[len(counts) :]), *counts, *fakes)
        require_fit(graph.graph)
        return graph

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        program = self.program
        values: dict[int, torch.Tensor] = dict(enumerate(tensors))
        for entry, tensor in zip(program.inputs, tensors, strict=True):
            if entry.grad is not None:
                tensor.grad = tensors[entry.grad.index]
        self.snapshots = Snapshots(program, values, self.nodes.changes, self.replacing.expected)
        self.nodes.begin(tensors, self.snapshots)
        outside = OutsideGraphs(program.inputs, tensors)
        versions = [None if one.is_inference() else one._version for one in tensors]
        self.saving = SavedTensors(program, values)
        with Ambient() as ambient, one_thread(), self.saving.recorded():

            def execute(first: int, last: int) -> None:
                position = first
                while True:
                    self.picks.ask(program, position, values)
                    self.snapshots.take(position)
                    if position >= last:
                        break
                    node = program.nodes[position]
                    ambient.switch(node.modes)
                    if isinstance(node.func, MARKS):
                        position = self.calling.take(position)
                    else:
                        preceding = self.slot_calls.before(node, values)
                        outside.require_apart(node, values)
                        try:
                            self.nodes.make(node, values)
                        except Refused as refused:
                            raise refused.at(node.place) from refused
                        self.slot_calls.after(preceding, values)
                        position += 1
                if last < len(program.nodes):  # autograd continues in the modes in which it called this code
                    ambient.switch(program.nodes[first - 1].modes)

            self.calling = UserCodeReplay(program.nodes, values, execute)
            execute(0, len(program.nodes))
            self.calling.finish()
        self.uncounted = frozenset(
            k for k, one in enumerate(tensors) if not one.is_inference() and one._version == versions[k]
        )
        return self._finish(tensors, values) if program.backward is None else self._pulled(tensors, values)

    def _finish(self, tensors: Sequence[torch.Tensor], values: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """Determine the memory of each result, and return the graph's flat values."""
        program, memory = self.program, self.memory
        if any(torch._C._functorch.is_gradtrackingtensor(values[ref.index]) for ref in program.outputs):
            what = "a tensor is kept that belongs to a transform of torch.func"
            remedy = "Store detached tensors there, or return what the function computes (has_aux=True)."
            raise refused(
                "tensor-of-transform", what, "What is stored there is a tensor of that transform only.", remedy
            )
        shown = (ref for number, ref in enumerate(program.outputs) if number not in program.fetched)
        self.picks.check((values[ref.index] for ref in shown), self.replacing.expected)
        finals = self.snapshots.finals()
        grads = [tensors[ref.index].grad for ref in program.leaves]
        for grad in grads:
            if grad is not None and grad.layout != torch.strided:
                place = next((node.place for node in reversed(program.nodes) if is_training(node.func)), NOWHERE)
                raise not_strided("backward", grad, place)
        self.calling.probing = True
        with torch.no_grad():
            moved = self.replacing.moved(tensors)
            looked_at = self._looked_at(finals)
            states = grad_states([*finals, *grads])
            saves, saved = self.saving.needed(tensors, finals, states) if program.saves else (None, {})
            kept = [*saved.values()]
            placed = [*finals, *grads, *moved.values()]
            sources = memory.place(tensors, placed, self.replacing.before(tensors), looked_at, kept)
            flat = [tensor.detach() for tensor in memory.values]
            if self.snapshots.flags:
                flat.append(stack_flags(self.snapshots.flags))
        results = [Result(source, state) for source, state in zip(sources, states, strict=False)]
        places = dict(zip(moved, map(self._on_host, sources[len(results) :]), strict=False))
        if saves is not None:
            self.saves = saves_of(saves, saved, sources[len(sources) - len(kept) :], tensors, memory.values)
        self.replaced = self.replacing.replaced(tensors, places)
        made = [
            Result(self._on_host(result.source), result.state, memory_of(values[ref.index]) in self.nodes.inference)
            for result, ref in zip(results, program.outputs, strict=False)
        ]
        bases = ViewBases(memory, tensors, finals, made, self._on_host)
        self.outputs = tuple(
            bases.merged(tensor, result) if number in looked_at else result
            for number, (tensor, result) in enumerate(zip(finals, made, strict=True))
        )
        # Where a gradient is only set to None, the trace does not show whether there was one.
        thrown = {node.args[0] for node in program.nodes if node.func == SET_GRAD}
        early = thrown_early(program)
        leaves = []
        for ref, result in zip(program.leaves, results[len(finals) :], strict=True):
            entry = program.inputs[ref.index].grad
            before = NoGradient() if entry is None else memory.of_input(entry.index)
            unknown = entry is None and ref in thrown
            source = self._on_host(result.source)
            changed = unknown or source != before
            gone = changed and unknown and ref in early
            leaves.append(Leaf(ref.index, Result(source, result.state), changed, gone, gone and early[ref]))
        self.leaves = tuple(leaves)
        self.flips = self._flips(tensors)
        return flat

    def _pulled(self, tensors: Sequence[torch.Tensor], values: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        """Run the backward pass, and return the graph's flat values."""
        backward = self.program.backward
        assert backward is not None
        self.forward = frozenset(node.name for node in get_proxy_mode().tracer.graph.nodes)  # type: ignore[union-attr]
        results, tangents, wanted = (
            [values[ref.index] for ref in refs] for refs in (backward.results, backward.tangents, backward.wanted)
        )
        with one_thread():
            found = pull(results, tangents, wanted)
        with torch.no_grad():
            sources = self.memory.place(tensors, [gradient for _, gradient in found])
            self.outputs = tuple(map(Result, sources))
            self.uses = tuple(backward.wanted[place].index for place, _ in found)
            return [tensor.detach() for tensor in self.memory.values]

    def _looked_at(self, finals: Sequence[torch.Tensor]) -> list[int]:
        """Return the outputs that the program itself may read. Values at a cut have to be the graph's own."""
        given = {memory_of(finals[number]) for cut in self.program.cuts for number in cut.outputs}
        shown = (number for number in range(len(finals)) if number not in self.program.fetched)
        return [number for number in shown if memory_of(finals[number]) not in given]

    def _on_host(self, source: Source) -> Source:
        """Return the source with its sizes as host expressions."""
        if not isinstance(source, ViewOf):
            return source
        size, stride = (tuple(map(self.symbolic.expression, part)) for part in (source.size, source.stride))
        return replace(source, size=size, stride=stride, offset=self.symbolic.expression(source.offset))

    def _flips(self, tensors: Sequence[torch.Tensor]) -> tuple[tuple[int, bool], ...]:
        watched = {ref.index for ref in self.program.leaves}
        flips = []
        for index, (entry, tensor) in enumerate(zip(self.program.inputs, tensors, strict=True)):
            where = f"input {index} ({entry.name})" if entry.name else f"input {index}"
            if tensor.grad_fn is not None:
                why = "After the call it would carry a backward graph, which one whole-step graph cannot leave behind."
                remedy = "Change it under torch.no_grad(), or use an out-of-place operation."
                raise refused("gradient-outside", f"{where} is changed in place with gradients", why, remedy)
            if index not in watched and entry.grad is None and entry.is_leaf and tensor.grad is not None:
                what = f"{where} receives a gradient that was not seen in the watched runs"
                raise refused("gradient-outside", what, "Its .grad is not among the tracked results.")
            if tensor.requires_grad != entry.requires_grad:
                flips.append((index, tensor.requires_grad))
        return tuple(flips)
