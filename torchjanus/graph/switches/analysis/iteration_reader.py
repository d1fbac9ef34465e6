"""Reads the events of each iteration of a switched loop: its results, operands, predicates, facts and effects.

In: a trace, the snapshots of the loop, the states of its numbers. Out: an ``Iteration`` for each. Rewrites nothing.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import map_leaves
from torchjanus.graph.loops.rewrites.accumulators import knows
from torchjanus.graph.switches.analysis.before_loop import NamesBeforeLoop
from torchjanus.graph.switches.analysis.effects import ArmEffect, is_shown, merged, merged_recipe
from torchjanus.graph.switches.analysis.index_predicates import ITERATION, NUMBER, IndexPredicate, IndexPredicates
from torchjanus.graph.switches.analysis.iterations import OUTSIDE, IndexedRead, Iteration, Source, subject_of
from torchjanus.graph.switches.analysis.lists import FilledList
from torchjanus.graph.switches.analysis.numbers import IterationNumbers, NumberStates, is_in_known, is_safe
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, HostLoop, InvokeOp, Op
from torchjanus.trace.events import Decision, Fact, FunctionEntry, FunctionExit, LoopEnd, Trace
from torchjanus.trace.facts import HeapRead, HostComputation, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.loops.records import LoopSnapshots, UntracedComputation
from torchjanus.trace.operations import op_count
from torchjanus.trace.terms import TensorRef, symbol_token
from torchjanus.trace.user_code import MARKS
from torchjanus.trace.values import Apply, Expr, Fetch, Read, Size, depends_on, leaves

__all__ = ["iterations_in"]


_OF_THEMSELVES = frozenset({"backward", "resize_as_"})  # in addition to ``knows``
_INDEXING = frozenset({"Tensor.__getitem__", "torch.select", "Tensor.select"})


def iterations_in(
    trace: Trace, frames: LoopSnapshots, held: NumberStates, lists: Mapping[Any, FilledList]
) -> list[Iteration]:
    """Return the iterations of the loop. Raises NotMergeable where they do more than compute with tensors."""
    if any(plain.structure is None for plain in trace.plain[frames.untraced_counts[0] : frames.untraced_counts[-1]]):
        raise NotMergeable("branch-numbers", "an iteration computes with a plain number, and may know its index")
    if any(a >= b for a, b in frames.spans):
        raise NotMergeable("branch-arms-differ", "an iteration does nothing")
    return list(_LoopReader(trace, frames, held, lists).iterations())


@dataclass(frozen=True, slots=True)
class _NativeArguments:
    """Plain numbers that native code received."""

    plain: UntracedComputation


@dataclass(frozen=True, slots=True)
class _UntracedComputation:
    """A computation with plain numbers."""

    token: Any


class _LoopReader:
    """Walks over the events of one loop."""

    def __init__(
        self, trace: Trace, frames: LoopSnapshots, held: NumberStates, lists: Mapping[Any, FilledList]
    ) -> None:
        self.trace, self.frames, self.held, self.lists = trace, frames, held, lists
        self.before = NamesBeforeLoop(trace, frames)
        self.rows = self.before.rows
        self.made: set[int] = set()  # results of the iterations so far
        self.earlier = {*trace.access_paths, *self.rows, *self.before.made}
        self.sharing = Counter(trace.memory)
        # Index arguments of iterations, each minus the iteration index.
        self.offsets: dict[Any, list[int]] = {}
        self.reads = {e.access_path: e.value for e in trace.events if isinstance(e, HeapRead) and e.kind == "number"}
        self.questions = IndexPredicates(trace, frames)

    def iterations(self) -> Any:
        """Yield all iterations, after collecting how their integer subscripts follow the index."""
        frames = self.frames
        operations = op_count(self.trace.events[: frames.starts[0]])
        computed = zip(itertools.pairwise(frames.untraced_counts), itertools.pairwise(frames.given), strict=True)
        for iteration, (start, end) in enumerate(frames.spans):
            for event in self.trace.events[start:end]:
                if isinstance(event, Op) and event.name in _INDEXING:
                    for key, value in self.integers(event):
                        self.offsets.setdefault(key, []).append(value - frames.number(iteration))
        for iteration, ((start, end), (plain, given)) in enumerate(zip(frames.spans, computed, strict=True)):
            events: list[Any] = self.trace.events[start:end]
            computations: list[Any] = [(one.position - start, one) for one in self.trace.plain[slice(*plain)]]
            computations += [(one.position - start, _NativeArguments(one)) for one in self.trace.given[slice(*given)]]
            computations.sort(key=lambda one: one[0])
            yield _IterationReader(self, iteration, _merged(events, computations), operations).description()
            operations += op_count(events)

    def integers(self, op: Op) -> Iterator[tuple[Any, int]]:
        """Yield each integer by which an operation indexes, with a key that is equal in all iterations."""
        found: list[int] = []
        map_leaves(op.args, lambda value: found.append(value) if type(value) is int else None)
        source = op.args[0].number if op.args and isinstance(op.args[0], TensorRef) else -1
        path = self.before.path(source)
        for position, value in enumerate(found):
            yield (op.place, op.name, path, position), value

    def offset(self, key: Any) -> int | None:
        """Return the index argument minus the iteration index; None where it does not follow the index."""
        found = self.offsets.get(key, [])
        # A single iteration with a nonzero offset does not show that the integer follows the index.
        return found[0] if len(set(found)) == 1 and (not found[0] or len(found) > 1) else None

    def sources(self, tensor: int, iteration: int) -> frozenset[Source]:
        """Return the possible sources of a tensor that the iteration did not make."""
        if self.frames.region and tensor not in self.made:
            return frozenset({(OUTSIDE, self.before.path(tensor))})  # an if-region has no other iteration
        state = self.frames.states[iteration]
        found: set[Source] = {("name", name) for name, value in state.items() if value == ("tensor", tensor)}
        which, row = self.rows.get(tensor, (0, -1))
        if row in (iteration, iteration + self.frames.begins):
            # An element of a list from before the call has one source: the scanned row.
            found = {one for one in found if not is_in_known(one[1], state)} | {("row", which, row - iteration)}
        elif tensor not in self.made and tensor not in self.rows:
            found.add((OUTSIDE, self.before.path(tensor)))
        return frozenset(found)


class _IterationReader:
    """Walks over the events of one iteration."""

    def __init__(self, loop: _LoopReader, iteration: int, events: Sequence[Any], before: int) -> None:
        self.loop, self.iteration, self.given, self.before = loop, iteration, events, before
        self.own: dict[int, int] = {}
        self.takes: list[frozenset[Source]] = []
        self.indexed: dict[Any, IndexedRead] = {}
        self.rowed: dict[int, Any] = {}  # tensors made by indexing -> key
        self.after: list[int] = [0]  # operations of the iteration so far -> those kept
        self.events: list[Any] = []
        self.facts: list[Any] = []
        self.changed: set[int] = set()  # changed in place
        self.asked: set[int] = set()
        self.fetched: dict[Any, Any] = {}
        self.compared: dict[Any, Expr] = {}
        states = loop.held.states
        shown = {v[1]: name for name, v in loop.frames.states[iteration + 1].items() if is_shown(name)}
        self.numbers = IterationNumbers(
            loop.frames.normalized(iteration), states[iteration], states[iteration + 1], shown
        )

    def description(self) -> Iteration:
        """Return the description of this iteration. Raises NotMergeable."""
        for event in self.given:
            self._event(event)
        shown, numbers = self.numbers.shown, self.numbers
        if not shown.keys() <= self.own.keys() or any(not self._is_alone(number) for number in shown):
            raise NotMergeable("branch-effects", "what an iteration writes changes before it is over")
        ends: dict[Any, frozenset[Source]] = {}
        for name, value in self.loop.frames.states[self.iteration + 1].items():
            if value[0] == "tensor" and value[1] >= 0:
                stays = self.loop.frames.region and self.loop.frames.states[0].get(name) == value
                ends[name] = frozenset({("name", name)}) if stays else self._sources(value[1])
        self.loop.made.update(self.own, self.rowed)
        items = {name: self._appended(name, one.appended(self.iteration)) for name, one in self.loop.lists.items()}
        tokens, number_ends = tuple(_token(event) for event in self.events), numbers.ends()
        fetched = {form: self.loop.trace.fetched.get(fetch.token) for form, fetch in numbers.fetched.items()}
        return Iteration(
            self.iteration, tuple(self.events), tokens, frozenset(self.asked), self.takes, ends, tuple(self.facts),
            self.indexed,
            self.iteration + 2 == len(self.loop.frames.states),
            self._memory(),
            self.fetched,
            len(self.own),
            tuple(event for event in self.events if isinstance(event, ArmEffect)),
            numbers.takes, frozenset(numbers.plain), number_ends, items, fetched, self.compared,
        )  # fmt: skip

    def _appended(self, name: Any, recipe: Any) -> Any:
        self.numbers.begin(("item", name))
        return None if recipe is None else merged_recipe(recipe, self.numbers)[1]

    def _is_alone(self, number: int) -> bool:
        """Whether no other tensor shares its memory and nothing changes it in place."""
        place = self.loop.trace.memory[number]
        return number not in self.changed and bool(place) and self.loop.sharing[place] == 1

    def _memory(self) -> tuple[int, ...]:
        memory, sharing = self.loop.trace.memory, self.loop.sharing
        own = Counter(memory[number] for number in self.own)
        first: dict[int, int] = {}
        return tuple(
            -1 if not (m := memory[number]) or sharing[m] > own[m] else first.setdefault(m, order)
            for number, order in self.own.items()
        )

    def _sources(self, tensor: int) -> frozenset[Source]:
        if tensor in self.own:
            return frozenset({("own", self.own[tensor])})
        if tensor in self.rowed:
            return frozenset({("indexed", self.rowed[tensor])})
        return self.loop.sources(tensor, self.iteration)

    def _event(self, event: Any) -> None:
        question = isinstance(event, NumberPredicate) and self.loop.questions.asks(event)
        fact = (
            not question
            and isinstance(event, NumberPredicate | Specialization | HostComputation)
            and not depends_on(event.expr, Fetch)
        )
        self.numbers.begin((type(event).__name__, len(self.events)) if not fact else ("fact", subject_of(event)))
        if isinstance(event, Op):
            self._operation(event)
        elif isinstance(event, TensorPredicate):
            self.asked.add(len(self.events))
            self.events.append(replace(event, ref=self._ref(event.ref), after=self._position(event.after)))
        elif question:
            compared = self.loop.questions.compared(event.expr)
            self._ask(self.numbers.form(compared), event.outcome, event.place, leaves(compared))
        elif isinstance(event, NumberPredicate | Specialization | HostComputation):
            self._condition(event)
        elif isinstance(event, UntracedComputation):
            self._compute(event)
        elif isinstance(event, _NativeArguments):
            self.numbers.hold((*event.plain.operands, *event.plain.reals))
        elif isinstance(event, Decision | FunctionEntry | FunctionExit | LoopEnd):
            self.events.append(event)
        elif isinstance(event, HeapRead) and event.access_path.waits_for:
            raise NotMergeable("branch-native-call", "an iteration uses what an extern call gave")
        elif isinstance(event, Extern | ContainerMutation | HeapWrite):
            self.events.append(merged(self.loop.trace, event, self.numbers))
        elif isinstance(event, HostLoop) or not isinstance(event, Fact):
            raise NotMergeable("branch-effects", "an iteration does more than compute, decide and write")
        else:
            self.facts.append(event)

    def _compute(self, plain: UntracedComputation) -> None:
        if self.loop.questions.is_of_host(plain):
            return
        form, answer = self.numbers.compute(plain)
        place = None if answer is None else self.loop.questions.place(plain)
        if answer is None or place is None:
            self.events.append(_UntracedComputation(form))
        else:
            self._ask(form, answer, place)

    def _ask(self, form: Any, outcome: bool, place: Place, numbers: Iterable[Any] = ()) -> None:
        """Append a predicate of the iteration index; the index and the numbers it compares become operands."""
        self.asked.add(len(self.events))
        found = {number.token: number for number in numbers}
        self.compared.update(found)
        refs = [self._taken(frozenset({source})) for source in (ITERATION, *((NUMBER, token) for token in found))]
        self.events.append(IndexPredicate(form, refs[0], outcome, place, tuple(zip(found, refs[1:], strict=True))))

    def _taken(self, sources: frozenset[Source]) -> TensorRef:
        self.takes.append(sources)
        return TensorRef(-len(self.takes))

    def _condition(self, event: Any) -> None:
        if isinstance(event, HostComputation) and is_safe(event.expr):
            return
        self.numbers.hold_parts(event.expr)
        found = list(leaves(event.expr))
        if not any(isinstance(leaf, Fetch) for leaf in found):
            if any(isinstance(leaf, Size) for leaf in found):
                return  # all iterations work on tensors of the same sizes
            self.facts.append(event)
        elif isinstance(event, NumberPredicate):
            self.asked.add(len(self.events))
            self.events.append(replace(event, expr=self._expr(event.expr)))
        else:
            raise NotMergeable("branch-numbers", "an iteration asks a number of which nothing is known")

    def _operation(self, op: Op) -> None:
        name = op.name.rpartition(".")[2]
        if isinstance(op, InvokeOp) or isinstance(op.func, MARKS) or not op.outs or knows(op) or name in _OF_THEMSELVES:
            raise NotMergeable("branch-arms-differ", "an iteration makes a call that cannot be part of an arm")
        if op.name in _INDEXING and self._index(op):
            self.after.append(self.after[-1])
            return
        map_leaves((op.args, op.kwargs), self.numbers.hold_parts)
        args, kwargs = map_leaves(op.args, self._leaf), map_leaves(op.kwargs, self._leaf)
        for ref in op.outs:
            if ref.number in self.own:
                self.changed.add(ref.number)
                continue
            if ref.number in self.loop.made or ref.number in self.loop.earlier or ref.number in self.rowed:
                raise NotMergeable("branch-in-place", "an iteration changes a tensor from before it in place")
            self.own[ref.number] = len(self.own)
        outs = tuple(TensorRef(self.own[ref.number]) for ref in op.outs)
        self.events.append(replace(op, args=args, kwargs=kwargs, outs=outs))
        self.after.append(self.after[-1] + 1)

    def _index(self, op: Op) -> bool:
        """Record an operation on a tensor from before the loop as indexing by the iteration index, if it is that."""
        source, indices = op.args[0], list[tuple[int, int]]()
        integers = enumerate(self.loop.offset(key) for key, _ in self.loop.integers(op))
        if not self.loop.frames.counters or not isinstance(source, TensorRef) or op.kwargs or len(op.outs) != 1:
            return False
        if source.number in self.own or source.number in self.loop.made or source.number in self.rowed:
            return False

        def leaf(value: Any) -> Any:
            if type(value) is int:
                position, more = next(integers)
                if more is not None:
                    indices.append((position, more))
                    return ("index", more)
            if isinstance(value, TensorRef | Expr):
                raise NotMergeable("branch-arms-differ", "an iteration picks a row by more than its index")
            return token_of(value)

        whole = op.name == "Tensor.__getitem__"
        parts = op.args[1:] if whole else op.args[2:]
        fixed = () if whole else op.args[1:-1]
        if not whole:
            next(integers, None)  # the dimension
        try:
            shape = map_leaves(parts, leaf)
        except NotMergeable:
            return False
        if len(indices) != 1:
            return False
        key = (op.name, repr(shape), repr(fixed), self.loop.before.path(source.number), op.modes)
        self.indexed[key] = IndexedRead(op, *indices[0])
        self.rowed[op.outs[0].number] = key
        return True

    def _ref(self, ref: TensorRef) -> TensorRef:
        if ref.number in self.own:
            return TensorRef(self.own[ref.number])
        return self._taken(self._sources(ref.number))

    def _leaf(self, value: Any) -> Any:
        if isinstance(value, TensorRef):
            return self._ref(value)
        return self._expr(value) if isinstance(value, Expr) else value

    def _position(self, after: int) -> int:
        if not 0 <= after - self.before < len(self.after):
            raise NotMergeable("branch-carried", "an iteration uses a number that an earlier one has fetched")
        return self.after[after - self.before]

    def _expr(self, expr: Any) -> Any:
        """Return the expression with plain values in place of sizes and reads; the values become assumptions."""
        if isinstance(expr, Fetch):
            made = replace(expr, ref=self._ref(TensorRef(expr.ref)).number, after=self._position(expr.after))
            self.fetched[made.token] = self.loop.trace.fetched.get(expr.token)
            return made
        if isinstance(expr, Size):
            return self.loop.trace.fetched[expr.token]
        if isinstance(expr, Read):
            if expr.access_path not in self.loop.reads:
                raise NotMergeable("branch-numbers", "an iteration uses a number that other runs do not find")
            value = self.loop.reads[expr.access_path]
            self.facts.append(
                Specialization(expr, value, self.loop.frames.place, "an iteration of a loop is made for it")
            )
            return value
        if isinstance(expr, Apply):
            args = tuple(map(self._expr, expr.args))
            known = not any(isinstance(arg, Expr) for arg in args)
            return expr.func(*args) if known else Apply(expr.func, args)
        return expr


def _merged(events: Sequence[Any], computations: Sequence[tuple[int, UntracedComputation]]) -> list[Any]:
    """Return the events with each plain computation inserted before the event that it precedes."""
    found: list[Any] = []
    pending = list(reversed(computations))
    for position, event in enumerate(events):
        while pending and pending[-1][0] <= position:
            found.append(pending.pop()[1])
        found.append(event)
    return [*found, *(plain for _, plain in reversed(pending))]


def _token(event: Any) -> Any:
    """Return the part of an event that must be equal in all iterations of an arm."""
    if isinstance(event, Op):
        return ("op", id(event.func), symbol_token((event.args, event.kwargs)), event.outs, event.modes, event.draws)
    if isinstance(event, IndexPredicate):
        return ("question", event.form, event.place, event.outcome)
    if isinstance(event, TensorPredicate):
        return ("asserted", event.ref.number, event.place, event.outcome)
    return event.token
