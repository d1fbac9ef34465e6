"""The segments of one variant: its computation cut at the calls it waits for, at iterations of loops whose trip counts
vary, and around sums over such iterations.

Independent of traces and of trees.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.core.errors import Place
from torchjanus.core.trees import map_leaves, tree_token
from torchjanus.graph.ir.program import Node, Ref, Slot
from torchjanus.graph.operators.batched_numbers import BATCHED, OF_COLUMNS
from torchjanus.graph.recursion.variants.nodes import slots_of
from torchjanus.graph.recursion.variants.predicates import selected
from torchjanus.graph.recursion.variants.reductions import Accumulation
from torchjanus.graph.tracing.ambient import Ambient
from torchjanus.trace.loops.records import Loop

__all__ = ["CellFunction", "Segment", "SegmentReduction", "Segmentation", "StagedVariant"]


@dataclass(slots=True)
class Segment:
    """A segment: what a variant computes in one cell. ``takes``: the tensors of which it takes a row; ``columns``: what
    the host supplies, slots (by number) and tensors that nodes hold (by number of the input); ``gives``: the tensors of
    which it gives a row. ``flowing``: the shared tensors on which results depend, not only predicates. ``form``:
    segments of equal form are one cell."""

    stage: int
    nodes: list[Node] = field(default_factory=list)
    takes: list[Ref] = field(default_factory=list)
    shared: list[tuple[Ref, AccessPath]] = field(default_factory=list)
    columns: list[tuple[str, int]] = field(default_factory=list)
    gives: list[Ref] = field(default_factory=list)
    flowing: list[AccessPath] = field(default_factory=list)
    form: Any = None

    @property
    def place(self) -> Place | None:
        """The place of a selection between arms, if there is one."""
        return next((node.place for node in self.nodes if node.func is selected), None)

    def function(self, order: Sequence[Any]) -> CellFunction:
        """Return its computation as data. ``order``: tokens of the recursion's shared tensors."""
        shared = tuple((ref.index, order.index(access_path.token)) for ref, access_path in self.shared)
        return CellFunction(tuple(self.nodes), shared, tuple(self.takes), tuple(self.columns), tuple(self.gives))


@dataclass(frozen=True, slots=True)
class CellFunction:
    """What a cell computes for one call (see ``plan.Cell``). ``shared``: pairs of a tensor's number in the nodes and
    its index among the recursion's shared tensors; the other fields are those of Segment."""

    nodes: tuple[Node, ...]
    shared: tuple[tuple[int, int], ...]
    takes: tuple[Ref, ...]
    columns: tuple[tuple[str, int], ...]
    gives: tuple[Ref, ...]

    def __call__(self, shared: Sequence[torch.Tensor], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        values = {index: shared[place] for index, place in self.shared}
        values.update((ref.index, row) for ref, row in zip(self.takes, given, strict=False))
        slots: dict[int, torch.Tensor] = {}
        for (kind, number), column in zip(self.columns, given[len(self.takes) :], strict=True):
            (values if kind == "tensor" else slots)[number] = column

        def leaf(value: Any) -> Any:
            if isinstance(value, Ref):
                return values[value.index]
            return slots[value.index] if isinstance(value, Slot) else value

        with Ambient() as ambient:
            for node in self.nodes:
                ambient.switch(node.modes)
                func = BATCHED.get(node.func, node.func)
                if func in OF_COLUMNS and any(True for _ in slots_of((node.args, node.kwargs))):
                    func = OF_COLUMNS[func]
                result = func(*map_leaves(node.args, leaf), **map_leaves(node.kwargs, leaf))
                found = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
                for ref, tensor in zip(node.outs, found, strict=True):
                    values[ref.index] = tensor
        return [values[ref.index] for ref in self.gives]


@dataclass(frozen=True, slots=True)
class SegmentReduction:
    """A reduction of rows to one row. Reductions of equal form are the same."""

    stage: int
    start: Ref | None
    items: tuple[Ref, ...]
    out: Ref
    form: Any


@dataclass(frozen=True, slots=True)
class StagedVariant:
    """What a variant computes, and when.

    ``at``: for each of the ``nodes`` but the calls its stage; a stage runs after the inner calls of the stage before;
    ``places``: the number of its event (empty if unknown); ``stages``: how many there are; ``kinds``: by tensor number,
    for each input and result of a call: "shared", "column", "argument" or "call"; ``access_paths`` of inputs;
    ``passed``: for each inner call its stage and tensor arguments; ``wanted``: tensors used outside of cells;
    ``flowing``: tensors on which results depend; ``slots``: the types of numbers.
    """

    callee: Any
    nodes: Sequence[Node]
    places: Sequence[int]
    at: Mapping[int, int]
    stages: int
    kinds: Mapping[int, str]
    access_paths: Mapping[int, AccessPath]
    passed: Sequence[tuple[int, tuple[Ref, ...]]]
    wanted: Sequence[Ref]
    flowing: set[int]
    slots: Sequence[type]


class Segmentation:
    """The segments of a variant, and its reductions (``folds``); ``order``: their kind and number as executed."""

    def __init__(
        self,
        stages: StagedVariant,
        sums: Sequence[Accumulation],
        varying_loops: frozenset[Place],
        loops: Sequence[Loop],
    ) -> None:
        """``sums`` become reductions; each iteration of the ``loops`` at ``varying_loops`` becomes a segment."""
        self._stages = stages
        self._sums = {number: one for one in sums for number in one.links}
        self._given_by: dict[tuple[int, bool], tuple[str, int, int]] = {}
        self.folds: list[SegmentReduction] = []
        groups = self._groups(varying_loops, loops)
        self.parts = self._live([one for one in groups if isinstance(one, Segment)])
        live = set(map(id, self.parts))
        for one in groups:
            if isinstance(one, SegmentReduction):
                self._given_by[one.out.index, False] = ("fold", len(self.folds), 0)
                self.folds.append(one)
        self.order: list[tuple[str, int]] = []
        parts, folds = iter(range(len(self.parts))), iter(range(len(self.folds)))
        for stage in range(stages.stages):
            for one in groups:
                if one.stage == stage and (isinstance(one, SegmentReduction) or id(one) in live):
                    self.order.append(
                        ("fold", next(folds)) if isinstance(one, SegmentReduction) else ("part", next(parts))
                    )
            self.order += [("site", n) for n, (at, _) in enumerate(stages.passed) if at == stage]

    def source_of(self, ref: Ref) -> tuple[str, int, int] | None:
        """Return the segment or reduction that makes the row: ("part" or "fold", number, output), or None."""
        copied = self._given_by.get((ref.index, True))
        return self._given_by.get((ref.index, False)) if copied is None else copied

    def _groups(self, varying_loops: frozenset[Place], loops: Sequence[Loop]) -> list[Segment | SegmentReduction]:
        """Return the segments with their nodes, and the reductions, in execution order."""
        stages = self._stages
        iterations = self._iterations(varying_loops, loops)
        after = self._after()
        groups: list[Segment | SegmentReduction] = []
        for stage in range(stages.stages):
            # An input that is passed on unchanged needs a row of its own.
            groups.append(Segment(stage))
            here = sorted((after[n], n) for n, at in stages.at.items() if at == stage)
            for phase in sorted({phase for phase, _ in here}):
                last: Any = None
                ended: list[SegmentReduction] = []  # nothing of this phase waits for them
                for number in (n for at, n in here if at == phase):
                    total = self._sums.get(number)
                    if total is not None:
                        if number == total.links[-1]:
                            ended.append(self._fold(stage, total))
                        continue
                    if last is None or iterations[number] != last:
                        groups.append(Segment(stage))
                        last = iterations[number]
                    part = groups[-1]
                    assert isinstance(part, Segment)
                    part.nodes.append(stages.nodes[number])
                groups += ended
        return groups

    def _after(self) -> dict[int, int]:
        """Return for each node the length of the longest chain of reductions it depends on. A segment must not contain
        both a reduction's inputs and its users."""
        waits: dict[int, int] = {}
        found: dict[int, int] = {}
        for number, node in enumerate(self._stages.nodes):
            phase = max((waits.get(ref.index, 0) for ref in node.inputs), default=0)
            found[number] = phase
            total = self._sums.get(number)
            ends = total is not None and number == total.links[-1]
            for ref in node.outs:
                waits[ref.index] = phase + ends
        return found

    def _fold(self, stage: int, total: Accumulation) -> SegmentReduction:
        form = (self._stages.callee, total.place, total.start is None, total.grad)
        return SegmentReduction(stage, total.start, total.items, total.out, form)

    def _iterations(self, varying_loops: frozenset[Place], all_loops: Sequence[Loop]) -> list[Any]:
        """Return for each node the iteration that contains it, or () outside of such loops."""
        places = self._stages.places
        if not places:
            return [()] * len(self._stages.nodes)
        loops = [loop for loop in all_loops if loop.place in varying_loops]
        found: list[Any] = []
        for index in places:
            around = [n for n, loop in enumerate(loops) if loop.starts and loop.starts[0] <= index < loop.end]
            if not around:
                found.append(())
                continue
            outermost = min(around, key=lambda n: loops[n].starts[0])
            found.append((outermost, bisect.bisect_right(loops[outermost].starts, index)))
        return found

    def _copied(self, wanted: Iterable[int]) -> Iterator[tuple[int, int]]:
        """Yield the inputs that need a row of their own, each with its stage."""
        stages = self._stages
        for index in wanted:
            if stages.kinds.get(index) in ("shared", "column"):
                passed = [stage for stage, refs in stages.passed if any(ref.index == index for ref in refs)]
                passed += [
                    stages.at[one.links[-1]]
                    for one in self._sums.values()
                    if any(ref is not None and ref.index == index for ref in (one.start, *one.items))
                ]
                yield index, min(passed, default=stages.stages - 1)

    def _live(self, parts: list[Segment]) -> list[Segment]:
        """Return the segments that are used, with their inputs and outputs."""
        stages = self._stages
        wanted = {ref.index: None for ref in (*stages.wanted, *(ref for _, refs in stages.passed for ref in refs))}
        for total in self._sums.values():
            wanted.update((ref.index, None) for ref in (total.start, *total.items) if ref is not None)
        for index, at in self._copied(wanted):
            copies = next(part for part in parts if part.stage == at and not part.nodes)
            copies.gives.append(Ref(index))
        live: list[Segment] = []
        for part in reversed(parts):
            made = {ref.index for node in part.nodes for ref in node.outs}
            part.gives += [Ref(index) for index in sorted(made) if index in wanted]
            if not part.gives:
                continue
            needed = {ref.index for ref in part.gives}
            nodes: list[Node] = []
            for node in reversed(part.nodes):
                if any(ref.index in needed for ref in node.outs):
                    nodes.insert(0, node)
                    needed.update(ref.index for ref in node.inputs)
            part.nodes = nodes
            for index in sorted(needed - made):
                match stages.kinds.get(index):
                    case "shared":
                        part.shared.append((Ref(index), stages.access_paths[index]))
                        if index in stages.flowing:
                            part.flowing.append(stages.access_paths[index])
                    case "column":
                        part.columns.append(("tensor", index))
                    case _:
                        part.takes.append(Ref(index))
                        wanted[index] = None
            slots = {leaf.index for node in nodes for leaf in slots_of((node.args, node.kwargs))}
            part.columns += [("slot", number) for number in sorted(slots)]
            live.insert(0, part)
        for number, part in enumerate(live):
            for which, ref in enumerate(part.gives):
                self._given_by[ref.index, not part.nodes] = ("part", number, which)
            part.form = self._form(part)
        return live

    def _form(self, part: Segment) -> Any:
        """Return the form: segments with the same operations at the same places on equal metadata share a cell."""
        stages = self._stages
        names: dict[int, Any] = {ref.index: ("take", n) for n, ref in enumerate(part.takes)}
        names.update((ref.index, ("shared", access_path.token)) for ref, access_path in part.shared)
        slots: dict[int, Any] = {}
        for n, (kind, number) in enumerate(part.columns):
            (names if kind == "tensor" else slots)[number] = ("column", n)

        def leaf(value: Any) -> Any:
            if isinstance(value, Ref):
                return names[value.index]
            return slots[value.index] if isinstance(value, Slot) else token_of(value)

        lines = []
        for n, node in enumerate(part.nodes):
            lines.append((id(node.func), node.place, node.modes, tree_token((node.args, node.kwargs), leaf)))
            for k, ref in enumerate(node.outs):
                names.setdefault(ref.index, (n, k))
        kinds = tuple(stages.slots[n] if kind == "slot" else kind for kind, n in part.columns)
        given = tuple((names[ref.index], ref.index in stages.flowing) for ref in part.gives)
        return (stages.callee, 0 if part.nodes else part.stage, kinds, tuple(lines), given)
