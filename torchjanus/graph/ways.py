"""One way through a recursive function, cut into cells where it waits for calls that it makes (see graph.recursion).

A way is made of the trace of one call; every call that takes it is an instance. Knows nothing of trees.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.errors import Place, Refusal, Refused
from torchjanus.graph.ambient import Ambient
from torchjanus.graph.columns import BATCHED, OF_COLUMNS, PLAIN
from torchjanus.graph.generalise import Generalised, generalise
from torchjanus.graph.program import Node, Ref, Slot
from torchjanus.graph.tracing import substitute
from torchjanus.origin import Origin, Step, token_of
from torchjanus.trace.events import (
    Absent,
    Asserted,
    Entered,
    Event,
    Filled,
    Found,
    Held,
    Invoked,
    Keys,
    Left,
    Mutation,
    Op,
    Pinned,
    Same,
    Stored,
    Trace,
)
from torchjanus.trace.recipes import Build, Number, Recipe, TensorOf
from torchjanus.trace.values import Fetch, Size, is_local, leaves

__all__ = [
    "Part",
    "Site",
    "Way",
    "Write",
    "given_tensors",
    "is_read",
    "names_read",
    "result_key",
    "tensors_of",
    "undecided",
]


_ALL: Any = object()  # stands for the names of all attributes of an object


@dataclass(frozen=True, slots=True)
class Site:
    """A call that the way makes. ``stage``: after which of its own cells. ``args``: the tensors it passes, by where the
    callee finds them. ``frames``: how many frames deeper than the way itself eager makes it."""

    event: Invoked
    frames: int
    stage: int
    args: tuple[tuple[Any, Ref], ...]
    outs: tuple[Ref, ...]


@dataclass(frozen=True, slots=True)
class Write:
    """A write to an object. ``before``: how many of the way's calls eager makes before it; ``ref``: the tensor that is
    written; ``value``: how another call makes what is no tensor; ``name``: under which name nobody may read it in the
    same step (see ``names_read``)."""

    event: Stored | Mutation
    before: int
    ref: Ref | None
    value: Recipe
    name: tuple[type | None, Any]


@dataclass(slots=True)
class Part:
    """What a way computes in one go: one cell.

    ``takes``: the tensors of which it takes a row; ``columns`` are what the host supplies: slots (by number) and
    tensors that nodes hold (by the number of the input); ``gives``: the tensors of which it gives a row. ``flowing``:
    where those of the shared tensors are found on which results depend, and not only decisions. ``form``: parts of one
    form are the same cell.
    """

    stage: int
    nodes: list[Node] = field(default_factory=list)
    takes: list[Ref] = field(default_factory=list)
    shared: list[tuple[Ref, Origin]] = field(default_factory=list)
    columns: list[tuple[str, int]] = field(default_factory=list)
    gives: list[Ref] = field(default_factory=list)
    flowing: list[Origin] = field(default_factory=list)
    form: Any = None


class Way:
    """``event``: one of the calls. ``parameters`` are those that change from call to call; ``given``: where the call
    finds tensors that its caller passes; ``truths``: what has to be true of tensors, or a call goes another way. Raises
    Refused where its calls cannot be run many at a time."""

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
        self.truths: list[Ref] = []
        self._nodes, self._places = self._with_truths()
        self._flowing = self._flows()
        self.writes = list(self._written())
        self.sites: list[Site] = []
        self._made: dict[int, int] = {}  # the stage in which a tensor is made
        self._call: dict[int, tuple[int, int]] = {}  # what calls give: (site, which of its tensors)
        self._stage()
        self.stages = max(self._made.values(), default=0) + 1
        if self.writes and self._changed:
            raise self._refused("it writes to objects, and changes tensors in place", self.place)
        if self.writes and any(b.stage < a.stage for a, b in itertools.pairwise(self.sites)):
            raise self._refused("it writes to objects, and its calls are not followed in their order", self.place)
        self._sink()
        self.cut(frozenset())

    def _refuse_unfit(self) -> None:
        program = self.plan.program
        for event in self.trace.events:
            if isinstance(event, Same) and self.given.keys() & {event.first.token, event.second.token}:
                raise self._refused("it is given one tensor twice", event.place)
        for expr in self.plan.slots:
            if any(isinstance(leaf, Fetch | Size) for leaf in leaves(expr)):
                raise self._refused(f"it computes with {expr} in Python", self.place)
        asked = all(isinstance(self.trace.events[a.event], Asserted | Held) for a in program.assertions if a.event >= 0)
        if not asked or any(a.event < 0 for a in program.assertions) or self.plan.batches or program.cuts:
            raise self._refused("it asks tensors for their values", self.place)
        if any(node.modes.autocast or node.modes.inference for node in program.nodes):
            raise self._refused("it runs under autocast or in inference mode", self.place)

    def _refused(self, why: str, place: Place) -> Refused:
        return Refused(Refusal(place, f"calls of {self.name} cannot be run many at a time", f"{why}.", ""))

    def _with_truths(self) -> tuple[list[Node], list[int]]:
        """The nodes, with those that tell whether the assertions hold, and for each the number of its event; no numbers
        where nodes are more than what was called."""
        program = self.plan.program
        events = [index for index, event in enumerate(self.trace.events) if isinstance(event, Op)]
        known = len(events) == len(program.nodes)
        nodes: list[Node] = []
        places: list[int] = []
        asked = sorted(program.assertions, key=lambda assertion: assertion.after)
        free = max((1 + ref.index for node in program.nodes for ref in node.outs), default=0)
        free = max(free, len(program.inputs))
        for number in range(len(program.nodes) + 1):
            while asked and asked[0].after == number:
                assertion = asked.pop(0)
                self.truths.append(Ref(free + len(self.truths)))
                func = _is_true if assertion.expected else _is_false
                nodes.append(Node(func, (assertion.ref,), {}, (self.truths[-1],), place=assertion.place))
                places.append(assertion.event)
            if number < len(program.nodes):
                nodes.append(program.nodes[number])
                places += events[number : number + 1]
        return nodes, places if known else []

    def _written(self) -> Iterator[Write]:
        calls, program = 0, self.plan.program
        for event in self.trace.events:
            calls += isinstance(event, Invoked)
            if not isinstance(event, Stored | Mutation):
                continue
            (value,) = self.trace.recipes[id(event)]
            ref = (
                program.outputs[self.plan.outputs["tensor", value.ref.number]] if isinstance(value, TensorOf) else None
            )
            fetched = isinstance(value, Number) and any(isinstance(x, Fetch | Size) for x in leaves(value.expr))
            if fetched or (ref is not None and ref.index < len(program.inputs)):
                raise self._refused(
                    f"it stores {event.value if isinstance(event, Stored) else event.args}", event.place
                )
            known = (
                (_class_of(self.trace, event.base), event.key)
                if isinstance(event, Stored)
                else (None, event.base.token)
            )
            yield Write(event, calls, ref, value, known)

    def _stored(self) -> list[Ref]:
        return [write.ref for write in self.writes if write.ref is not None]

    @property
    def names_read(self) -> set[tuple[type | None, Any]]:
        """Under which names it finds what was there before the step."""
        return names_read(self.trace)

    @property
    def asked(self) -> list[Place]:
        """Where tensors decide what it does."""
        return [assertion.place for assertion in self.plan.program.assertions]

    def _flows(self) -> set[int]:
        """The tensors on which results depend."""
        found = {ref.index for ref in self.results}
        for node in reversed(self._nodes):
            if _is_call(node) or any(ref.index in found for ref in node.outs):
                found.update(ref.index for ref in _refs(node))
        return found

    # -- stages ---------------------------------------------------------------------------------------------------

    def _stage(self) -> None:
        """When each tensor is made, at the earliest."""
        events = _calls(self.trace)
        passed: set[int] = set()
        changed: set[int] = set()
        for node in self._nodes:
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
        for node in self._nodes:
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
        for number, node in reversed(list(enumerate(self._nodes))):
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

    def source_of(self, ref: Ref) -> tuple[Any, ...]:
        """Where a tensor comes from: ("call", site, which), ("argument", token), ("column", input), ("shared", origin)
        or ("part", part, which of what it gives)."""
        if ref.index in self._call:
            return ("call", *self._call[ref.index])
        if (ref.index, True) in self._given_by:
            return ("part", *self._given_by[ref.index, True])
        if ref.index in self._inputs:
            origin = self._inputs[ref.index]
            if not is_local(origin):
                return ("shared", origin)
            return ("argument", origin.token) if origin.token in self.given else ("column", ref.index)
        return ("part", *self._given_by[ref.index, False])

    # -- cells ----------------------------------------------------------------------------------------------------

    def cut(self, turning: frozenset[Place]) -> None:
        """Cut what the way computes into parts: at calls, and at the rounds of the loops at these places, which are run
        more or less often: each round is a part then, of the same form."""
        self._given_by: dict[tuple[int, bool], tuple[int, int]] = {}
        self.parts = self._live(self._groups(turning))
        self.order: list[tuple[str, int]] = []
        for stage in range(self.stages):
            self.order += [("part", number) for number, part in enumerate(self.parts) if part.stage == stage]
            self.order += [("site", number) for number, site in enumerate(self.sites) if site.stage == stage]

    def _groups(self, turning: frozenset[Place]) -> list[Part]:
        """The parts with their nodes, in the order in which they run."""
        rounds = self._rounds(turning)
        parts: list[Part] = []
        for stage in range(self.stages):
            last: Any = None
            for number in sorted(n for n, at in self._at.items() if at == stage):
                if last is None or rounds[number] != last:
                    parts.append(Part(stage))
                    last = rounds[number]
                parts[-1].nodes.append(self._nodes[number])
            # What is passed on as it was found needs a row of its own.
            parts.append(Part(stage))
        return parts

    def _rounds(self, turning: frozenset[Place]) -> list[Any]:
        """Of each node the round to which it belongs."""
        if not self._places:
            return [()] * len(self._nodes)
        loops = [loop for loop in self.trace.loops if loop.place in turning]
        found: list[Any] = []
        for index in self._places:
            around = [n for n, loop in enumerate(loops) if loop.starts and loop.starts[0] <= index < loop.end]
            if not around:
                found.append(())
                continue
            outermost = min(around, key=lambda n: loops[n].starts[0])
            found.append((outermost, bisect.bisect_right(loops[outermost].starts, index)))
        return found

    def _live(self, parts: list[Part]) -> list[Part]:
        """The parts that are of use, with what they take and give."""
        passed_on = (ref for site in self.sites for _, ref in site.args)
        wanted = {ref.index: None for ref in (*self.results, *passed_on, *self.truths, *self._stored())}
        for index in wanted:  # not made by any node: copied into a row
            if index in self._inputs and index not in self._call and self._kind_of(index) != "argument":
                passed = [s.stage for s in self.sites if any(r.index == index for _, r in s.args)]
                at = min(passed, default=self.stages - 1)
                copies = next(part for part in reversed(parts) if part.stage == at and not part.nodes)
                copies.gives.append(Ref(index))
        live: list[Part] = []
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
                    needed.update(ref.index for ref in _refs(node))
            part.nodes = nodes
            for index in sorted(needed - made):
                match self._kind_of(index):
                    case "shared":
                        part.shared.append((Ref(index), self._inputs[index]))
                        if index in self._flowing:
                            part.flowing.append(self._inputs[index])
                    case "column":
                        part.columns.append(("tensor", index))
                    case _:
                        part.takes.append(Ref(index))
                        wanted[index] = None
            slots = {leaf.index for node in nodes for leaf in _slots((node.args, node.kwargs))}
            part.columns += [("slot", number) for number in sorted(slots)]
            live.insert(0, part)
        for number, part in enumerate(live):
            for which, ref in enumerate(part.gives):
                self._given_by[ref.index, not part.nodes] = (number, which)
            part.form = self._form(part)
        return live

    def _kind_of(self, index: int) -> str:
        if index in self._call:
            return "call"
        if index not in self._inputs:
            return "made"
        origin = self._inputs[index]
        return "shared" if not is_local(origin) else "argument" if origin.token in self.given else "column"

    def _form(self, part: Part) -> Any:
        """What parts have in common that are one cell: the same operations at the same places on the like."""
        names: dict[int, Any] = {ref.index: ("take", n) for n, ref in enumerate(part.takes)}
        names.update((ref.index, ("shared", origin.token)) for ref, origin in part.shared)
        slots: dict[int, Any] = {}
        for n, (kind, number) in enumerate(part.columns):
            (names if kind == "tensor" else slots)[number] = ("column", n)

        def leaf(value: Any) -> Any:
            if isinstance(value, Ref):
                return names[value.index]
            return slots[value.index] if isinstance(value, Slot) else token_of(value)

        lines = []
        for n, node in enumerate(part.nodes):
            lines.append((id(node.func), node.place, node.modes, _frozen(substitute((node.args, node.kwargs), leaf))))
            for k, ref in enumerate(node.outs):
                names.setdefault(ref.index, (n, k))
        kinds = tuple(self.plan.program.slots[n].type if kind == "slot" else kind for kind, n in part.columns)
        given = tuple((names[ref.index], ref.index in self._flowing) for ref in part.gives)
        return (self.callee, 0 if part.nodes else part.stage, kinds, tuple(lines), given)

    def compute(self, part: Part, shared: dict[int, torch.Tensor], given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What the part gives, for one call. ``shared``: by number of the input; ``given``: takes, then columns."""
        values = dict(shared)
        values.update((ref.index, row) for ref, row in zip(part.takes, given, strict=False))
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
                func = node.func
                if not any(ref.index in self._viewed for ref in node.outs):
                    func = PLAIN.get(func, func)
                func = BATCHED.get(func, func)
                if func in OF_COLUMNS and any(True for _ in _slots((node.args, node.kwargs))):
                    func = OF_COLUMNS[func]
                result = func(*substitute(node.args, leaf), **substitute(node.kwargs, leaf))
                found = [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]
                for ref, tensor in zip(node.outs, found, strict=True):
                    values[ref.index] = tensor
        return [values[ref.index] for ref in part.gives]


def names_read(trace: Trace) -> set[tuple[type | None, Any]]:
    """Which attributes a run finds, each with the class of its object where that is known, and which lists it looks
    into, by where they are."""
    found: set[tuple[type | None, Any]] = set()
    for event in trace.events:
        match event:
            case Found(origin=origin) if origin.base is not None:
                found |= {(_class_of(trace, origin.base), origin.key), (None, origin.base.token)}
            case Absent(base=base, key=key):
                found |= {(_class_of(trace, base), key), (None, base.token)}
            case Filled(origin=origin) | Keys(origin=origin):
                found |= {(_class_of(trace, origin), _ALL), (None, origin.token)}
    return {(cls, name) for cls, name in found if isinstance(name, str | tuple) or name is _ALL}


def is_read(written: tuple[type | None, Any], read: set[tuple[type | None, Any]]) -> bool:
    """Whether what is written under a name is among what is found."""
    cls, name = written
    return any(
        (other == name or (other is _ALL and isinstance(name, str))) and (cls is known or cls is None or known is None)
        for known, other in read
    )


def _class_of(trace: Trace, origin: Origin) -> type | None:
    """The class of the object of which this is the dictionary, or of the object itself."""
    at = origin.base if origin.step is Step.DICT and origin.base is not None else origin
    if at.step is Step.CONST:
        return type(at.key)
    for event in trace.events:
        if isinstance(event, Found) and event.origin == at:
            return type(event.value)
    return None


def undecided(one: Iterable[Event], other: Iterable[Event]) -> Event | None:
    """Where two ways part, if a tensor decides between them: the host cannot tell which of them a call will take."""
    for before, after in zip(one, other, strict=False):
        if before.token != after.token:
            fetched = isinstance(after, Held | Pinned) and any(isinstance(leaf, Fetch) for leaf in leaves(after.expr))
            return after if fetched or isinstance(after, Asserted) else None
    return None


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


def _is_true(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.ne(0).reshape(())


def _is_false(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.eq(0).reshape(())


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


def _frozen(value: Any) -> Any:
    """A structure as something that can be compared and hashed."""
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(_frozen, value))
    if isinstance(value, dict):
        return ("dict", *((key, _frozen(part)) for key, part in value.items()))
    if isinstance(value, slice):
        return ("slice", _frozen(value.start), _frozen(value.stop), _frozen(value.step))
    return value


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
