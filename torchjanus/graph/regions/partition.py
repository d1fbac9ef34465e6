"""Partitions one iteration of a loop into functional ATen graphs, forward and backward, and describes their arguments.

Trip counts and the execution of iterations are not known here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.core.access_path import token_of
from torchjanus.core.errors import Refused, refused
from torchjanus.core.trees import map_leaves, tree_token
from torchjanus.graph.aten import clean_up
from torchjanus.graph.aten.functional import functionalize
from torchjanus.graph.aten.in_place import traced
from torchjanus.graph.aten.symbolic_sizes import Fixed, value_of_formula
from torchjanus.graph.ir.loop_matching import is_training
from torchjanus.graph.ir.program import Formula, Input, Measured, Program, Ref, Slot, Symbol, with_copies
from torchjanus.graph.operators.loop_op import LoopInputs, TensorSignature, new_key
from torchjanus.graph.regions.half_effects import effects_of, effects_of_inputs, is_repeatable
from torchjanus.graph.regions.saved_values import pack, return_values, returned, root_views
from torchjanus.graph.regions.sizes import OwnSizes, SymbolicInputs
from torchjanus.graph.tracing.ambient import Ambient

__all__ = ["Partition", "Source", "SourcedGraph", "adopted", "kind_of", "partition_of", "structure_of"]


@dataclass(frozen=True, slots=True)
class Source:
    """The source of an argument of a graph. For its kinds see ``Partition`` and the cells of recursive calls."""

    kind: str
    index: int


@dataclass(frozen=True, slots=True)
class SourcedGraph:
    """A functional graph, and the source of each of its arguments."""

    graph: torch.fx.GraphModule
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Partition:
    """The forward and backward graph of one iteration, for inputs of given kinds.

    The sources of their arguments: carried, stacked, invariant (inputs of the body, by index); output (an iteration's
    output), saved (saved for backward only), tangent (of an output of the body), size (by index among the iteration's
    sizes).

    ``forward`` returns the next carried values, the iteration's outputs, and what only the backward needs. ``backward``
    (None where nothing requires gradients) returns the gradients of the body's inputs whose indices are in ``wanted``.
    """

    key: int
    carried: int
    stacked: int
    invariants: int
    forward: SourcedGraph
    backward: SourcedGraph | None
    gives: tuple[TensorSignature, ...]  # the results of the loop, then the saved values
    gradients: tuple[TensorSignature, ...]
    wanted: tuple[int, ...]
    tangents: tuple[int, ...]  # outputs that have gradients
    kept: tuple[Source, ...]  # operands of the backward loop, besides tangents
    results: int  # number of the body's outputs; further results of ``forward`` are saved values
    shown: dict[int, Source]  # carried value -> the output or saved value that equals it
    histories: tuple[int, ...]  # other carried values that the backward needs: each iteration's, saved last
    random: bool
    body: Program  # the body of the iterations
    sizes: tuple[Any, ...] = ()  # sizes that the runner of the iterations passes in, in the iteration's symbols
    conditions: tuple[Any, ...] = ()  # conditions on them

    def sized(self, sizes: Sequence[int]) -> Partition:
        """Return the partition with these values as sizes."""
        if not sizes:
            return self
        gives, gradients = (tuple(one.sized(sizes) for one in given) for given in (self.gives, self.gradients))
        return replace(self, gives=gives, gradients=gradients)

    @property
    def inputs(self) -> int:
        return self.carried + self.stacked + self.invariants

    def operands(self, made: Sequence[torch.Tensor], given: LoopInputs) -> list[torch.Tensor]:
        """Return the operands of the backward loop, besides tangents. ``made``: the results of the forward loop."""
        results = {"output": made[self.carried :], "saved": made[self.results :]}
        return [(results[one.kind] if one.kind in results else given.of(one.kind))[one.index] for one in self.kept]


def _source_of(index: int, carried: int, stacked: int) -> Source:
    if index < carried:
        return Source("carried", index)
    index -= carried
    return Source("stacked", index) if index < stacked else Source("invariant", index - stacked)


def partition_of(
    body: Program,
    carried: int,
    stacked: int,
    given: SymbolicInputs,
    shared: bool = False,
    copied: frozenset[int] = frozenset(),
) -> Partition:
    """Return the forward and backward graph of one iteration. Raises Refused where a graph cannot repeat it.

    ``shared``: whether bodies of equal structure share one partition. ``copied``: outputs that may be cloned where
    outputs share memory."""
    if not shared:
        return _Body(body, carried, stacked, given, copied).partition()
    key = (carried, stacked, given.kinds, given.others, given.hints, copied, structure_of(body))
    made = _MADE.get(key)
    if made is None:
        made = _MADE[key] = _Body(body, carried, stacked, given, copied).partition()
    return made


def adopted(partition: Partition, body: Program, copied: frozenset[int], made_for: Any) -> Partition:
    """Return a partition that was unpacked from bytes, or the shared one of equal structure that exists here.

    ``made_for``: the kinds, the other sizes and the hints."""
    key = (partition.carried, partition.stacked, *made_for, copied, structure_of(body))
    known = _MADE.get(key)
    if known is None:
        known = _MADE[key] = replace(partition, body=body)
    return known


# Shared partitions, so that paths that diverge after a loop have its compiled iterations in common. A partition keeps
# its body alive, and with it the objects whose ids are in the key.
_MADE: WeakValueDictionary[Any, Partition] = WeakValueDictionary()


def structure_of(body: Program) -> Any:
    """Return the structural key of an iteration: equal for iterations that compute the same."""

    def leaf(value: Any) -> Any:
        if isinstance(value, Ref | Symbol | Measured | Slot):
            return (type(value).__name__, value.index)
        if isinstance(value, Formula):
            return ("formula", token_of(value.func), *map(leaf, value.args))
        return token_of(value)

    nodes = ((_merged(n.func), tree_token((n.args, n.kwargs), leaf), n.outs, n.modes) for n in body.nodes)
    return (*nodes, body.outputs)


def _merged(func: Any) -> Any:
    return func.merged() if hasattr(func, "merged") else token_of(func)


def kind_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Return size, stride, dtype, device and gradient requirement of a tensor."""
    return (tuple(tensor.size()), tuple(tensor.stride()), tensor.dtype, tensor.device, tensor.requires_grad)


class _Body:
    """Traces one iteration of a loop for inputs of given kinds."""

    def __init__(
        self, program: Program, carried: int, stacked: int, given: SymbolicInputs, copied: frozenset[int]
    ) -> None:
        self.program, self.carried, self.stacked, self.copied = program, carried, stacked, copied
        self.trains = any(is_training(node.func) for node in program.nodes)
        self.kinds = list(given.kinds)
        self.own = OwnSizes(given.hints, given.others)

    def partition(self) -> Partition:
        """Return both graphs. Raises Refused where a graph cannot repeat the iteration."""
        try:
            return self._partition()
        except (Fixed, KeyError) as error:
            if not self.own.sizes:
                raise
            raise _refused(f"works on tensors whose sizes change ({error})") from error

    def _partition(self) -> Partition:
        if any(not node.modes.is_plain for node in self.program.nodes):
            raise _refused("runs under autocast, in inference mode, or without some kernel")
        with _disable_current_modes(), Ambient(), torch.enable_grad():
            outs = self._settled()
            differentiable = [] if self.trains else outs
            tangents = tuple(index for index, out in enumerate(differentiable) if out.requires_grad)
            graph, wanted = self._joint(outs, tangents)
            self.own.computed(graph)
            effects = effects_of_inputs(graph)
            forward, backward = graph, None
            if wanted:
                from torch._functorch import partitioners  # noqa: PLC0415 - slow to import, and seldom needed here

                forward, backward = partitioners.min_cut_rematerialization_partition(
                    graph, (), num_fwd_outputs=len(outs)
                )
                root_views(forward, backward, len(outs))
                pack(forward, backward, len(outs))
            if effects_of(forward) != effects or (backward is not None and not is_repeatable(backward)):
                raise _refused("has an effect that an iteration run backwards would repeat or lose")
            assembly = _Assembly(self.carried, self.stacked, self.kinds, outs, tangents, wanted, self.program, self.own)
            return assembly.partition(forward, backward)

    def _joint(self, outs: Sequence[torch.Tensor], tangents: Sequence[int]) -> tuple[torch.fx.GraphModule, list[int]]:
        """Return the joint graph of an iteration, and the inputs that it has gradients of."""
        program, wanted = self.program, list[int]()
        own, first = self.own, len(self.own.sizes)
        fakes = [own.blank(kind) for kind in self.kinds]
        likes = [own.blank((*own.kind_of(outs[index])[:4], False)) for index in tangents]
        asked = [index for index, tensor in enumerate(fakes) if tensor.requires_grad]

        def joint(*given: Any) -> list[torch.Tensor]:
            given = given[first:]
            values = self._replay(given[: len(fakes)])
            made = [values[ref.index] for ref in program.outputs]
            gradients: Sequence[torch.Tensor | None] = ()
            if tangents and asked:
                gradients = torch.autograd.grad(
                    [made[index] for index in tangents],
                    [given[index] for index in asked],
                    given[len(fakes) :],
                    allow_unused=True,
                )
            wanted[:] = [index for index, gradient in zip(asked, gradients, strict=False) if gradient is not None]
            return [one.detach() for one in made] + [one for one in gradients if one is not None]

        made = traced(joint, *own.sizes, *fakes, *likes)
        entries = [Input(fake, False, True) for fake in (*fakes, *likes)]
        graph, mutated, restored = functionalize.functionalise(made, entries, own.symbolic, own.sizes)
        if mutated or restored:
            raise _refused("changes a tensor in place that was there before the iteration")
        placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
        # The partitioner requires these names.
        names = [f"primals_{index}" for index in (*range(len(fakes), len(fakes) + first), *range(len(fakes)))]
        names += [f"tangents_{index}" for index in range(len(likes))]
        for name, node in zip(names, placeholders, strict=True):
            node.target = name
            node._rename(name)
        graph.recompile()
        return graph, wanted

    def _settled(self) -> list[torch.Tensor]:
        """Return the body's outputs on fake tensors, with kinds of carried values that are stable. Raises Refused."""
        carried = self.carried
        outs: list[torch.Tensor] = []
        fakes: list[torch.Tensor] = []
        for attempt in range(2 + carried):  # an output may require gradients that the input did not
            fakes = [self.own.blank(kind) for kind in self.kinds]
            with self.own.symbolic.mode, self.own.symbolic.dispatcher():
                values = self._replay(fakes)
            outs = [values[ref.index] for ref in self.program.outputs]
            following = []
            for before, out in zip(self.kinds, outs[:carried], strict=False):
                after = self.own.kind_of(out)
                if (before[0], before[2], before[3]) != (after[0], after[2], after[3]):
                    raise _refused(f"turns {before[2]}{list(before[0])} into {after[2]}{list(after[0])}")
                # A carried value that requires gradients after an iteration requires them from the second iteration on.
                following.append((*after[:4], before[4] or after[4]))
            if self.trains and any(kind[4] for kind in following):
                raise _refused("carries a tensor that has a backward graph, and trains")
            if following == self.kinds[:carried]:
                break
            if attempt > carried and [k[4] for k in following] != [k[4] for k in self.kinds[:carried]]:
                raise _refused("needs gradients of other values in each iteration")
            self.kinds[:carried] = following
        for out in outs[carried:]:
            if not out.is_contiguous():
                raise _refused("leaves tensors whose rows are not contiguous")
        memory = [tensor.untyped_storage()._cdata for tensor in (*fakes, *{id(out): out for out in outs}.values())]
        if len(set(memory)) == len(memory):
            return outs
        if not self.copied:
            raise _refused("leaves tensors that share memory")
        self.program, self.copied = with_copies(self.program, self.copied), frozenset()
        return self._settled()

    def _replay(self, given: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
        """Run one iteration on these tensors; return all values by index."""
        values = dict(enumerate(given))

        def leaf(value: Any) -> Any:
            return values[value.index] if isinstance(value, Ref) else value_of_formula(value, self.own.others, {})

        with Ambient() as ambient:
            for node in self.program.nodes:
                ambient.switch(node.modes)
                result = node.func(*map_leaves(node.args, leaf), **map_leaves(node.kwargs, leaf))
                parts = [part for part in pytree.tree_leaves(result) if isinstance(part, torch.Tensor)]
                if len(parts) != len(node.outs):
                    raise _refused("gives another number of tensors than in the watched runs")
                for ref, tensor in zip(node.outs, parts, strict=True):
                    values[ref.index] = tensor
        return values


class _Assembly:
    """Assembles the partition: finds the source of each argument of both graphs."""

    def __init__(
        self,
        carried: int,
        stacked: int,
        kinds: Sequence[tuple[Any, ...]],
        outs: Sequence[torch.Tensor],
        tangents: tuple[int, ...],
        wanted: Sequence[int],
        body: Program,
        own: OwnSizes,
    ) -> None:
        self.carried, self.stacked, self.kinds, self.body, self.own = carried, stacked, kinds, body, own
        self.outs, self.tangents, self.wanted = outs, tangents, tuple(wanted)

    def partition(self, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule | None) -> Partition:
        """Return the partition of a joint graph's forward and backward part. Raises Refused."""
        carried, results = self.carried, len(self.outs)
        flat = returned(forward)
        made, saved = flat[:results], flat[results:]
        sources = {f"primals_{index}": self._input(index) for index in range(len(self.kinds))}
        sources |= {f"primals_{len(self.kinds) + n}": Source("size", n) for n in range(len(self.own.sizes))}
        for index, node in enumerate(made[carried:]):
            if node.op != "placeholder":
                sources.setdefault(node.name, Source("output", index))
        own = [node for node in saved if node.name not in sources]
        if any(not isinstance(node.meta["val"], torch.Tensor) for node in own):
            raise _refused("computes sizes that its gradients need")
        sources.update((node.name, Source("saved", index)) for index, node in enumerate(own))
        kinds = ("output", "saved")
        shown = {
            index: sources[node.name]
            for index, node in enumerate(made[:carried])
            if node.name in sources and sources[node.name].kind in kinds
        }
        sources.update((f"tangents_{index}", Source("tangent", number)) for index, number in enumerate(self.tangents))
        second = SourcedGraph(backward, tuple(sources[name] for name in _placeholders(backward))) if backward else None
        used = second.sources if second else ()
        histories = tuple(dict.fromkeys(s.index for s in used if s.kind == "carried" and s.index not in shown))
        return_values(forward, [*made, *own])
        values = [node.meta["val"] for node in own] + [self.outs[index] for index in histories]
        rows = [self._given(value, True) for value in values]
        return Partition(
            key=new_key(),
            carried=carried,
            stacked=self.stacked,
            invariants=len(self.kinds) - carried - self.stacked,
            forward=SourcedGraph(forward, tuple(sources[name] for name in _placeholders(forward))),
            backward=second,
            gives=(*(self._given(out, index >= carried) for index, out in enumerate(self.outs)), *rows),
            gradients=tuple(self._gradient(index) for index in self.wanted),
            wanted=self.wanted,
            tangents=self.tangents if second else (),
            kept=_kept(used, shown, {index: len(own) + n for n, index in enumerate(histories)}),
            results=results,
            shown=shown,
            histories=histories,
            random=any(clean_up.is_random(node) for node in forward.graph.nodes),
            body=self.body,
            sizes=self.own.wanted,
            conditions=self.own.conditions(),
        )

    def _given(self, value: torch.Tensor, stacked: bool) -> TensorSignature:
        return self.own.given(value, stacked)

    def _gradient(self, index: int) -> TensorSignature:
        """Return the description of the gradient of the body's input."""
        value = self.own.blank(self.kinds[index])
        return self._given(value, self._input(index).kind == "stacked")

    def _input(self, index: int) -> Source:
        return _source_of(index, self.carried, self.stacked)


def _kept(used: Sequence[Source], shown: dict[int, Source], histories: dict[int, int]) -> tuple[Source, ...]:
    kept: dict[Source, None] = {}
    for source in used:
        if source.kind == "carried" and source.index in histories:
            kept[Source("saved", histories[source.index])] = None
        elif source.kind not in ("tangent", "size"):
            kept[source] = None  # for a carried value: its initial value
            if source.kind == "carried":
                kept[shown[source.index]] = None
    return tuple(kept)


def _placeholders(graph: torch.fx.GraphModule) -> list[str]:
    return [str(node.target) for node in graph.graph.nodes if node.op == "placeholder"]


def _refused(what: str) -> Refused:
    return refused("loop-body", f"an iteration of the loop {what}", "It cannot be compiled once for all iterations.")
