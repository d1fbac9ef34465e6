"""Loop folding: a trace keeps only the first iterations of each loop that can be rolled, so that runs that differ only
in trip counts are one path.

``fold_loops`` runs the rewrites that make iterations alike (``LOOP_OPERANDS``, ``LOOPS``), lets ``analysis.candidates``
decide which loops are rolled, and truncates these (``analysis.truncation``). Marks among the operations say where the
iterations of a loop begin and end, and what its trip count is; ``loops.roll`` makes one loop node of what they enclose.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchjanus.core.access_path import Step
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.graph.loops.analysis.alignment import AlignedLoop
from torchjanus.graph.loops.analysis.candidates import loops_of
from torchjanus.graph.loops.analysis.recurrences import as_host_columns
from torchjanus.graph.loops.analysis.truncation import TruncatedLoops
from torchjanus.graph.loops.rewrites.accumulators import functional_accumulators
from torchjanus.graph.loops.rewrites.attribute_state import sink_attribute_writes
from torchjanus.graph.loops.rewrites.carried_distance import loop_carried
from torchjanus.graph.loops.rewrites.collected_outputs import collected
from torchjanus.graph.loops.rewrites.filled_tensors import filled_iterations
from torchjanus.graph.loops.rewrites.foreach import split_foreach
from torchjanus.graph.loops.rewrites.growing_tensors import grown_iterations
from torchjanus.graph.loops.rewrites.idle_loops import without_idle
from torchjanus.graph.loops.rewrites.in_place_state import functional_state
from torchjanus.graph.loops.rewrites.lists import lengths_of, lists_as_rows, rows_of
from torchjanus.graph.loops.rewrites.nests import FoldedNests, nested, prepared
from torchjanus.graph.loops.roll.reversal import reversed_loops
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import is_question
from torchjanus.trace.loops.records import KEPT
from torchjanus.trace.operations import ops_of

__all__ = [
    "ACCUMULATORS", "FILL", "FOLDING", "LISTS", "LOOPS", "LOOP_OPERANDS", "FoldDecision", "FoldedTrace", "OneIteration",
    "fold_loops", "is_one_iteration_form", "one_iteration_form",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class FoldedTrace:
    """A trace with folded loops. ``counts``: the trip count of each folded loop. ``full``: whether it reached its limit
    before a tensor ended it. ``open``: whether that limit may be another one in another call. ``order``: the index of
    each among the tensor-terminated loops of the trace."""

    trace: Trace
    counts: tuple[int, ...]
    full: tuple[bool, ...]
    open: tuple[bool, ...]
    order: tuple[int, ...]
    ends: tuple[int, ...] = ()  # the positions of the events at which they end
    lists: tuple[int, ...] = ()  # lengths of the lists of tensors that are stacked now
    ended: int = 0  # number of tensor-terminated loops of the trace
    inner: tuple[tuple[int, ...], ...] = ()  # per loop, the trip counts of its inner loops

    def leasts(self, counts: Sequence[int]) -> Iterator[int]:
        """Yield, of the trip counts of all tensor-terminated loops, those of the loops that were folded. If the
        one-iteration form does not have all of these loops, nothing is known about fewer than ``KEPT`` iterations, and
        ``KEPT`` is yielded."""
        return (counts[number] if len(counts) == self.ended else KEPT for number in self.order)

    def loop_keys(self) -> list[int]:
        """Return a hash of the events before each loop's end: equal where two runs agree up to the end of the
        iterations, whatever the predicate that ended them gave."""
        found, past, before = [], 0, 0
        for position, event in enumerate(self.trace.events):
            if position in self.ends:
                found.append(before)
            before, past = past, hash((past, event.token))
        return found


@dataclass(frozen=True, slots=True)
class FoldDecision:
    """What is done with a loop. ``cut``: it is folded. ``held``: its trip count is specialised. ``flat``: its inner
    loops stay unrolled; if not, ``within`` has the indices of the inner loops whose trip counts are specialised."""

    cut: bool
    held: bool = False
    flat: bool = False
    within: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class OneIteration:
    """A trace with one iteration of each tensor-terminated loop, as tokens, and the trip counts that the loops had.
    Equal tokens mean that the runs differ in these trip counts only."""

    tokens: tuple[Any, ...]
    counts: tuple[int, ...]


@dataclass(slots=True)
class _Folding:
    """What the passes share about the loops of one trace. ``which``: what is done with each loop, if that is decided.
    ``alone``: indices of the loops whose writes to elements and appends stay in the iterations. ``filling``: those
    whose writes and appends were moved behind the loop. ``levels``, ``found``: see ``_levels``."""

    which: Sequence[FoldDecision] | None
    alone: set[int] = field(default_factory=set)
    filling: frozenset[int] = frozenset()
    levels: FoldedNests = field(init=False)
    found: list[AlignedLoop] = field(default_factory=list)


def _fill(trace: Trace, folding: _Folding) -> Trace:
    made, folding.filling = filled_iterations(trace, folding.alone)
    return made


def _grow(trace: Trace, folding: _Folding) -> Trace:
    made, growing = grown_iterations(trace, folding.alone)
    folding.filling |= growing
    return made


def _nest(trace: Trace, folding: _Folding) -> Trace:
    folding.levels, folding.found = _levels(trace, folding.which)
    return folding.levels.trace


LISTS = Pass(
    "stack_lists", Stage.TRACE, lists_as_rows, "Makes lists of tensors from before the call the rows of one tensor."
)
ACCUMULATORS = Pass(
    "split_accumulators",
    Stage.TRACE,
    functional_accumulators,
    "Gives a sum that a loop adds up in place a tensor of its own in each iteration.",
)
FILL = Pass(
    "fill_behind_loops",
    Stage.TRACE,
    _fill,
    "Moves writes of iterations to elements of a tensor (`out[t] = h`) behind the loop, as one write.",
    contextual=True,
    entry=filled_iterations,
)
FOLD = Pass(
    "fold_loops",
    Stage.TRACE,
    TruncatedLoops,
    "Leaves the first iterations of each loop, between marks: they stand for any trip count.",
)
LOOP_OPERANDS = PassList(
    Part.LOOP_OPERANDS,
    (
        Pass(
            "split_foreach",
            Stage.TRACE,
            split_foreach,
            "Takes `torch._foreach_*` calls within loops apart into one operation for each tensor.",
        ),
        Pass(
            "store_behind_loops",
            Stage.TRACE,
            sink_attribute_writes,
            "Makes an attribute that each iteration sets a loop-carried value, written once behind the loop.",
        ),
    ),
)
# Run again, with the loops excluded that write behind their end but are not folded, until there are none.
LOOPS = PassList(
    Part.LOOPS,
    (
        FILL,
        Pass(
            "join_behind_loops",
            Stage.TRACE,
            _grow,
            "Makes a tensor to which iterations append (`ys = torch.cat([ys, y])`) one join behind the loop.",
            contextual=True,
            entry=grown_iterations,
        ),
        LISTS,
        Pass("drop_idle_loops", Stage.TRACE, without_idle, "Drops loops whose iterations do nothing any more."),
        Pass(
            "compute_recurrences",
            Stage.TRACE,
            as_host_columns,
            "Makes Python numbers that change by iteration elements of tensors that are made before the loop.",
        ),
        Pass(
            "carry_in_place_state",
            Stage.TRACE,
            functional_state,
            "Makes tensors that iterations change in place (counters, running statistics) loop-carried values.",
        ),
        ACCUMULATORS,
        Pass(
            "stack_outputs",
            Stage.TRACE,
            collected,
            "Makes what a later loop takes of an earlier loop's iterations the rows of one tensor.",
        ),
        Pass(
            "carry_one_iteration",
            Stage.TRACE,
            loop_carried,
            "Carries values that are used more than one iteration later from iteration to iteration.",
        ),
        Pass(
            "reverse_loops",
            Stage.TRACE,
            reversed_loops,
            "Makes loops that read rows from the last to the first read a flipped tensor from the first.",
        ),
        Pass(
            "prepare_nests",
            Stage.TRACE,
            prepared,
            "Lets sums over nested loops begin with tensors, and trip counts be known before the call.",
        ),
        Pass(
            "fold_inner_loops",
            Stage.TRACE,
            _nest,
            "Folds loops within iterations of other loops.",
            contextual=True,
            entry=nested,
        ),
    ),
)
FOLDING = PassList(Part.FOLDING, (FOLD,))


def fold_loops(trace: Trace, which: Sequence[FoldDecision] | None = None) -> FoldedTrace | None:
    """Return the trace with ``KEPT`` iterations of each loop that can be rolled; None if there is no such loop.
    ``which``: what is done with each loop of at least ``KEPT`` iterations; None if their number is another one. Without
    ``which`` all are folded."""
    run, folding = LOOP_OPERANDS.run(trace), _Folding(which)
    while True:
        trace = LOOPS.run(run, folding)
        levels, found, filling = folding.levels, folding.found, folding.filling
        fit = [loop for loop in found if loop.count >= KEPT]
        if which is not None and len(fit) != len(which):
            return None
        ends = {loop.end for loop in fit}
        unmerged = {n for n, one in zip(levels.left, trace.loop_instances, strict=True) if one.end not in ends}
        if not filling & unmerged:
            break
        folding.alone |= filling & unmerged  # unrolled iterations write one after the other
    lists, spared = lengths_of(trace), set[Any]()
    FOLDING.begin(trace)
    if which is not None:
        full = {one.end for n, one in zip(levels.left, trace.loop_instances, strict=True) if n in filling}
        spared = {loop.token for loop, chosen in zip(fit, which, strict=True) if chosen.held}
        fit = [loop for loop, chosen in zip(fit, which, strict=True) if chosen.cut or loop.end in full]
    if not fit:
        if not lists or not _is_whole(trace):
            return None
        return FoldedTrace(FOLD.gave(TruncatedLoops(trace, []).trace()), (), (), (), (), (), lists)
    inner = tuple(levels.inner.get(loop.end, ()) for loop in fit)
    ended = [loop for loop in found if loop.until is not None]
    order = tuple(number for number, loop in enumerate(ended) if loop in fit)
    try:
        counts, to_the_end = tuple(loop.count for loop in fit), tuple(loop.full for loop in fit)
        limited = tuple(loop.full and loop.instance.whole is not None for loop in fit)
        whole = tuple(loop for loop in found if loop not in fit)
        cut = TruncatedLoops(trace, fit, spared=frozenset(spared), whole=whole)
        made = FOLD.gave(cut.trace())
        return FoldedTrace(made, counts, to_the_end, limited, order, tuple(cut.ended), lists, len(ended), inner)
    except NotMergeable as error:
        for loop in fit:
            trace.remarks.note(loop.place, error.reason, error.detail)
        return None


def _levels(trace: Trace, which: Sequence[FoldDecision] | None) -> tuple[FoldedNests, list[AlignedLoop]]:
    """Return the trace with its inner loops folded, and the loops of that trace that can be rolled."""
    left: set[int] = set()
    held: dict[int, frozenset[int]] = {}
    while True:
        levels = nested(trace, left, held)
        found = loops_of(levels.trace)
        fit = [loop for loop in found if loop.count >= KEPT]
        alone = set(levels.ends.values()) - {levels.ends.get(loop.end) for loop in fit}
        chosen = {loop.end: one for loop, one in zip(fit, which or (), strict=False) if loop.end in levels.ends}
        # The trip count of a deeper loop cannot be specialised separately.
        flat = {end for end, one in chosen.items() if one.flat or any(n >= levels.widths[end] for n in one.within)}
        alone |= {levels.ends[end] for end in flat}
        holding = {levels.ends[end]: one.within for end, one in chosen.items() if one.within and end not in flat}
        if not alone and holding == held:
            return levels, found
        left |= alone
        held = holding


def one_iteration_form(trace: Trace) -> OneIteration | None:
    """Return the one-iteration form of the trace, which runs of fewer than ``KEPT`` iterations have, too; None if it
    has no tensor-terminated loop."""
    return _one_iteration(functional_accumulators(as_host_columns(without_idle(lists_as_rows(trace)))))[0]


def is_one_iteration_form(trace: Trace, end: int) -> bool:
    """Whether the trace has a one-iteration form with the tensor-terminated loop whose last iteration ended before this
    event."""
    merged = as_host_columns(trace)
    found, loops = _one_iteration(merged)
    asked = sum(map(is_question, trace.events[:end]))
    return found is not None and any(
        loop.until is not None and sum(map(is_question, merged.events[: loop.end])) == asked for loop in loops
    )


def _one_iteration(trace: Trace) -> tuple[OneIteration | None, list[AlignedLoop]]:
    """Return the one-iteration form, and the loops that can be rolled."""
    fit = loops_of(trace)
    counts = tuple(loop.count for loop in fit if loop.until is not None)
    if not counts:
        return None, fit
    try:
        return OneIteration(TruncatedLoops(trace, fit, least=1).trace().tokens(), counts), fit
    except NotMergeable:
        return None, fit


def _is_whole(trace: Trace) -> bool:
    """Whether no stacked list of tensors is taken apart: then lists of any length lead to the same graph."""
    made = {
        number
        for number, access_path in trace.access_paths.items()
        if access_path.step is Step.OF and access_path.key is rows_of
    }
    apart_ = (e for e in ops_of(trace.events) if e.name == "Tensor.unbind" and e.args)
    return not any(getattr(event.args[0], "number", None) in made for event in apart_)
