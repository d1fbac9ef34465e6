"""One way through a recursive function, cut into cells where it waits for calls that it makes (see graph.recursion).

A way is made of the trace of one call; every call that takes it is an instance. Knows nothing of trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.errors import Place, Refusal, Refused
from torchjanus.graph.ambient import Ambient
from torchjanus.graph.columns import OF_COLUMNS, PLAIN
from torchjanus.graph.generalise import Generalised, generalise
from torchjanus.graph.program import Node, Ref, Slot
from torchjanus.graph.tracing import substitute
from torchjanus.origin import Origin
from torchjanus.trace.events import Asserted, Entered, Found, Invoked, Left, Same, Trace
from torchjanus.trace.recipes import Build, Recipe, TensorOf
from torchjanus.trace.values import Fetch, Size, is_local, leaves

__all__ = ["Part", "Site", "Way", "given_tensors", "result_key", "tensors_of"]


@dataclass(frozen=True, slots=True)
class Site:
    """A call that the way makes. ``stage``: after which of its own cells. ``args``: the tensors it passes, by where the
    callee finds them. ``frames``: how many frames deeper than the way itself eager makes it."""

    event: Invoked
    frames: int
    stage: int
    args: tuple[tuple[Any, Ref], ...]
    outs: tuple[Ref, ...]


@dataclass(slots=True)
class Part:
    """What a way computes in one stage: one cell.

    ``takes`` and ``gives`` pair a tensor with the key of the buffer that it is a row of; ``columns`` are what the host
    supplies: slots (by number) and tensors that nodes hold (by the number of the input).
    """

    stage: int
    nodes: list[Node] = field(default_factory=list)
    takes: list[tuple[Ref, Any]] = field(default_factory=list)
    shared: list[tuple[Ref, Origin]] = field(default_factory=list)
    columns: list[tuple[str, int]] = field(default_factory=list)
    gives: list[tuple[Ref, Any]] = field(default_factory=list)


class Way:
    """``event``: one of the calls. ``parameters`` are those that change from call to call; ``given``: where the call
    finds tensors that its caller passes. Raises Refused where its calls cannot be run many at a time."""

    def __init__(self, number: int, event: Invoked) -> None:
        trace: Trace = event.call
        self.number, self.callee, self.name, self.trace = number, event.callee, event.name, trace
        self.made = event.made
        self.parameters = tuple(name for name, _ in event.given)
        self.given = {o.token: o for name, recipe in event.given for o in _places(recipe, Origin.parameter(name))}
        local = {e.origin.token for e in trace.events if isinstance(e, Found) and is_local(e.origin)}
        self.plan: Generalised = generalise([trace], frozenset(local))
        self.place: Place = trace.events[0].place if trace.events else Place("", 0)
        program = self.plan.program
        self._inputs = dict(enumerate(self.plan.origins))
        self.results = tuple(
            program.outputs[self.plan.outputs["tensor", part.ref.number]] for part in tensors_of(trace.result)
        )
        self._refuse_unfit()
        self.sites: list[Site] = []
        self._made: dict[int, int] = {}  # the stage in which a tensor is made
        self._call: dict[int, tuple[int, int]] = {}  # what calls give: (site, which of its tensors)
        self._stage()
        self.stages = max(self._made.values(), default=0) + 1
        self._sink()
        self.parts = self._parts()

    def _refuse_unfit(self) -> None:
        program = self.plan.program
        for event in self.trace.events:
            if isinstance(event, Asserted):
                raise self._refused("a tensor decides what it does", event.place)
            if isinstance(event, Same) and self.given.keys() & {event.first.token, event.second.token}:
                raise self._refused("it is given one tensor twice", event.place)
        for expr in self.plan.slots:
            if any(isinstance(leaf, Fetch | Size) for leaf in leaves(expr)):
                raise self._refused(f"it computes with {expr} in Python", self.place)
        if program.assertions or self.plan.batches or program.cuts:
            raise self._refused("it asks tensors for their values", self.place)
        if any(node.modes.autocast or node.modes.inference for node in program.nodes):
            raise self._refused("it runs under autocast or in inference mode", self.place)

    def _refused(self, why: str, place: Place) -> Refused:
        return Refused(Refusal(place, f"calls of {self.name} cannot be run many at a time", f"{why}.", ""))

    # -- stages ---------------------------------------------------------------------------------------------------

    def _stage(self) -> None:
        """When each tensor is made, at the earliest."""
        events = _calls(self.trace)
        passed: set[int] = set()
        changed: set[int] = set()
        for node in self.plan.program.nodes:
            waits = [self._made[ref.index] for ref in _refs(node) if ref.index in self._made]
            stage = max(waits, default=0)
            if _is_call(node):
                event, frames = next(events)
                args = tuple(zip(given_tensors(event), node.args, strict=True))
                passed.update(ref.index for ref in node.args)
                for index, ref in enumerate(node.outs):
                    self._made[ref.index] = stage + 1
                    self._call[ref.index] = (len(self.sites), index)
                self.sites.append(Site(event, frames, stage, args, node.outs))
                continue
            for ref in node.outs:
                if ref.index in self._inputs or ref.index in self._made:
                    changed.add(ref.index)
                    if ref.index in self._inputs or ref.index in self._call or self._made[ref.index] != stage:
                        raise self._refused("it changes a tensor in place that it did not just make", node.place)
                self._made[ref.index] = stage
        if changed & passed:
            raise self._refused("it changes a tensor in place that it passes to a call", self.place)
        self._changed = changed
        self._viewed = self._seen_before()

    def _seen_before(self) -> set[int]:
        """Tensors that are changed in place when something else may share their memory."""
        read: set[int] = set()
        found: set[int] = set()
        for node in self.plan.program.nodes:
            changes = {ref.index for ref in node.outs} & self._changed
            if node.func not in PLAIN:
                found.update(changes & {ref.index for ref in _refs(node)})
                read.update(ref.index for ref in _refs(node))
            else:
                found.update(changes & read)
                _, *others = _refs(node)
                read.update(ref.index for ref in others)
        return found

    def _sink(self) -> None:
        """Compute as late as possible: what only the last stage needs is computed with it."""
        wanted: dict[int, int] = {}

        def want(refs: Any, stage: int) -> None:
            for ref in refs:
                wanted[ref.index] = min(stage, wanted.get(ref.index, stage))

        want(self.results, self.stages - 1)
        for site in self.sites:
            want((ref for _, ref in site.args), site.stage)
        self._at: dict[int, int] = {}
        for number, node in reversed(list(enumerate(self.plan.program.nodes))):
            if _is_call(node):
                continue
            earliest = max((self._made[ref.index] for ref in node.outs), default=0)
            stage = min((wanted[ref.index] for ref in node.outs if ref.index in wanted), default=earliest)
            if any(ref.index in self._changed for ref in (*node.outs, *_refs(node))):
                stage = earliest
            self._at[number] = max(stage, earliest)
            for ref in node.outs:
                self._made[ref.index] = self._at[number]
            want(_refs(node), self._at[number])

    def stage_of(self, ref: Ref) -> int:
        """When a tensor is there: 0 for what the call is given."""
        return self._made.get(ref.index, 0)

    def source_of(self, ref: Ref) -> tuple[Any, ...]:
        """Where a tensor comes from: ("call", site, which), ("argument", key), ("column", input), ("shared", origin) or
        ("made", stage)."""
        if ref.index in self._call:
            return ("call", *self._call[ref.index])
        if ref.index in self._inputs:
            origin = self._inputs[ref.index]
            if not is_local(origin):
                return ("shared", origin)
            if origin.token in self.given:
                return ("argument", ("argument", self.callee, origin.token))
            return ("column", ref.index)
        return ("made", self._made[ref.index])

    def key_of(self, ref: Ref) -> Any:
        """The buffer that a tensor is a row of when it crosses from stage to stage, if it is one at all."""
        match self.source_of(ref):
            case ("call", site, which):
                return result_key(self.sites[site].event, which)
            case ("argument", key):
                return key
            case ("made", _):
                return ("own", self.number, ref.index)
        return None

    # -- cells ----------------------------------------------------------------------------------------------------

    def _parts(self) -> list[Part]:
        parts = [Part(stage) for stage in range(self.stages)]
        for which, ref in enumerate(self.results):
            self._give(parts, ref, ("result", self.callee, self.made, which))
        for site in self.sites:
            for token, ref in site.args:
                self._give(parts, ref, ("argument", site.event.callee, token))
        nodes = self.plan.program.nodes
        for part in reversed(parts):
            needed = {ref.index for ref, _ in part.gives}
            # What another stage takes of this one was asked for when that stage was made.
            for number in reversed(range(len(nodes))):
                if self._at.get(number) == part.stage and any(ref.index in needed for ref in nodes[number].outs):
                    part.nodes.insert(0, nodes[number])
                    needed.update(ref.index for ref in _refs(nodes[number]))
            made = {ref.index for node in part.nodes for ref in node.outs}
            for index in sorted(needed - made):
                ref = Ref(index)
                match self.source_of(ref):
                    case ("shared", origin):
                        part.shared.append((ref, origin))
                    case ("column", number):
                        part.columns.append(("tensor", number))
                    case ("made", stage):
                        key = ("own", self.number, index)
                        part.takes.append((ref, key))
                        if (ref, key) not in parts[stage].gives:
                            parts[stage].gives.append((ref, key))
                    case _:
                        part.takes.append((ref, self.key_of(ref)))
            slots = {leaf.index for node in part.nodes for leaf in _slots((node.args, node.kwargs))}
            part.columns += [("slot", number) for number in sorted(slots)]
        return parts

    def _give(self, parts: list[Part], ref: Ref, key: Any) -> None:
        """Let the stage that has this tensor make it a row of a buffer, unless it is one already."""
        stage = self.stage_of(ref)
        if self.key_of(ref) != key and (ref, key) not in parts[stage].gives:
            parts[stage].gives.append((ref, key))

    def compute(self, part: Part, shared: dict[int, torch.Tensor], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the part gives, for one call. ``shared``: by number of the input; ``given``: takes, then columns."""
        values = dict(shared)
        values.update((ref.index, row) for (ref, _), row in zip(part.takes, given, strict=False))
        slots: dict[int, torch.Tensor] = {}
        for (kind, number), column in zip(part.columns, given[len(part.takes) :], strict=True):
            (values if kind == "tensor" else slots)[number] = column

        def leaf(value: Any) -> Any:
            if isinstance(value, Ref):
                return values[value.index]
            return slots[value.index] if isinstance(value, Slot) else value

        with Ambient() as ambient:
            for node in part.nodes:
                ambient.switch(node.modes)
                func = (
                    node.func if node.outs and node.outs[0].index in self._viewed else PLAIN.get(node.func, node.func)
                )
                if func in OF_COLUMNS and any(True for _ in _slots((node.args, node.kwargs))):
                    func = OF_COLUMNS[func]
                result = func(*substitute(node.args, leaf), **substitute(node.kwargs, leaf))
                found = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
                for ref, tensor in zip(node.outs, found, strict=True):
                    values[ref.index] = tensor
        return [values[ref.index] for ref, _ in part.gives]


def tensors_of(recipe: Any) -> list[TensorOf]:
    """The tensors in what is given or returned, in order."""
    if isinstance(recipe, TensorOf):
        return [recipe]
    if isinstance(recipe, Build):
        return [found for part in recipe.items for found in tensors_of(part)]
    return []


def result_key(event: Invoked, which: int) -> Any:
    """The buffer of which a tensor that the call returns is a row."""
    return ("result", event.callee, event.made, which)


def given_tensors(event: Invoked) -> tuple[Any, ...]:
    """Where the callee finds the tensors that it is given, in order."""
    return tuple(o.token for name, recipe in event.given for o in _places(recipe, Origin.parameter(name)))


def _places(recipe: Recipe, origin: Origin) -> Iterator[Origin]:
    if isinstance(recipe, TensorOf):
        yield origin
    elif isinstance(recipe, Build):
        for index, part in enumerate(recipe.items):
            yield from _places(part, origin.item(index))


def _calls(trace: Trace) -> Iterator[tuple[Invoked, int]]:
    depth = 1
    for event in trace.events:
        depth += isinstance(event, Entered) - isinstance(event, Left)
        if isinstance(event, Invoked):
            yield event, depth


def _is_call(node: Node) -> bool:
    return bool(getattr(node.func, "__name__", "") == "invoke")


def _refs(node: Node) -> Iterator[Ref]:
    return _of_kind((node.args, node.kwargs), Ref)


def _slots(value: Any) -> Iterator[Slot]:
    return _of_kind(value, Slot)


def _of_kind(value: Any, kind: type) -> Iterator[Any]:
    if isinstance(value, kind):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _of_kind(part, kind)
    elif isinstance(value, dict):
        yield from _of_kind(list(value.values()), kind)
    elif isinstance(value, slice):
        yield from _of_kind((value.start, value.stop, value.step), kind)
