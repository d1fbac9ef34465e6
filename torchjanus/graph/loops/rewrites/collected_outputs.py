"""Makes tensors that iterations of a loop collect, and a later loop uses, the rows of one tensor: ``outs.append(h)``,
and later ``for o in outs`` or ``outs[t]``. Also makes uses of rows of a tensor at any distance such reads.

The tensors are stacked after the earlier loop, and the later iterations select rows by their induction variable; each
iteration computes views of a tensor from before the loop itself. A rewriting of traces.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchjanus.graph.loops.analysis.alignment import TRAINING
from torchjanus.graph.loops.analysis.candidates import as_loop
from torchjanus.graph.loops.rewrites.accumulators import changed_memory, used_as_objects
from torchjanus.graph.loops.rewrites.carried_distance import loop_carried
from torchjanus.graph.loops.rewrites.lists import chains
from torchjanus.graph.loops.rewrites.row_reads import FirstRowRewriter, RowReadRewriter, RowReads
from torchjanus.graph.loops.roll.reversal import UNBINDING, reversed_loops, size_of
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HostComputation, NumberPredicate, Specialization, TensorPredicate
from torchjanus.trace.loops.records import KEPT, LoopInstance, TensorTermination
from torchjanus.trace.operations import op_count, ops_of, used_by
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, Size, leaves, plus

__all__ = ["collected"]

TRIES = 3  # loops that are not rolled are excluded after each
DEEPEST = 4  # most operations to recompute a view

# (source, index within its iterations, 1 for forward or -1 for reverse, offset to the later iteration)
_Column = tuple[int, int, int, int]
_VIEWS = frozenset(
    """Tensor.__getitem__ Tensor.detach Tensor.select torch.select Tensor.unsqueeze torch.unsqueeze Tensor.squeeze
    torch.squeeze Tensor.view Tensor.t Tensor.transpose torch.transpose torch.detach""".split()
)
_DETACHING = ("Tensor.detach", "torch.detach")


@dataclass(slots=True)
class _LoopOutputs:
    """The tensors that the iterations of a loop make, or that a tensor is unbound to. ``place``: tensor -> (iteration,
    index within the iteration); ``at``: the inverse. ``count``: the trip count. ``source``: the tensor that is unbound,
    and the dimension. ``ops``: the operation that made each tensor. ``loop``: the index of the loop."""

    length: int
    count: Expr
    source: tuple[int, int] | None = None
    place: dict[int, tuple[int, int]] = field(default_factory=dict)
    at: dict[tuple[int, int], int] = field(default_factory=dict)
    ops: dict[int, Op] = field(default_factory=dict)
    loop: int = -1

    def add(self, tensor: int, iteration: int, order: int) -> None:
        self.place[tensor] = iteration, order
        self.at[iteration, order] = tensor

    def whole(self, order: int) -> list[int]:
        """Return the tensors of all iterations at this index; -1 where there is none."""
        return [self.at.get((iteration, order), -1) for iteration in range(self.length)]


def collected(trace: Trace) -> Trace:
    """Return the trace in which iterations use tensors of an earlier loop as rows; the trace itself if none does, or if
    the loops would not be rolled anyway: then the stack would be wasted work."""
    without: frozenset[int] = frozenset()
    for _ in range(TRIES):
        made, by_loop = _collected(trace, without)
        unmerged = _unmerged(made, frozenset().union(*by_loop.values())) if by_loop else frozenset()
        if not unmerged:
            return made
        without |= {number for number, loops in by_loop.items() if not unmerged.isdisjoint(loops)}
    return trace


def _collected(trace: Trace, without: frozenset[int]) -> tuple[Trace, dict[int, frozenset[int]]]:
    """Return the new trace, and for each rewritten loop the loops that must be rolled for it."""
    trace = _with_sums(trace)
    by_loop: dict[int, frozenset[int]] = {}
    for number in range(len(trace.loop_instances)):
        read = None if number in without else _consumers(trace, number)
        if read is not None:
            skipped, rows, loops = read
            trace = RowReadRewriter(trace, number, skipped, rows).trace()
            by_loop[number] = loops | {number}
    for number in range(len(trace.loop_instances)):
        row_reads = [] if number in without else _first_row_reads(trace, number)
        if row_reads:
            trace = FirstRowRewriter(trace, number, row_reads).trace()
            by_loop[number] = by_loop.get(number, frozenset()) | {number}
    return trace, by_loop


def _unmerged(trace: Trace, numbers: frozenset[int]) -> frozenset[int]:
    """Return which of these loops cannot be rolled. Loops with inner loops are not known yet, and do not count."""
    rewritten = reversed_loops(loop_carried(trace))
    loop_starts = [one.starts[0] for one in rewritten.loop_instances if one.starts]

    def is_merged(one: LoopInstance) -> bool:
        if any(one.starts[0] < other < one.end for other in loop_starts):
            return True
        return any(as_loop(rewritten, form) is not None for form in (one, one.without_first()))

    return frozenset(number for number in numbers if not is_merged(rewritten.loop_instances[number]))


def _with_sums(trace: Trace) -> Trace:
    """Return the trace in which sums over the tensors of all iterations (``sum(losses)``) are loops, too."""
    added: list[LoopInstance] = []
    for instance in trace.loop_instances:
        if isinstance(instance.count, TensorTermination) or len(instance.starts) <= KEPT:
            continue
        outputs = _outputs_of_loop(trace, instance)
        orders = {order for iteration, order in outputs.at if iteration == 0}
        for order in orders:
            for starts in chains(trace, outputs.whole(order)):
                if any(one.starts and one.starts[0] <= starts[-1] <= one.end for one in trace.loop_instances):
                    continue  # they are summed within a loop of the program
                count = Apply(operator.sub, (instance.count, 1))
                added.append(LoopInstance(tuple(starts), starts[-1] + 1, count, (), 1, unpinned=True))
    if not added:
        return trace
    result = replace(trace, loop_instances=[*trace.loop_instances, *added])
    result.alive = [*trace.alive, trace]
    return result


def _first_row_reads(trace: Trace, number: int) -> list[RowReads]:
    """Return what follows a loop and uses the tensors of its first iteration alone."""
    instance = trace.loop_instances[number]
    if isinstance(instance.count, TensorTermination) or len(instance.starts) <= KEPT or not trace.memory:
        return []  # with few iterations it may be meant as one of the last
    outputs = _outputs_of_loop(trace, instance)
    read = {ref for event in ops_of(trace.events[instance.end :]) for ref in _direct_operands(event)}
    orders = sorted({outputs.place[ref][1] for ref in read if outputs.place.get(ref, (-1, 0))[0] == 0})
    found = []
    for order in orders:
        whole = tuple(outputs.whole(order))
        rows = RowReads(whole, instance.count, 0, whole[:1])
        if -1 not in whole and _may_be_copies(trace, [rows]):
            found.append(rows)
    return found


def _direct_operands(op: Op) -> Iterator[int]:
    """Yield the tensors that are operands themselves, not elements of a list."""
    return (value.number for value in (*op.args, *op.kwargs.values()) if isinstance(value, TensorRef))


def _consumers(trace: Trace, number: int) -> tuple[int, list[RowReads], frozenset[int]] | None:
    """Return how many first iterations differ, the rows that the others use, and the loops that made them; None if the
    iterations use no such rows."""
    instance = trace.loop_instances[number]
    if isinstance(instance.count, TensorTermination) or len(instance.starts) < KEPT or not trace.memory:
        return None
    read = [_tensors_read(trace, begin, end) for begin, end in instance.spans]
    sources = list(_sources(trace, instance, read))
    source_of = {tensor: which for which, source in enumerate(sources) for tensor in source.place}
    if source_of.keys().isdisjoint(itertools.chain.from_iterable(read[1:])):
        return None
    if any(e.name in TRAINING for e in ops_of(trace.events[instance.starts[0] : instance.end])):
        return None
    for skipped in (0, 1):
        read_later = read[skipped:]
        if len(read_later) < KEPT or (rows := _row_reads(trace, sources, source_of, read_later)) is None:
            continue
        stacked = {tensor for one in rows for tensor in one.rows}
        loops = (one.loop for one in sources if one.loop >= 0 and not stacked.isdisjoint(one.place))
        return skipped, rows, frozenset(loops)
    return None


def _sources(trace: Trace, instance: LoopInstance, read: Sequence[Sequence[int]]) -> Iterator[_LoopOutputs]:
    """Yield the loops and unbindings of which the iterations may use rows."""
    for number, earlier in enumerate(trace.loop_instances):
        if (
            earlier.starts
            and earlier.end <= instance.starts[0]
            and not isinstance(earlier.count, TensorTermination)
            and len(earlier.starts) >= KEPT
        ):
            outputs = _outputs_of_loop(trace, earlier)
            outputs.loop = number
            yield outputs
    after = op_count(trace.events[: instance.starts[0]])
    for event in trace.events[: instance.starts[0]]:
        if isinstance(event, Op) and event.name in UNBINDING and (rows := _unbound(trace, event, after)) is not None:
            if not _is_handled_elsewhere(trace, rows, instance, read):
                yield rows


def _outputs_of_loop(trace: Trace, instance: LoopInstance) -> _LoopOutputs:
    assert isinstance(instance.count, Expr)
    outputs = _LoopOutputs(len(instance.starts), instance.count)
    for number, (begin, end) in enumerate(instance.spans):
        order = 0
        for event in trace.events[begin:end]:
            if isinstance(event, Op):
                for ref in event.outs:
                    if ref.number not in outputs.place and ref.number not in trace.access_paths:
                        outputs.add(ref.number, number, order)
                        outputs.ops[ref.number] = event
                        order += 1
    return outputs


def _unbound(trace: Trace, op: Op, after: int) -> _LoopOutputs | None:
    """Return the rows of an unbinding; None for other operations."""
    source, dim = (*op.args, *(0,) * (2 - len(op.args)))[:2]
    dim = op.kwargs.get("dim", dim)
    kind = trace.kinds.get(source.number) if isinstance(source, TensorRef) else None
    if kind is None or type(dim) is not int or set(op.kwargs) - {"dim"} or op.name not in UNBINDING:
        return None
    dim %= len(kind[0])
    outputs = _LoopOutputs(len(op.outs), size_of(trace, source.number, dim, after), (source.number, dim))
    for iteration, ref in enumerate(op.outs):
        outputs.add(ref.number, iteration, 0)
    return outputs


def _is_handled_elsewhere(
    trace: Trace, rows: _LoopOutputs, instance: LoopInstance, read: Sequence[Sequence[int]]
) -> bool:
    """Whether iterations use only their own row and the preceding one, or all rows in reverse order that nothing else
    uses: other passes handle these."""
    row_and_iteration = [
        (rows.place[tensor][0], number)
        for number, tensors in enumerate(read)
        for tensor in tensors
        if tensor in rows.place
    ]
    if all(place - number - instance.first in (0, -1) for place, number in row_and_iteration):
        return True
    if rows.length != len(read) or any(place != rows.length - 1 - number for place, number in row_and_iteration):
        return False
    others = (*trace.events[: instance.starts[0]], *trace.events[instance.end :])
    used = used_by(others)
    return used.isdisjoint(rows.place)


def _tensors_read(trace: Trace, begin: int, end: int) -> list[int]:
    """Return the tensors that the operations and predicates of an iteration use, in order."""
    found: list[int] = []
    for event in trace.events[begin:end]:
        if isinstance(event, Op):
            found += (ref.number for ref in event.inputs)
        elif isinstance(event, TensorPredicate):
            found.append(event.ref.number)
        elif isinstance(event, NumberPredicate | Specialization | HostComputation):
            found += (leaf.ref for leaf in leaves(event.expr) if isinstance(leaf, Fetch | Size))
    return found


def _row_reads(
    trace: Trace, sources: Sequence[_LoopOutputs], source_of: Mapping[int, int], read: Sequence[Sequence[int]]
) -> list[RowReads] | None:
    """Return the rows that the iterations use, if all use them alike; else None."""
    columns = [set(_columns(sources, source_of, number, tensors)) for number, tensors in enumerate(read)]
    # The first iteration may use another tensor as the preceding row, the last one as the next row.
    common = set.intersection(*columns[1:-1])
    row_reads: dict[_Column, RowReads] = {}
    unexplained = [{tensor for tensor in tensors if tensor in source_of} for tensors in read]
    for column in sorted(common, key=lambda column: -column[2]):
        rows = _row_read(trace, sources, column, read)
        if rows is None:
            continue
        if all(tensor in tensors for tensor, tensors in zip(rows.taken[1:-1], unexplained[1:-1], strict=True)):
            row_reads[column] = rows
            for tensor, tensors in zip(rows.taken, unexplained, strict=True):
                tensors.discard(tensor)
    # The first iteration may begin with what the last iteration of an earlier loop made.
    unexplained[0] = {
        one for one in unexplained[0] if sources[source_of[one]].place[one][0] < sources[source_of[one]].length - 1
    }
    if not row_reads or any(unexplained):
        return None
    return list(row_reads.values()) if _may_be_copies(trace, row_reads.values()) else None


def _columns(
    sources: Sequence[_LoopOutputs], source_of: Mapping[int, int], number: int, read: Sequence[int]
) -> Iterator[_Column]:
    for tensor in read:
        if tensor in source_of:
            iteration, order = sources[source_of[tensor]].place[tensor]
            yield source_of[tensor], order, 1, iteration - number
            yield source_of[tensor], order, -1, iteration + number


def _row_read(
    trace: Trace, sources: Sequence[_LoopOutputs], column: _Column, read: Sequence[Sequence[int]]
) -> RowReads | None:
    """Return the tensors that the iterations use as rows of a stack; None if they are not."""
    which, order, step, ahead = column
    source = sources[which]
    whole, count = source.whole(order), source.count
    if -1 in whole:
        return None
    whole = whole[::step]
    first = ahead if step > 0 else len(whole) - 1 - ahead
    last = first + len(read) - 1
    if first >= 0 and last < len(whole):
        rows = tuple(whole[first : last + 1])
        if source.source is not None:
            return RowReads(tuple(whole), count, first, rows, source=source.source, step=step)
        if views := _views_to_repeat(source, rows):
            return RowReads(tuple(whole), count, first, rows, again=views, step=step)
    if first == -1:  # the first iteration uses a tensor before the rows
        before = _boundary_tensor(read, 0, whole[0])
        if before is None:
            return None
        whole, count, first, last = [before, *whole], plus(count, 1), 0, last + 1
    if last == len(whole):
        behind = _boundary_tensor(read, len(read) - 1, whole[-1])
        if behind is None:
            return None
        whole, count = [*whole, behind], plus(count, 1)
    if first < 0 or last >= len(whole):
        return None
    return RowReads(
        tuple(whole),
        count,
        first,
        tuple(whole[first : last + 1]),
        bases=_detached_bases(trace, source, whole),
        step=step,
    )


def _detached_bases(trace: Trace, source: _LoopOutputs, whole: Sequence[int]) -> tuple[int, ...]:
    """Return the tensors of which these are views, if each made by an iteration is nothing but a detached view; else
    (). What leaves an iteration must not share memory with what it is given."""
    if not all(source.ops[tensor].name in _DETACHING for tensor in whole if tensor in source.ops):
        return ()
    makers = {ref.number: event for event in ops_of(trace.events) for ref in event.outs}

    def base(tensor: int) -> int:
        op = makers.get(tensor)
        if op is None or op.name not in (*_DETACHING, "Tensor.__getitem__") or not isinstance(op.args[0], TensorRef):
            return tensor
        if op.name in _DETACHING:
            return base(op.args[0].number)
        stack = makers.get(op.args[0].number)
        if stack is None or stack.name != "torch.stack" or type(op.args[1]) is not int:
            return tensor
        row = stack.args[0][op.args[1]]
        return base(row.number) if isinstance(row, TensorRef) and len(stack.args) == 1 and not stack.kwargs else tensor

    return tuple(base(tensor) if tensor in source.ops else tensor for tensor in whole)


def _views_to_repeat(source: _LoopOutputs, some: Sequence[int]) -> tuple[tuple[Op, ...], ...]:
    """Return the operations for each of these tensors, if all are views of tensors from before their loop; else ()."""
    found = [tuple(_view_of(source, tensor, DEEPEST)) for tensor in some]
    names = {tuple(op.name for op in ops) for ops in found}
    return tuple(found) if len(names) == 1 and names != {()} else ()


def _view_of(source: _LoopOutputs, tensor: int, deep: int) -> list[Op]:
    """Return the operations that make a view, in order; none if it is no view."""
    op = source.ops.get(tensor)
    if op is None or op.name not in _VIEWS or len(op.outs) != 1 or not deep:
        return []
    given = [ref.number for ref in op.inputs]
    if len(given) != 1 or given[0] == tensor:
        return []
    if given[0] not in source.place:
        return [op]
    before = _view_of(source, given[0], deep - 1)
    return [*before, op] if before else []


def _boundary_tensor(read: Sequence[Sequence[int]], number: int, row: int) -> int | None:
    """Return what the first or last iteration uses where its neighbour uses this row."""
    neighbour = read[number + (1 if number == 0 else -1)]
    if len(neighbour) != len(read[number]):
        return None
    candidates = {read[number][place] for place, tensor in enumerate(neighbour) if tensor == row}
    return candidates.pop() if len(candidates) == 1 else None


def _may_be_copies(trace: Trace, columns: Iterable[RowReads]) -> bool:
    """Whether the rows can be replaced by copies: all are alike, none is modified, and only their values are used."""
    columns = [rows for rows in columns if rows.is_stacked]
    tensors = {tensor for rows in columns for tensor in (*rows.rows, *rows.bases)}
    for rows in columns:
        kinds = [trace.kinds.get(tensor) for tensor in rows.rows]
        if None in kinds or len({(kind[0], kind[2], kind[3]) for kind in kinds if kind is not None}) > 1:
            return False
    if not columns:
        return True
    changed = changed_memory(trace)
    memory = {trace.memory[tensor] for tensor in tensors}
    if 0 in memory or not changed.isdisjoint(memory):
        return False
    return tensors.isdisjoint(used_as_objects(trace.events))
