"""Moves the writes of iterations to elements of a tensor (``outputs[t] = out``) behind the loop, as one write.

Nothing else reads such a tensor within the loop, so iterations need not modify a tensor from before the loop. A
rewriting of traces.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.graph.loops.rewrites.accumulators import changed_memory, knows
from torchjanus.graph.loops.rewrites.gradient_flow import writes as changes
from torchjanus.trace.actions import Op
from torchjanus.trace.events import LoopEnd, Trace
from torchjanus.trace.facts import TensorPredicate
from torchjanus.trace.loops.records import LoopInstance, LoopSnapshots, TensorTermination
from torchjanus.trace.operands import expressions_in, refs_in
from torchjanus.trace.operations import op_count, ops_of, used_by
from torchjanus.trace.recipes import TensorAt, TensorOf, parts_of
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Fetch, Size, leaves

__all__ = ["filled_iterations", "is_whole", "sink_element_writes", "uses"]

_WRITING = "Tensor.__setitem__"
_LOOKING = "Tensor.__getitem__"


@dataclass(frozen=True, slots=True)
class _FilledTensor:
    """A tensor that iterations fill. ``writes``: per iteration the position of the write. ``dim``: the dimension of the
    index. ``first``: the lowest index. ``step``: -1 if the indices decrease. ``reads``: position of a read of the
    preceding iteration's element -> that iteration."""

    number: int
    writes: tuple[int, ...]
    dim: int
    first: int
    step: int
    reads: dict[int, int] = field(default_factory=dict)


def sink_element_writes(trace: Trace, frames: LoopSnapshots) -> tuple[Trace, LoopSnapshots]:
    """Return the trace in which the writes of this loop are moved behind it, and the loop in it; both unchanged if
    there are none."""
    if frames.region or len(frames.starts) < 2:
        return trace, frames
    number = trace.frames.index(frames)
    while (one := next((one for one in _filled(trace, frames) if _is_last_merged(trace, one)), None)) is not None:
        states = trace.frames[number].states
        values = [trace.events[at].args[2] for at in one.writes]  # type: ignore[union-attr]
        trace = _FillRewriter(trace, frames, one).trace()
        frames = trace.frames[number]
        assert len(frames.states) == len(states)
        for state, value in zip(frames.states[1:], values, strict=True):
            state["written", one.number] = ("tensor", value.number)  # no variable may hold it
    return trace, frames


def filled_iterations(trace: Trace, without: Container[int] = ()) -> tuple[Trace, frozenset[int]]:
    """Return the trace in which the writes of loops whose trip count may change are moved behind these loops, and the
    indices of these loops; the trace itself if there are none. ``without``: indices of loops that are left alone. The
    gradients that a row gets from several places are then summed in another order, as in any rolled loop."""
    if not any(isinstance(event, Op) and event.name == _WRITING for event in trace.events):
        return trace, frozenset()
    return rewritten_loops(trace, without, _filled, _FillRewriter)


def rewritten_loops(
    trace: Trace,
    without: Container[int],
    find: Callable[[Trace, LoopInstance], Iterator[Any]],
    rewriter: Callable[[Trace, LoopInstance, Any], Any],
) -> tuple[Trace, frozenset[int]]:
    """Return the trace in which ``rewriter`` has rewritten whole loops, and their indices. ``find`` yields what is to
    be rewritten in a loop; it is asked again after each rewriting."""
    found: set[int] = set()
    for number in range(len(trace.loop_instances)):
        while number not in without and is_whole(trace, instance := trace.loop_instances[number]):
            one = next(find(trace, instance), None)
            if one is None:
                break
            trace = rewriter(trace, instance, one).trace()
            found.add(number)
    return trace, frozenset(found)


def is_whole(trace: Trace, instance: LoopInstance) -> bool:
    """Whether the loop reached its end, which an event records, and was not left early."""
    if isinstance(instance.count, TensorTermination) or len(instance.starts) < 2 or instance.end >= len(trace.events):
        return False
    return isinstance(trace.events[instance.end], LoopEnd)


def _filled(trace: Trace, frames: LoopSnapshots | LoopInstance) -> Iterator[_FilledTensor]:
    limits = frames.spans
    writes: dict[int, list[tuple[int, int]]] = {}
    for iteration, (start, end) in enumerate(limits):
        for at in range(start, end):
            event = trace.events[at]
            if isinstance(event, Op) and event.name == _WRITING and isinstance(event.args[0], TensorRef):
                writes.setdefault(event.args[0].number, []).append((iteration, at))
    if not writes:
        return
    there_made = ops_of(trace.events[: frames.end])
    there = {ref.number for event in there_made for ref in event.outs} | {*trace.access_paths}
    sharing = Counter(trace.memory[number] for number in there)
    reading = _reading(trace, frames, writes) if isinstance(frames, LoopInstance) else {}
    makers = {ref.number: event for event in there_made for ref in event.outs}
    changed = changed_memory(trace)
    for number, found in writes.items():
        events: list[Any] = [trace.events[at] for _, at in found]
        values = [event.args[2] for event in events]
        read = reading.get(number, [])
        alone = bool(trace.memory[number]) and sharing[trace.memory[number]] == 1 + len(read)
        if (
            not alone
            or number in trace.access_paths
            or number not in trace.kinds
            or [iteration for iteration, _ in found] != list(range(len(limits)))
        ):
            continue
        size, *_, graded = trace.kinds[number]
        place = _place([event.args[1] for event in events], size)
        if place is None or len({(event.modes, event.place) for event in events}) > 1:
            continue
        if makers[number].kwargs.get("requires_grad") or (graded and not events[0].modes.grad):
            continue  # the gradient would belong to another tensor
        row = (*size[: place[0]], *size[place[0] + 1 :])
        if len(set(map(repr, values))) < len(values) or not all(
            _is_row(trace, value, row, changed) for value in values
        ):
            continue
        if uses(trace, frames, number) != len(found) + len(read) or _is_known(trace, number):
            continue
        reads = _reads(trace, frames, place, events[0].args[1], read) if read else {}
        if reads is not None and (not read or trace.kinds[values[0].number][2] == trace.kinds[number][2]):
            yield _FilledTensor(number, tuple(at for _, at in found), *place, reads)


def _reading(trace: Trace, instance: LoopInstance, written: Container[int]) -> dict[int, list[int]]:
    """Return, for each of these tensors, the positions at which iterations read a part of it that is neither modified
    nor used after the loop."""
    later = used_by(trace.events[instance.end :])
    found: dict[int, list[int]] = {}
    for at in range(instance.starts[0], instance.end):
        op = trace.events[at]
        if isinstance(op, Op) and op.name == _LOOKING and isinstance(op.args[0], TensorRef) and len(op.outs) == 1:
            whole, part = op.args[0].number, op.outs[0].number
            if whole in written and part in trace.kinds and part not in later and not _leaves_or_changes(trace, part):
                found.setdefault(whole, []).append(at)
    return found


def _leaves_or_changes(trace: Trace, number: int) -> bool:
    merged = (part for part in trace.recipe_parts() if isinstance(part, TensorOf | TensorAt))
    if any(part.ref.number == number for part in merged):
        return True
    return any(_occurrences(op.args[:1], number) for op in ops_of(trace.events) if changes(op) or knows(op))


def _reads(
    trace: Trace,
    instance: LoopSnapshots | LoopInstance,
    place: tuple[int, int, int],
    written_at: Any,
    read: Sequence[int],
) -> dict[int, int] | None:
    """Return, for each of these reads, the iteration whose element it reads: the preceding one; None if one reads
    another element."""
    (dim, first, step), found = place, {}
    begun = first if step > 0 else first + len(instance.starts) - 1  # the index that the first iteration writes
    whole = written_at if isinstance(written_at, tuple) else (written_at,)
    for at in read:
        iteration = bisect.bisect_right(instance.starts, at) - 1
        key = trace.events[at].args[1]  # type: ignore[union-attr]
        row = begun + step * (iteration - 1)
        parts = key if isinstance(key, tuple) else (key,)
        if row < 0 or [*parts] != [*whole[:dim], row, *whole[dim + 1 :]]:
            return None
        found[at] = iteration - 1
    return found


def _is_row(trace: Trace, value: Any, size: tuple[int, ...], changed: frozenset[int]) -> bool:
    """Whether it is a tensor of this size that the call made and that is not modified."""
    if not isinstance(value, TensorRef) or trace.kinds.get(value.number, (None,))[0] != size:
        return False
    memory = trace.memory[value.number]
    return bool(memory) and memory not in changed and value.number not in trace.access_paths


def _is_known(trace: Trace, number: int) -> bool:
    """Whether the program uses more of the tensor than its value."""
    return any(knows(op) and _occurrences(op.args, number) for op in ops_of(trace.events))


def _place(keys: Sequence[Any], size: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return (dimension, lowest index, step 1 or -1) of the elements that these keys write; None if they are not
    consecutive."""
    parts = [key if isinstance(key, tuple) else (key,) for key in keys]
    found = {tuple(n for n, part in enumerate(some) if type(part) is int) for some in parts}
    if (
        len(found) > 1
        or len(*found) != 1
        or any(part != slice(None) for some in parts for part in some if type(part) is not int)
    ):
        return None
    ((dim,),) = found
    numbers = [some[dim] for some in parts]
    if min(numbers) < 0 or max(map(len, parts)) > len(size):
        return None
    step = numbers[1] - numbers[0]
    ordered = abs(step) == 1 and numbers == list(range(numbers[0], numbers[0] + step * len(numbers), step))
    return (dim, min(numbers), step) if ordered else None


def uses(trace: Trace, frames: LoopSnapshots | LoopInstance, number: int) -> int:
    """Return how often iterations use the tensor."""
    found = 0
    for event in trace.events[frames.starts[0] : frames.end]:
        recipes = trace.recipes.get(id(event), ())
        merged: list[Any] = [getattr(event, "expr", None), *recipes]
        if isinstance(event, Op):
            merged += [event.args, event.kwargs, event.outs]
        elif isinstance(event, TensorPredicate):
            merged.append(event.ref)
        parts = (part for recipe in recipes for part in parts_of(recipe))
        merged += [part.ref for part in parts if isinstance(part, TensorOf | TensorAt)]
        found += _occurrences(merged, number)
    return found


def _occurrences(value: Any, number: int) -> int:
    of = [leaf.ref for expr in expressions_in(value) for leaf in leaves(expr) if isinstance(leaf, Fetch | Size)]
    return [*(ref.number for ref in refs_in(value)), *of].count(number)


def _is_last_merged(trace: Trace, one: _FilledTensor) -> bool:
    """Whether each row gets gradients from one other place at most: then the order of summation does not matter."""
    for at in one.writes:
        number = trace.events[at].args[2].number  # type: ignore[union-attr]
        users = [e for e in ops_of(trace.events) if _occurrences((e.args, e.kwargs), number)]
        graded = [op for op in users if op.modes.grad and any(trace.kinds.get(r.number, (True,))[-1] for r in op.outs)]
        if len(graded) > 1:
            return False
    return True


def written(tensor: torch.Tensor, where: str, rows: torch.Tensor) -> torch.Tensor:
    """Return a copy of the tensor with these rows in it. ``where``: dimension and first index, as text, since a number
    among arguments may be loop-carried."""
    dim, first = map(int, where.split())
    made = tensor.clone()
    made.narrow(dim, first, rows.size(dim)).copy_(rows)
    return made


class _FillRewriter(TraceRewriter):
    """Writes the new trace, with one write behind the loop."""

    def __init__(self, old: Trace, loop: LoopSnapshots | LoopInstance, one: _FilledTensor) -> None:
        super().__init__(old)
        self.start, self.end, self.one, self.new = loop.starts[0], loop.end, one, len(old.tensors)
        end = self.end
        self.behind_it = end  # the events for the end of the loop and of its iterable
        while any(isinstance(event, LoopEnd) for event in old.events[self.behind_it + 1 : self.behind_it + 2]):
            self.behind_it += 1
        self.after: list[int] = []  # number of operations before each of the writes
        count = 0
        for at, event in enumerate(old.events[: end + 1]):
            if at in one.writes:
                self.after.append(count)
            count += isinstance(event, Op)
        self.whole = count  # number of operations before what follows the loop
        self.begun = op_count(old.events[: self.start])
        self.behind = False

    def tensor(self, number: int, after: int) -> int:
        return self.new if number == self.one.number and (self.behind or after > self.whole) else number

    def final(self, number: int) -> int:
        return self.new if number == self.one.number else number

    def position(self, after: int) -> int:
        later = after > self.whole or (after == self.whole and self.behind)
        ahead = bool(self.one.reads) and after > self.begun
        return after - sum(one < after for one in self.after) + 2 * later + ahead

    def _ahead(self) -> Op:
        """Return the read that the first iteration makes, before the loop."""
        read = self.old.events[min(self.one.reads)]
        assert isinstance(read, Op)
        return replace(read, outs=(TensorRef(self.new + 2),))

    def _looking(self, read: Op, iteration: int) -> Op:
        """Return a copy of the row that this iteration has written, in place of the read; -1: of the read before the
        loop."""
        row = TensorRef(self.new + 2) if iteration < 0 else self.old.events[self.one.writes[iteration]].args[2]  # type: ignore[union-attr]
        return replace(read, func=torch.clone, name="torch.clone", args=(row,), kwargs={})

    def trace(self) -> Trace:
        old, one, end = self.old, self.one, self.end
        writes: list[Any] = [old.events[at] for at in one.writes]

        def step(position: int, event: Any, after: int) -> Iterator[Any]:
            if position in one.writes:
                return
            made = self.event(event, after)
            yield self._looking(made, one.reads[position]) if position in one.reads else made
            if position == self.behind_it:
                stacked, full = TensorRef(self.new + 1), TensorRef(self.new)
                modes, at = writes[0].modes, writes[0].place
                rows = [op.args[2] for op in writes][:: one.step]
                where = f"{one.dim} {one.first}"
                stacking = (rows,) if not one.dim else (rows, one.dim)
                yield Op(torch.stack, "torch.stack", stacking, {}, (stacked,), modes, at)
                args = (TensorRef(one.number), where, stacked)
                yield Op(written, "written", args, {}, (full,), modes, at)
                self.behind = True

        events, _, places = self.walk(step, lambda at: (self._ahead(),) if at == self.start and one.reads else ())
        graded = any(old.kinds[op.args[2].number][-1] for op in writes) and writes[0].modes.grad
        kind, row = old.kinds[one.number], old.kinds[writes[0].args[2].number]
        size = (*row[0][: one.dim], len(writes), *row[0][one.dim :])
        strides = tuple(math.prod(size[n + 1 :]) for n in range(len(size)))
        kinds = {
            **old.kinds,
            one.number: (*kind[:4], False),
            self.new: (*kind[:4], graded or kind[4]),
            self.new + 1: (size, strides, *row[2:4], graded),
        }
        last = max(old.memory)
        memory = [*old.memory, old.memory[one.number], last + 1]
        memory[one.number] = last + 2
        added: list[Any] = [None, None]
        if one.reads:  # each has separate memory
            added.append(None)
            looks = [old.events[at].outs[0].number for at in one.reads]  # type: ignore[union-attr]
            kinds[self.new + 2] = old.kinds[looks[0]]
            memory.append(last + 3)
            for more, number in enumerate(looks, start=last + 4):
                memory[number] = more
        # The last event of the last iteration stays within it, though the write after it is removed.
        begins = [*(min(place, places[end] - 1) for place in places[:end]), *places[end:]]
        return self.made(
            events, tensors=[*old.tensors, *added], memory=memory, kinds=kinds, **self.moved(begins, places)
        )
