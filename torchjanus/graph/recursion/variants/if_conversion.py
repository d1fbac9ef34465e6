"""If-conversion: merges variants that a predicate on a tensor distinguishes into one predicated variant.

The host traversal cannot know which arm a call takes, so every call computes both arms and selects the values of its
own. An arm that is not taken computes on zeros, with functions that are defined and have finite derivatives everywhere,
so none of its errors, infinities or NaNs reach a result or a gradient. Works on traces only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchjanus.core.access_path import AccessPath
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.recursion.variants.facts import about, decides, flipped
from torchjanus.graph.recursion.variants.merged_trace import MergedTrace
from torchjanus.graph.recursion.variants.predicates import DECIDED, MergedVariant, Path, masked, selected
from torchjanus.ops.calls import DIVISIONS, TOTAL
from torchjanus.trace import facts
from torchjanus.trace.actions import InvokeOp, Op
from torchjanus.trace.context_facts import disagree
from torchjanus.trace.events import Decision, FunctionEntry, FunctionExit, HostFact, LoopEnd
from torchjanus.trace.loops.records import Loop
from torchjanus.trace.recipes import NewObject, TensorOf
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import is_local

__all__ = ["converted"]

MAX_LEAVES = 8  # each is computed for all calls

_SILENT = (FunctionEntry, FunctionExit, Decision, LoopEnd)


def converted(events: Sequence[InvokeOp]) -> MergedVariant:
    """Return the merged variant of calls on paths between which tensors decide. Raises NotMergeable."""
    first = events[0]
    if len(events) > MAX_LEAVES:
        raise NotMergeable("recursion-branch", f"tensors decide between more than {MAX_LEAVES} of them")
    if any(event.made != first.made for event in events):
        raise NotMergeable("recursion-branch", "the arms return different kinds of values")
    return _Conversion(events).switch()


@dataclass(slots=True)
class _InnerCall:
    """An inner call of a variant, as the new trace describes it."""

    event: InvokeOp
    args: tuple[int, ...]


_Following = Generator[_InnerCall, tuple[TensorRef, ...], Any]


class _Conversion:
    """Writes the merged trace."""

    def __init__(self, events: Sequence[InvokeOp]) -> None:
        self.first = events[0]
        self.leaves = [MergedTrace(event.call, self) for event in events]
        self.events: list[Any] = []
        self.tensors: list[Any] = []
        self.access_paths: dict[int, AccessPath] = {}
        self.by_access_path: dict[Any, int] = {}
        self.groups: list[set[int]] = []  # tensor -> the tensors that share its memory
        self.common: set[int] = set()  # results of calls
        self.masks: dict[Any, int] = {}
        self.fetched: dict[Any, Any] = {}
        self.ops = 0
        self.emitted: dict[Any, Any] = {}  # subject -> fact
        self.deciding: set[int] = set()
        self.within: dict[int, Path] = {}
        self.paths: dict[int, Path] = {}  # by leaf

    def switch(self) -> MergedVariant:
        """Return the merged trace. Raises NotMergeable."""
        traces = [leaf.old for leaf in self.leaves]
        context: dict[Any, Any] = {}
        for trace in traces:
            if disagree(context, trace.context):
                raise NotMergeable("recursion-branch", "the arms rely on different facts")
            context |= trace.context
        following = self._follow(self.leaves, 0, ())
        outs: Any = None
        result: Any = None
        try:
            while True:
                call = following.send(outs)
                outs = self._call(call)
        except StopIteration as done:
            result = done.value
        last = traces[0]
        made = replace(
            last,
            events=self.events,
            tensors=self.tensors,
            access_paths=self.access_paths,
            owners={known: access_path for trace in reversed(traces) for known, access_path in trace.owners.items()},
            result=result,
            recipes={known: recipe for leaf in self.leaves for known, recipe in leaf.recipes.items()},
            fetched=self.fetched,
            variant=None,
            loop_instances=[],
            loop_records=[],
            frames=[],
            plain=[],
            given=[],
            peeked=[],
            reread=[],
            counted=[],
            changed={},
            kinds={},
            measured=-1,
            alive=[*traces, *(part for trace in traces for part in trace.alive)],
            loops=list(self._loops()),
            context=context,
            looked_at=set().union(*(trace.looked_at for trace in traces)),
            memory=[min(group) + 1 for group in self.groups],
        )  # fmt: skip
        event = replace(self.first, call=made)
        paths = tuple(self.paths[id(leaf)] for leaf in self.leaves)
        return MergedVariant(event, frozenset(self.deciding), self.within, paths)

    def _loops(self) -> Iterable[Loop]:
        """Yield the loops that lie within one path."""
        met = set()
        for leaf in self.leaves:
            for loop in leaf.old.loops:
                places = [*leaf.places, len(self.events)]
                one = replace(loop, starts=tuple(places[n] for n in loop.starts), end=places[loop.end])
                spanned = range(one.starts[0], one.end) if one.starts else range(0)
                if any(number in self.deciding or not self._is_of(leaf, number) for number in spanned):
                    raise NotMergeable("recursion-branch", "a loop within an arm depends on the decision")
                if (key := (one.place, one.starts, one.end)) not in met:
                    met.add(key)
                    yield one

    def _is_of(self, leaf: MergedTrace, number: int) -> bool:
        event = self.events[number]
        return number in leaf.own or isinstance(event, InvokeOp) or (isinstance(event, Op) and event.func in DECIDED)

    # -- tensors --------------------------------------------------------------------------------------------------

    def number_of(self, leaf: MergedTrace, number: int) -> int:
        """Return the new number of a tensor at the current point of the leaf."""
        new = leaf.numbers.get(number)
        if new is None:
            access_path = leaf.old.access_paths.get(number)
            if access_path is None:
                raise NotMergeable("recursion-branch", "an arm takes a tensor that the other one does not find")
            new = leaf.numbers[number] = self._input(leaf, number, access_path)
        return new

    def _input(self, leaf: MergedTrace, number: int, access_path: AccessPath) -> int:
        known = self.by_access_path.get(access_path.token)
        if known is None:
            known = self.by_access_path[access_path.token] = self._new(leaf.old.tensors[number])
            self.access_paths[known] = access_path
        return known

    def _new(self, tensor: Any = None, *alike: int) -> int:
        """Add a tensor and return its number; ``alike``: tensors whose memory it may share."""
        number = len(self.tensors)
        self.tensors.append(tensor)
        group = {number}.union(*(self.groups[one] for one in alike))
        self.groups.append(group)
        for one in group:
            self.groups[one] = group
        return number

    def masked(self, leaf: MergedTrace, number: int) -> int:
        """Return the tensor that the path uses in place of an earlier one: zeros if it is not taken."""
        access_path = self.access_paths.get(number)
        if access_path is not None and not is_local(access_path):
            return number
        made = number
        for (decision, outcome), begun in zip(leaf.path, leaf.begun, strict=True):
            if access_path is None and number >= begun and number not in self.common:
                continue  # computed on this path
            key = (decision, outcome, made)
            if key not in self.masks:
                self.masks[key] = self._new()
                out, place = TensorRef(self.masks[key]), self.events[decision].place
                args = (decision, TensorRef(made), outcome)
                self._emit(Op(masked, "masked", args, {}, (out,), self.first.modes, place))
            made = self.masks[key]
        return made

    # -- events ---------------------------------------------------------------------------------------------------

    def _emit(self, event: Any) -> None:
        self.events.append(event)
        self.ops += isinstance(event, Op)

    def _fact(self, event: Any) -> bool:
        """Whether the fact is new. Raises NotMergeable if it contradicts a fact of another path."""
        place = about(event)
        if place in self.emitted:
            if self.emitted[place] != event.token:
                raise NotMergeable("recursion-branch", "the arms rely on facts that exclude each other")
            return False
        self.emitted[place] = event.token
        return True

    def _follow(self, group: Sequence[MergedTrace], begin: int, path: Path) -> _Following:
        """Merge the events from ``begin`` on of leaves that are equal so far. Yields their calls, receives the results
        of each, and returns the recipe of the result."""
        first = group[0]
        for position in range(begin, 1 + max(len(leaf.old.events) for leaf in group)):
            some = [leaf.old.events[position] if position < len(leaf.old.events) else None for leaf in group]
            if len({None if event is None else event.token for event in some}) > 1:
                return (yield from self._decide(group, position, path))
            event = some[0]
            if event is None:
                break
            for leaf in group:
                leaf.places.append(len(self.events))
            if isinstance(event, InvokeOp):
                outs = yield self._asked(first, event)
                for leaf in group:
                    leaf.numbers.update((ref.number, new.number) for ref, new in zip(event.outs, outs, strict=True))
            else:
                self._emit_event(group, event, path)
            if isinstance(event, Op):
                for leaf in group:
                    leaf.after.append(self.ops)
        if len({None if leaf.old.result is None else leaf.old.result.token for leaf in group}) > 1:
            raise NotMergeable("recursion-branch", "the arms return different kinds of values")
        for leaf in group:
            self.paths[id(leaf)] = path
        return first.recipe(first.old.result)

    def _emit_event(self, group: Sequence[MergedTrace], event: Any, path: Path) -> None:
        """Emit one event of the group."""
        first = group[0]
        if isinstance(event, Op):
            if path:
                self._check(first, event)
            made = first.operation(event, len(first.after) - 1)
            outs = []
            for ref in event.outs:
                if ref.number in first.numbers:  # changed in place
                    outs.append(TensorRef(first.numbers[ref.number]))
                    continue
                alike = [
                    first.numbers[old]
                    for old in first.numbers
                    if first.old.memory[old] == first.old.memory[ref.number] and first.old.memory[old]
                ]
                outs.append(TensorRef(self._new(None, *alike)))
            for leaf in group:
                leaf.numbers.update((ref.number, new.number) for ref, new in zip(event.outs, outs, strict=True))
            self._emit_for(group, replace(made, outs=tuple(outs)))
            return
        if isinstance(event, HostFact) and not decides(event) and not self._fact(event):
            return
        if path and not isinstance(event, (HostFact, *_SILENT, facts.TensorPredicate)):
            raise NotMergeable("recursion-branch", "an arm has an effect")
        said = first.event(event, len(first.after) - 1)
        if decides(event) and path:
            self.within[len(self.events)] = path
        self._emit_for(group, replace(said, after=self.ops) if isinstance(said, facts.TensorPredicate) else said)

    def _emit_for(self, group: Sequence[MergedTrace], event: Any) -> None:
        for leaf in group:
            leaf.own.add(len(self.events))
        self._emit(event)

    def _check(self, leaf: MergedTrace, op: Op) -> None:
        """Raise NotMergeable unless the operation is defined everywhere and changes no tensor that others see."""
        short = op.name.rpartition(".")[2].strip("_")
        if op.name.endswith(".__get__"):
            short = op.name.split(".")[-2]
        constant = short in DIVISIONS and len(op.args) == 2 and type(op.args[1]) in (int, float) and op.args[1]
        power = short == "pow" and len(op.args) == 2 and type(op.args[1]) is int and op.args[1] > 0
        if not (short in TOTAL or constant or power) or op.draws or op.modes != self.first.modes:
            raise NotMergeable(
                "recursion-branch", "an arm runs an operation that is not defined or smooth for all values"
            )
        if any(leaf.old.memory[ref.number] in leaf.given for ref in op.outs if ref.number in leaf.numbers):
            raise NotMergeable("recursion-branch", "an arm changes a tensor in place")

    def _asked(self, leaf: MergedTrace, event: InvokeOp) -> _InnerCall:
        """Return the inner call in terms of the new trace."""
        given = tuple((name, leaf.recipe(recipe)) for name, recipe in event.given)
        args = tuple(leaf.final(ref.number) for ref in event.args)
        return _InnerCall(replace(event, given=given), args)

    def _call(self, call: _InnerCall) -> tuple[TensorRef, ...]:
        """Emit the inner call and return its results."""
        outs = tuple(TensorRef(self._new()) for _ in call.event.outs)
        self.common.update(ref.number for ref in outs)
        self._emit(replace(call.event, args=tuple(map(TensorRef, call.args)), outs=outs))
        return outs

    # -- decisions ------------------------------------------------------------------------------------------------

    def _decide(self, group: Sequence[MergedTrace], position: int, path: Path) -> _Following:
        """Merge leaves that part at a predicate on a tensor."""
        if any(position >= len(leaf.old.events) for leaf in group):
            raise NotMergeable("recursion-branch", "only one of the arms returns")
        some: list[Any] = [leaf.old.events[position] for leaf in group]
        yes = [leaf for leaf, event in zip(group, some, strict=True) if getattr(event, "outcome", False)]
        no = [leaf for leaf in group if leaf not in yes]
        tokens = {event.token if event.outcome else flipped(event) for event in some if decides(event)}
        if not all(map(decides, some)) or len(tokens) > 1 or not yes or not no:
            raise NotMergeable("recursion-branch", "the arms do not decide by the same tensor")
        decision = len(self.events)
        event = yes[0].event(yes[0].old.events[position], len(yes[0].after) - 1)
        self._emit(replace(event, after=self.ops) if isinstance(event, facts.TensorPredicate) else event)
        self.deciding.add(decision)
        known = len(self.tensors)
        sides = []
        for own, outcome in ((yes, True), (no, False)):
            inner = (*path, (decision, outcome))
            for leaf in own:
                leaf.places.append(decision)
                leaf.path, leaf.begun = inner, (*leaf.begun, known)
                leaf.given = frozenset(leaf.old.memory[number] for number in leaf.numbers)
            sides.append(self._follow(own, position + 1, inner))
        return (yield from self._join(decision, sides))

    def _join(self, decision: int, sides: Sequence[_Following]) -> _Following:
        """Merge the two arms of a decision: they make the same calls, and values that differ are selected."""
        outs: Any = None
        while True:
            found = []
            for side in sides:
                try:
                    found.append((False, side.send(outs)))
                except StopIteration as done:
                    found.append((True, done.value))
            (ended, one), (other_ended, other) = found
            if ended != other_ended:
                raise NotMergeable("recursion-branch", "only one of the arms makes a call")
            if ended:
                return self._one_recipe(decision, one, other)
            if (one.event.callee, one.event.made) != (other.event.callee, other.event.made) or one.event.grown:
                raise NotMergeable("recursion-branch", "the arms call different functions")
            given, args = [], list(one.args)
            for (name, a), (other_name, b) in zip(one.event.given, other.event.given, strict=True):
                if name != other_name:
                    raise NotMergeable("recursion-branch", "the arms give calls different parameters")
                given.append((name, self._one_recipe(decision, a, b)))
            args = [self._selected(decision, a, b) for a, b in zip(one.args, other.args, strict=True)]
            outs = yield _InnerCall(replace(one.event, given=tuple(given)), tuple(args))

    def _one_recipe(self, decision: int, one: Any, other: Any) -> Any:
        """Return a recipe of the selected value."""
        if isinstance(one, TensorOf) and isinstance(other, TensorOf):
            return TensorOf(TensorRef(self._selected(decision, one.ref.number, other.ref.number)))
        if isinstance(one, NewObject) and isinstance(other, NewObject):
            if _shape(one) != _shape(other) or one.attributes or one.fields or one.cls is dict:
                raise NotMergeable("recursion-branch", "the arms make different objects")
            parts = zip(one.items, other.items, strict=True)
            return replace(one, items=tuple(self._one_recipe(decision, a, b) for a, b in parts))
        if type(one) is not type(other) or one is None or one.token != other.token:
            raise NotMergeable("recursion-branch", "the arms return different values")
        return one

    def _selected(self, decision: int, one: int, other: int) -> int:
        """Return the tensor selected from two, emitting the selection if it is new."""
        if one == other:
            return one
        for made in reversed(self.events[decision:]):
            if isinstance(made, Op) and made.func is selected:
                if made.args == (decision, TensorRef(one), TensorRef(other)):
                    return made.outs[0].number
        number = self._new(None, one, other)
        args = (decision, TensorRef(one), TensorRef(other))
        place = self.events[decision].place
        self._emit(Op(selected, "selected", args, {}, (TensorRef(number),), self.first.modes, place))
        return number


def _shape(recipe: Any) -> Any:
    """Return the structure that the recipe builds, without its tensors."""
    if isinstance(recipe, TensorOf):
        return ("tensor",)
    if isinstance(recipe, NewObject):
        return (recipe.cls, *map(_shape, recipe.items))
    return None if recipe is None else ("else", recipe.token if hasattr(recipe, "token") else None)
