"""Checks that the iterations of a loop are alike: same calls, predicates, effects, and corresponding operands.

In: a trace, and the starts and end of a loop. Out: an ``AlignedLoop``, which ``truncation`` folds; raises NotMergeable.
"""

from __future__ import annotations

import itertools
import operator
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.errors import Place
from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import map_leaves
from torchjanus.graph.loops.analysis.effects import EffectMerger
from torchjanus.graph.loops.analysis.host_recurrences import MOST, ExpressionMerger
from torchjanus.graph.loops.analysis.number_forms import plain_form
from torchjanus.ops.calls import ARITHMETIC
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Decision, Effectful, Fact, FunctionEntry, FunctionExit, LoopEnd, Trace
from torchjanus.trace.facts import NumberPredicate, Specialization, TensorPredicate, is_question
from torchjanus.trace.loops.records import KEPT, LoopInstance, TensorTermination
from torchjanus.trace.operands import refs_in
from torchjanus.trace.operations import made_by, op_count, op_counts, ops_of, used_by
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, Read, Size, leaves

__all__ = ["AlignedLoop", "token_of_count"]

TRAINING = frozenset(("Tensor.backward", "torch.autograd.backward", "torch.autograd.grad"))


class AlignedLoop:
    """A loop of a trace whose iterations are alike, with what each of them did. Raises NotMergeable if they differ."""

    def __init__(self, trace: Trace, instance: LoopInstance) -> None:
        self.instance = instance
        self.count = len(instance.starts)
        self.until = instance.count if isinstance(instance.count, TensorTermination) else None
        self.token = token_of_count(instance)
        last = trace.events[instance.end - 1]
        self.place = place_of_loop(trace, instance)
        self.trips = frozenset(self._trips(trace))
        self.full = (
            self.until is not None
            and isinstance(last, TensorPredicate | NumberPredicate)
            and last.outcome == self.until.go
        )
        self.pinned = not instance.unpinned and any(
            isinstance(e, Specialization) and e.expr.token == self.token for e in trace.events
        )
        past = op_counts(trace.events)
        self.positions = [past[start] for start in instance.starts]  # number of operations before each iteration
        self.events = [trace.events[a:b] for a, b in instance.spans]
        operations = ops_of(itertools.chain.from_iterable(self.events))
        if not operations:
            raise NotMergeable("loop-small", "iterations make no call of torch")
        self.modes = operations[0].modes
        self.trains = any(op.name in TRAINING for op in operations)  # its iterations compute gradients
        self.made: dict[int, tuple[int, int]] = {}  # tensor -> (iteration, index within the iteration)
        self.rows: dict[int, tuple[int, int]] = {}  # tensor -> (position of the unbinding that made it, index)
        for number, event in enumerate(trace.events[: instance.starts[0]]):
            if isinstance(event, Op) and event.name in ("Tensor.unbind", "torch.unbind"):
                self.rows.update((ref.number, (number, which)) for which, ref in enumerate(event.outs))
        known = set(trace.access_paths) if self.trains else set()
        if self.trains:
            known |= made_by(trace.events[: instance.starts[0]])
        for number, events in enumerate(self.events):
            order = 0
            for event in events:
                for ref in event.outs if isinstance(event, Op) else ():
                    if ref.number not in self.made and ref.number not in known:
                        self.made[ref.number] = (number, order)
                        order += 1
        self.sizes = max(order for _, order in self.made.values()) + 1 if self.made else 0
        patterns = [self._pattern(number) for number in range(len(self.events))]
        patterns[1:] = _with_indexes(patterns[1:], 1 + instance.first)
        if any(pattern != patterns[1] for pattern in patterns[2:]):
            raise NotMergeable(
                "loop-iterations-differ", "iterations make different calls, or give them different arguments"
            )
        if self.count > 1:
            first, second = (
                [part for part in pattern if part[0] in ("op", "asked", "effect")]
                for pattern in (self._pattern(0, True), patterns[1])
            )
            _check_first(first, second, instance.first)
        if self.trains and self._are_shared(trace):
            raise NotMergeable(
                "loop-in-place", "iterations change a tensor that shares its memory with another that they take"
            )
        if self.until is not None and self.until.limit is None and (sources := self.unbound()):
            # The number of rows limits the trip count; a call that would exceed it is a fallback.
            rows = min(sum(source == one for source, _ in self.rows.values()) for one in sources)
            self.until = replace(self.until, limit=rows - instance.first)
            self.instance = replace(instance, count=self.until)
        self.effect_merger = (
            None if isinstance(instance.count, TensorTermination) else self._effect_merger(trace, instance.count)
        )

    @property
    def end(self) -> int:
        """The position of the event before which the last iteration ended."""
        return self.instance.end

    def _trips(self, trace: Trace) -> Iterator[int]:
        """Yield the positions of the events that record the trip count, if it is no constant. Other iterations over the
        same watched iterator have the same count. An iteration may go on after the predicate that may end the loop."""
        instance, whole = self.instance, self.count + self.instance.skipped
        if instance.whole is None:
            return
        if self.until is None:
            following = itertools.takewhile(lambda event: isinstance(event, LoopEnd), trace.events[instance.end :])
            yield from (n for n, event in enumerate(following, instance.end) if getattr(event, "count", -1) == whole)
        # A loop over a generator's items begins an iteration within each iteration of this loop.
        asked = [position - 1 for position in instance.limits[1:]]
        numbers = list(range(1, whole + 1))
        for loop_record in trace.loop_records:
            where = [bisect_right(loop_record.starts, position) for position in asked]
            if loop_record.end is not None and len(loop_record.starts) == whole and where == numbers[-self.count :]:
                yield loop_record.end

    def _are_shared(self, trace: Trace) -> bool:
        """Whether iterations change a tensor in place that shares memory with another tensor that they take from before
        them."""
        operations = ops_of(itertools.chain.from_iterable(self.events))
        taken, changed = used_by(operations) - self.made.keys(), made_by(operations) - self.made.keys()
        memory = trace.memory
        where = [memory[number] for number in taken if memory[number]]
        return any(memory[number] and where.count(memory[number]) > 1 for number in changed)

    def _effect_merger(self, trace: Trace, count: Expr) -> EffectMerger:
        """Return the effects of the iterations, merged."""
        ends = [*self.positions, self.positions[-1] + op_count(self.events[-1])]
        free = len(trace.tensors) + self.instance.starts[0] * (1 + KEPT) * (1 + MOST)
        exprs = ExpressionMerger(self.made, ends, self.instance.counters, count, free, KEPT, self.instance.back)
        where = {id(event): number for number, event in enumerate(trace.events)}

        def form(values: Sequence[Any], at: Sequence[Any]) -> Any:
            return plain_form(trace, self.instance, [where[id(event)] for event in at], values)

        return EffectMerger(
            trace, exprs, [[e for e in events if isinstance(e, Effectful)] for events in self.events], form
        )

    def _pattern(self, number: int, only_operations: bool = False) -> list[Any]:
        """Return what the iteration did, event by event, in a form that is equal for iterations that are alike. Raises
        NotMergeable for an event that cannot be part of a rolled loop. ``only_operations``: without decisions and calls
        of functions."""
        found: list[Any] = []
        events = self.events[number]
        for event in events:
            if isinstance(event, Op):
                found.append(self._operation(number, event))
            elif self.until is not None and is_question(event) and event is events[-1]:
                found.append(self._question(number, event))
            elif isinstance(event, Decision | FunctionEntry | FunctionExit | LoopEnd):
                if not only_operations:
                    found.append(event.token)
            elif isinstance(event, Effectful) and self.until is None:
                found.append(("effect", type(event).__name__, event.place))
            elif isinstance(event, NumberPredicate | Specialization) and self.is_of_sizes(number, event.expr):
                # All iterations have tensors of the same sizes, and compare them with the same numbers.
                if numbers := [leaf.token for leaf in leaves(event.expr) if isinstance(leaf, Read)]:
                    found.append(("compared", event.place, *numbers))
            elif number or isinstance(event, TensorPredicate) or not isinstance(event, Fact):
                raise NotMergeable(
                    "loop-iterations-differ", "an iteration checks, writes or asks something that those before did not"
                )
        return found

    def _operation(self, number: int, op: Op) -> Any:
        """Return the pattern of an operation: its function, operands by role (own, previous iteration, row, outside),
        outputs and modes. Integers that may follow the induction variable are separate."""
        name = op.name.rpartition(".")[2]
        indexed = op.name in ("Tensor.__getitem__", "torch.select", "Tensor.select") or name in ARITHMETIC

        def is_open(value: Any) -> bool:
            """Whether the first iteration may have another value here."""
            return isinstance(value, TensorRef) or (indexed and type(value) is int)

        integers: list[int] = []

        def leaf(value: Any) -> Any:
            if isinstance(value, TensorRef):
                return self._tensor(number, value.number)
            if indexed and type(value) is int:
                integers.append(value)
                return ("integer",)
            if isinstance(value, Expr):
                return self._of_sizes(number, value)
            return value.token if hasattr(value, "token") else ("constant", type(value).__name__, repr(value))

        outs = tuple(self._tensor(number, ref.number) for ref in op.outs)
        if any(out[0] != "own" for out in outs):
            if not self.trains:
                raise NotMergeable("loop-in-place", "an iteration changes a tensor from before it in place")
            outs = tuple(out if out[0] == "own" else _changed(op, ref) for out, ref in zip(outs, op.outs, strict=True))
        args, given = map_leaves((op.args, op.kwargs), leaf), tuple(integers)
        alike = map_leaves((op.args, op.kwargs), lambda value: type(value) if is_open(value) else leaf(value))
        return ("op", op.name, id(op.func), (repr(args), given), outs, op.modes, op.draws, op.checks, repr(alike))

    def is_of_sizes(self, number: int, expr: Any) -> bool:
        """Whether the expression is computed from sizes of tensors of this iteration or of its rows, and from nothing
        else but numbers from before the call."""
        found = [leaf for leaf in leaves(expr) if not isinstance(leaf, Read)]
        return bool(found) and all(isinstance(leaf, Size) and self._is_of(number, leaf.ref) for leaf in found)

    def _is_of(self, number: int, tensor: int) -> bool:
        """Whether this iteration or the one before made the tensor, or it is their row of an unbound tensor."""
        made = self.made.get(tensor)
        if made is None:
            return self._is_row(number, tensor) or self._is_row(number - 1, tensor)
        return number - made[0] in (0, 1)

    def limits(self) -> tuple[NumberPredicate, ...]:
        """Return the condition for the same trip count, where no other condition says so."""
        whole = self.instance.whole
        func = operator.ge if self.until is not None and not self.full else operator.eq
        return () if whole is None else (NumberPredicate(Apply(func, (whole, self.count)), True, self.place),)

    def unbound(self) -> frozenset[int]:
        """Return the positions of the unbindings of which each iteration uses a row."""
        taken = [part[3][0] for part in self._pattern(min(1, self.count - 1)) if part[0] == "op"]
        sources = {source for source, _ in self.rows.values()}
        return frozenset(source for source in sources if any(f"('row', {source})" in args for args in taken))

    def _is_row(self, number: int, tensor: int) -> bool:
        return tensor in self.rows and self.rows[tensor][1] == number + self.instance.first

    def _of_sizes(self, number: int, expr: Any) -> Any:
        """Return the token of an expression, independent of the iteration whose tensors it has sizes of."""
        if isinstance(expr, Size):
            return ("size", self._tensor(number, expr.ref), expr.dim)
        if isinstance(expr, Fetch):
            after = expr.after - self.positions[number]
            return ("fetch", self._tensor(number, expr.ref), after, expr.type.__name__, expr.index)
        if isinstance(expr, Apply):
            return ("apply", token_of(expr.func), *(self._of_sizes(number, arg) for arg in expr.args))
        return expr.token if isinstance(expr, Expr) else ("constant", type(expr).__name__, repr(expr))

    def _question(self, number: int, event: Any) -> Any:
        """Return the pattern of the predicate at the end of an iteration, without its outcome."""
        if isinstance(event, TensorPredicate):
            return ("asked", event.place, self._own(number, event.ref.number))

        def part(expr: Any) -> Any:
            if isinstance(expr, Fetch):
                after = expr.after - self.positions[number]
                return ("fetch", self._own(number, expr.ref), after, expr.type.__name__, expr.index)
            if isinstance(expr, Apply):
                return ("apply", expr.func, *map(part, expr.args))
            return expr.token if hasattr(expr, "token") else ("constant", type(expr).__name__, repr(expr))

        return ("asked", event.place, part(event.expr))

    def _own(self, number: int, tensor: int) -> int:
        found, order = self.made.get(tensor, (-1, -1))
        if found != number:
            raise NotMergeable("loop-carried", "the condition of the loop asks a tensor of another iteration")
        return order

    def _tensor(self, number: int, tensor: int) -> Any:
        where = self.made.get(tensor)
        if where is not None and number - where[0] in (0, 1):
            return ("own" if number == where[0] else "previous", where[1])
        if where is not None:
            raise NotMergeable("loop-carried", "a tensor is used more than one iteration later")
        for kind, behind in (("row", 0), ("row before", 1)):
            if self._is_row(number - behind, tensor):
                return (kind, self.rows[tensor][0])
        return ("outside", tensor)


def place_of_loop(trace: Trace, instance: LoopInstance) -> Place:
    """Return where a loop is written: one that comes to its end says so, another one asks."""
    following = trace.events[instance.end] if instance.end < len(trace.events) else None
    place: Place = (following if isinstance(following, LoopEnd) else trace.events[instance.end - 1]).place
    return place


def token_of_count(instance: LoopInstance) -> Any:
    """Return the token of the expression for the trip count, or for its limit; None if it is no expression."""
    whole = instance.whole
    if whole is None:
        return None
    for _ in range(instance.skipped):
        assert isinstance(whole, Apply)
        whole = whole.args[0]
    if instance.begins and isinstance(whole, Apply) and whole.func is operator.sub:
        whole = whole.args[0]  # of range(1, n); the trip count of enumerate(x, 1) is len(x)
    if instance.back and isinstance(whole, Apply) and whole.func is operator.add:
        whole = whole.args[0]  # of range(n - 1, -1, -1)
    by_steps = bool(instance.counters) and instance.counters[0][1] > 1
    if by_steps and isinstance(whole, Apply) and whole.func is operator.floordiv:
        whole = whole.args[0].args[0]  # of range(0, n, step)
    return whole.token


def _changed(op: Op, ref: TensorRef) -> tuple[str, int]:
    """Return which argument the operation changes in place and returns."""
    given = list(refs_in(op.args))
    if ref not in given:
        raise NotMergeable("loop-in-place", "an iteration changes a tensor that it is not given")
    return ("changed", given.index(ref))


def _with_indexes(patterns: list[list[Any]], first: int) -> list[list[Any]]:
    """Return the patterns with the integers that select something by the induction variable replaced by their offset to
    it. ``first``: the index of the first iteration. A constant that has the same value in one iteration stays a
    constant."""
    if any(len(pattern) != len(patterns[0]) for pattern in patterns):
        raise NotMergeable("loop-iterations-differ", "iterations make different numbers of calls")
    found: list[list[Any]] = [[] for _ in patterns]
    for row in zip(*patterns, strict=True):
        given = [part[3][1] if part[0] == "op" else () for part in row]
        if not any(given):
            for pattern, part in zip(found, row, strict=True):
                pattern.append(part)
            continue
        if len({len(some) for some in given}) > 1:
            raise NotMergeable("loop-iterations-differ", "iterations look up different numbers of elements")
        loop_record = [_affine(column, first) for column in zip(*given, strict=True)]
        for pattern, part in zip(found, row, strict=True):
            merged = tuple(
                value if iteration is None else ("index", iteration)
                for iteration, value in zip(loop_record, part[3][1], strict=True)
            )
            pattern.append((*part[:3], (part[3][0], merged), *part[4:]))
    return found


def _affine(column: tuple[int, ...], first: int) -> int | tuple[int, int] | None:
    """Return the offset of the integers to the index of the iteration, or (offset, factor) if they are an affine
    function of it; None if they are not."""
    step = column[1] - column[0] if len(column) > 1 else 0
    if step < 1 or any(later - earlier != step for earlier, later in itertools.pairwise(column)):
        return None
    return column[0] - first if step == 1 else (column[0] - first * step, step)


def _check_first(first: list[Any], second: list[Any], number: int) -> None:
    """Check that the first iteration does the same with other tensors. ``number``: its index."""
    if [_alike(pattern) for pattern in first] != [_alike(pattern) for pattern in second]:
        raise NotMergeable("loop-first-iteration", "the first iteration makes other calls than the later ones")
    for one, other in zip(first, second, strict=True):
        if one[0] == "op" and one[1].rpartition(".")[2] in ARITHMETIC:
            merged = [_at(value, number) for value in other[3][1]]
            if merged != list(one[3][1]):
                raise NotMergeable(
                    "loop-first-iteration", "the first iteration computes with another index than the later ones"
                )


def _at(value: Any, number: int) -> int:
    """Return the value of an integer in the iteration of this index."""
    if type(value) is int:
        return value
    more, times = value[1] if type(value[1]) is tuple else (value[1], 1)
    found: int = more + times * number
    return found


def _alike(pattern: Any) -> Any:
    """Return the part of a pattern that has to be equal in the first iteration: for an operation all but its
    operands."""
    return (*pattern[:3], *pattern[4:]) if pattern[0] == "op" else pattern
