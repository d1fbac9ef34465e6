"""Represents lists of tensors from before the call as the rows of one tensor, so that their length may change.

The host stacks them before the graph runs. A rewriting of traces: a loop over such a list, or a stack of it, becomes
one of the rows of that tensor.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.graph.loops.analysis.alignment import token_of_count
from torchjanus.graph.loops.rewrites.pairs import is_part, split_pairs
from torchjanus.graph.loops.rewrites.partly_read_lists import begin_of_iteration, left_within, spans, unread
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, IdentityTest, NumberPredicate, Specialization
from torchjanus.trace.loops.records import LoopInstance, LoopSnapshots, before_iterations
from torchjanus.trace.operations import op_count, ops_of
from torchjanus.trace.recipes import ExistingObject, TensorAt, TensorOf
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, Read, leaves

__all__ = ["chains", "concatenated_rows", "lengths_of", "lists_as_rows", "rows_of", "takes_all"]

LEAST = 2  # elements


def rows_of(container: Any) -> torch.Tensor:
    """Return the elements of a list or tuple as rows of a new tensor. Raises TypeError unless all are contiguous CPU
    tensors of one size and dtype that need no gradient."""
    if type(container) not in (list, tuple) or not container:
        raise TypeError("no list or tuple with elements")
    for part in container:
        if type(part) is not torch.Tensor or part.requires_grad or not part.is_contiguous():
            raise TypeError("an element is no plain tensor")
        if part.size() != container[0].size() or part.dtype != container[0].dtype or part.device.type != "cpu":
            raise TypeError("elements are not alike")
    with torch._C.DisableTorchFunction():
        return torch.stack(tuple(container))


@dataclass(frozen=True, slots=True)
class _InputList:
    """A list that a run iterated over. ``reads``: the positions of the events that read its elements, in order.
    ``refs``: the tensors of all elements. ``unread``: the elements after those that the run read."""

    access_path: AccessPath
    reads: tuple[int, ...]
    refs: tuple[int, ...]
    unread: tuple[torch.Tensor, ...] = ()


def lists_as_rows(trace: Trace) -> Trace:
    """Return the trace with its lists of tensors, or of pairs of tensors, as rows; the trace itself if there are
    none."""
    if not any(isinstance(event, Op) for event in trace.events):
        return trace  # nothing is computed with them
    merged = _as_rows(split_pairs(trace))
    return _as_rows(trace) if any(map(is_part, _held_by(merged))) else merged


def _held_by(trace: Trace) -> Iterator[AccessPath | None]:
    """Yield the lists of which elements are read."""
    return (e.access_path.base for e in trace.events if isinstance(e, HeapRead) and e.access_path.step is Step.ITEM)


def _as_rows(trace: Trace) -> Trace:
    while (one := next(_lists(trace), None)) is not None:
        trace = _ListRewriter(trace, one).trace()
    return trace


def lengths_of(trace: Trace) -> tuple[int, ...]:
    """Return the lengths of the lists that are represented as rows."""
    return tuple(e.detail[2][0] for e in trace.events if isinstance(e, HeapRead) and _is_stacked(e.access_path))


def _is_stacked(access_path: AccessPath) -> bool:
    return access_path.step is Step.OF and access_path.key is rows_of


def _lists(trace: Trace) -> Iterator[_InputList]:
    lengths = {
        e.access_path.base: e.value for e in trace.events if isinstance(e, HeapRead) and e.access_path.step is Step.LEN
    }
    numbers: dict[AccessPath, list[int]] = {}
    for number, access_path in trace.access_paths.items():
        numbers.setdefault(access_path, []).append(number)
    items: dict[AccessPath, list[int]] = {}
    for position, event in enumerate(trace.events):
        if isinstance(event, HeapRead) and event.access_path.step is Step.ITEM and event.access_path.base is not None:
            items.setdefault(event.access_path.base, []).append(position)
    for base, length in lengths.items():
        if base is None or length < LEAST or base.waits_for:
            continue
        reads = _reads(trace, items.get(base, ()))
        if reads is None:
            continue
        read = [trace.events[position].value for position in reads]  # type: ignore[union-attr]
        more = [] if len(read) == length else unread(trace, base, length, read)
        refs = [numbers.get(base.item(index), []) for index in range(len(read))]
        if more is None or any(len(some) != 1 for some in refs) or (more and not _are_rows([*read, *more])):
            continue
        behind = range(len(trace.tensors) + 2, len(trace.tensors) + 2 + len(more))  # see _ListRewriter
        one = _InputList(base, tuple(reads), (*(some[0] for some in refs), *behind), tuple(more))
        if _is_only_taken(trace, one):
            yield one


def _are_rows(elements: list[torch.Tensor]) -> bool:
    """Whether they can be the rows of one tensor."""
    try:
        rows_of(elements)
    except TypeError:
        return False
    return True


def _reads(trace: Trace, positions: Sequence[int]) -> list[int] | None:
    """Return the positions of the events that read the elements of a list from its begin, if these are alike; else
    None."""
    reads: dict[int, int] = {}
    details = set()
    for position in positions:
        event = trace.events[position]
        assert isinstance(event, HeapRead)
        cls, _, shape, strides, device, requires_grad, _ = event.detail if event.kind == "tensor" else (None,) * 7
        if cls != "Tensor" or device != "cpu" or requires_grad or type(event.access_path.key) is not int:
            return None
        if shape is None or strides != torch.empty(shape, device="meta").stride():
            return None
        details.add(event.detail[:5])
        reads[event.access_path.key] = position
    if sorted(reads) != list(range(len(reads))) or len(details) != 1:
        return None
    return [reads[index] for index in range(len(reads))]


def _is_only_taken(trace: Trace, one: _InputList) -> bool:
    """Whether the elements are nothing but operands of operations that do not modify them."""
    refs = frozenset(one.refs)
    paths = {one.access_path.item(index).token for index in range(len(refs))}
    for part in trace.recipe_parts():
        if isinstance(part, TensorOf | TensorAt) and part.ref.number in refs:
            return False
        if isinstance(part, ExistingObject) and part.access_path.token in paths:
            return False
    if any(token[0] in ("fetch", "size") and token[1] in refs for token in trace.fetched):
        return False
    for event in trace.events:
        if isinstance(event, IdentityTest) and (event.first.token in paths or event.second.token in paths):
            return False
        if isinstance(event, HeapRead) and event.access_path.base is not None and event.access_path.base.token in paths:
            if event.access_path.step is not Step.SIZE:
                return False
        if isinstance(event, Op) and any(ref.number in refs for ref in event.outs):
            return False
        for expr in (event.expr,) if hasattr(event, "expr") else ():
            if any(isinstance(leaf, Fetch) and leaf.ref in refs for leaf in leaves(expr)):
                return False
    return bool(trace.pins.get(Read(one.access_path.then(Step.LEN)).token, 0) == _lookings(trace, one))


def _lookings(trace: Trace, one: _InputList) -> int:
    """Return how often the run iterated over the whole list."""
    access_path = one.access_path
    length = Read(access_path.then(Step.LEN)).token
    every: list[LoopInstance | LoopSnapshots] = [*trace.loop_instances, *trace.frames]
    gone = [one for one in every if _goes_by(one, length)]
    loops = len({(one.starts[-1], one.end) for one in gone}) + sum(1 for _ in left_within(trace, access_path))
    loops += sum(isinstance(event, NumberPredicate) and _compares(event.expr, length) for event in trace.events)
    stacks = sum(event.opened and takes_all(event, one.refs) for event in ops_of(trace.events))
    return loops + stacks + sum(1 for _ in chains(trace, one.refs))


def _goes_by(one: LoopInstance | LoopSnapshots, length: Any) -> bool:
    """Whether the loop has this trip count, from 0 or from its lower bound on."""
    if isinstance(one, LoopInstance):
        return bool(token_of_count(one) == length)
    count = one.count
    if one.begins and isinstance(count, Apply) and count.func is operator.sub:
        count = count.args[0]
    return isinstance(count, Read) and bool(count.token == length)


def _compares(expr: Any, length: Any) -> bool:
    """Whether it is the condition that another list, or a tensor, has as many rows: a loop iterated over both."""
    if not isinstance(expr, Apply) or expr.func is not operator.eq or not isinstance(expr.args[0], Expr):
        return False
    return isinstance(expr.args[1], Expr) and bool(expr.args[1].token == length)


def takes_all(op: Op, refs: Sequence[int]) -> bool:
    """Whether the operation stacks or concatenates the elements."""
    rows = op.args[0] if op.args else None
    return (
        op.name in ("torch.stack", "torch.cat")
        and isinstance(rows, list | tuple)
        and tuple(getattr(ref, "number", None) for ref in rows) == tuple(refs)
        and op.kwargs.keys() <= {"dim"}
        and (op.kwargs.get("dim", op.args[1] if len(op.args) > 1 else 0) == 0)
    )


def chains(trace: Trace, refs: Sequence[int]) -> Iterator[list[int]]:
    """Yield the positions, except the first, of additions of all elements one after the other, as ``sum`` makes
    them."""
    adding = [(p, e) for p, e in enumerate(trace.events) if isinstance(e, Op) and e.name == "Tensor.add"]
    for start, (_, op) in enumerate(adding):
        row = adding[start : start + len(refs)]
        if op.args[:1] != (TensorRef(refs[0]),) or len(row) < len(refs):
            continue
        taken = [later.args[1] for _, later in row[1:]]
        linked = all(later.args[:1] == earlier.outs for (_, earlier), (_, later) in itertools.pairwise(row))
        if linked and taken == [TensorRef(ref) for ref in refs[1:]]:
            yield [position for position, _ in row[1:]]


class _ListRewriter(TraceRewriter):
    """Writes the new trace, with the elements of one list as rows."""

    def __init__(self, old: Trace, one: _InputList) -> None:
        super().__init__(old)
        self.one = one
        self.rows = one.access_path.then(Step.OF, rows_of)
        # Where the tensor is read. The run has not modified what is read.
        self.at = begin_of_iteration(old, one.access_path, before_iterations(old.loop_instances, min(one.reads)))
        self.before = op_count(old.events[: self.at])
        others = (e for e in ops_of(old.events) if not takes_all(e, one.refs))
        self.unbound = any(ref.number in one.refs for e in others for ref in e.inputs)
        self.paths = {one.access_path.item(index).token for index in range(len(one.refs))}
        self.within = self._within_iterations()
        self.first = len(old.tensors) + 1 if self._takes_first() else None

    def _within_iterations(self) -> list[bool]:
        """Return, for each operation of the old trace, whether it is in a loop."""
        loops: list[LoopInstance | LoopSnapshots] = [*self.old.loop_instances, *self.old.frames]
        within = [*((one.starts[0], one.end) for one in loops if one.starts), *spans(self.old, self.one.access_path)]
        ops = (at for at, event in enumerate(self.old.events) if isinstance(event, Op))
        return [any(begin <= at < end for begin, end in within) for at in ops]

    def _takes_first(self) -> bool:
        """Whether the first element is also used elsewhere: ``torch.zeros_like(xs[0])``."""
        ops = ops_of(self.old.events)
        outside = (op for op, within in zip(ops, self.within, strict=True) if not within)
        alone = (value for op in outside for value in (*op.args, *op.kwargs.values()) if isinstance(value, TensorRef))
        return len(self.one.refs) > LEAST and any(ref.number == self.one.refs[0] for ref in alone)

    def tensor(self, number: int, after: int) -> int:
        if self.first is None or number != self.one.refs[0] or after >= len(self.within) or self.within[after]:
            return number
        return self.first

    def trace(self) -> Trace:
        old, one = self.old, self.one
        number = len(old.tensors)
        first = old.events[one.reads[0]]
        assert isinstance(first, HeapRead)
        modes = ops_of(old.events)[0].modes
        elements = [old.events[position].value for position in one.reads]  # type: ignore[union-attr]
        value = torch.stack([tensor.detach() for tensor in (*elements, *one.unread)])
        detail = (*first.detail[:2], tuple(value.shape), value.stride(), "cpu", False, True)
        length = one.access_path.then(Step.LEN)
        sized: set[Any] = set()  # conditions on sizes of elements, equal for all

        def ahead(position: int) -> Iterator[Any]:
            if position == self.at:
                refs = tuple(map(TensorRef, one.refs))
                yield HeapRead(self.rows, value, "tensor", detail, place=first.place)
                yield HeapRead(self.rows.then(Step.SIZE, 0), len(refs), "number", place=first.place)
                args = (TensorRef(number), 0)
                if self.unbound:
                    yield Op(torch.Tensor.unbind, "Tensor.unbind", args, {}, refs, modes, first.place)
                if self.first is not None:
                    out = (TensorRef(self.first),)
                    yield Op(torch.select, "torch.select", (*args, 0), {}, out, modes, first.place)

        def step(position: int, event: Any, after: int) -> Iterator[Any]:
            if position in one.reads or (isinstance(event, Specialization) and event.expr.token == Read(length).token):
                return
            made = self.event(event, after)
            if self._is_of_element(event):
                if made.token in sized:
                    return
                sized.add(made.token)
            if isinstance(event, Op) and takes_all(event, one.refs):
                func = torch.clone if event.name == "torch.stack" else concatenated_rows
                made = replace(made, func=func, name=func.__name__, args=(TensorRef(number),), kwargs={})
            yield made

        events, inserted, begins = self.walk(step, ahead)
        access_paths = {n: access_path for n, access_path in old.access_paths.items() if n not in one.refs} | {
            number: self.rows
        }
        moved = self.moved(begins, inserted)
        moved["loop_instances"] += self._sums(inserted)
        added = [None] * (1 + len(one.unread) if one.unread else int(self.first is not None))
        kinds = {number: (tuple(value.shape), value.stride(), value.dtype, value.device, False)}
        for row in (*one.refs[len(one.reads) :], *(() if self.first is None else (self.first,))):
            kinds[row] = (tuple(value.shape[1:]), value.stride()[1:], value.dtype, value.device, False)
        return self.made(
            events,
            tensors=[*(None if n in one.refs else t for n, t in enumerate(old.tensors)), value, *added],
            memory=[*old.memory, 0, *([0] * len(added))] if old.memory else [],
            kinds=old.kinds | kinds,
            access_paths=access_paths,
            pins=self._pins(),
            **moved,
        )

    def position(self, after: int) -> int:
        return after + (self.unbound + (self.first is not None) if after > self.before else 0)

    def _count(self) -> Read:
        return Read(self.rows.then(Step.SIZE, 0))

    def expr(self, expr: Any) -> Any:
        """Return the expression, with the length of the list replaced by the size of the tensor."""
        if isinstance(expr, Read) and expr.access_path == self.one.access_path.then(Step.LEN):
            return self._count()
        if isinstance(expr, Read) and self._is_size(expr.access_path):
            return Read(self.rows.then(Step.SIZE, expr.access_path.key + 1))
        return super().expr(expr)

    def _is_size(self, access_path: AccessPath) -> bool:
        """Whether it is a size of an element."""
        return access_path.step is Step.SIZE and access_path.base is not None and access_path.base.token in self.paths

    def _is_of_element(self, event: Any) -> bool:
        """Whether the event is about the size of an element: all have the same."""
        if isinstance(event, HeapRead):
            return self._is_size(event.access_path)
        found = leaves(event.expr) if isinstance(event, NumberPredicate | Specialization) else ()
        return any(isinstance(leaf, Read) and self._is_size(leaf.access_path) for leaf in found)

    def event(self, event: Any, after: int) -> Any:
        if isinstance(event, HeapRead) and self._is_size(event.access_path):
            return replace(event, access_path=self.rows.then(Step.SIZE, event.access_path.key + 1))
        return super().event(event, after)

    def _pins(self) -> dict[Any, int]:
        """Return what is specialised on, except the length itself."""
        length = Read(self.one.access_path.then(Step.LEN)).token

        known = {length: self._count().token}
        found = self.old.events[self.one.reads[0]]
        assert isinstance(found, HeapRead)
        for index in range(len(self.one.reads)):
            for dim in range(len(found.detail[2])):
                size = self.one.access_path.item(index).then(Step.SIZE, dim)
                known[Read(size).token] = Read(self.rows.then(Step.SIZE, dim + 1)).token

        def merged(token: Any) -> Any:
            if token in known:
                return known[token]
            return tuple(map(merged, token)) if type(token) is tuple else token

        pins: dict[Any, int] = {}
        for token, times in self.old.pins.items():
            if token != length:
                made = merged(self._pinned(token))
                pins[made] = pins.get(made, 0) + times
        return pins

    def _sums(self, places: Sequence[int]) -> Iterator[LoopInstance]:
        for positions in chains(self.old, self.one.refs):
            starts = tuple(places[position] for position in positions)
            yield LoopInstance(starts, starts[-1] + 1, Apply(operator.sub, (self._count(), 1)), (), 1)


def concatenated_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return ``torch.cat`` of the rows."""
    return rows.flatten(0, 1).clone()
