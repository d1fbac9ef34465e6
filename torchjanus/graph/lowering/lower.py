"""Lower a Program to one functional ATen graph: combines tracing, slots, clean-up and checks."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from torchjanus.core.default_device import without_function_modes
from torchjanus.core.errors import InternalFault, Place, Refusal, Refused, refused
from torchjanus.core.remarks import collected, remark
from torchjanus.core.trees import map_leaves
from torchjanus.graph.aten import clean_up
from torchjanus.graph.aten.size_assertions import assert_sizes
from torchjanus.graph.aten.strides import lay_results
from torchjanus.graph.aten.symbolic_sizes import Fixed
from torchjanus.graph.aten.verify import verify
from torchjanus.graph.ir.lowered import Lowered, Pin, ViewOf
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.graph.ir.program import Node, Program, Slot
from torchjanus.graph.loops.roll.roll import (
    ROLL_FOLDED,
    ROLL_REPEATED,
    ROLLING,
    counts_of,
    has_folded_loops,
    place_of,
    place_of_loop,
    roll,
)
from torchjanus.graph.regions.loop import FixedTripCount, Loop
from torchjanus.graph.regions.loop_bytes import has_loops
from torchjanus.graph.tracing import number_slots
from torchjanus.graph.tracing.node_tracing import TraceFailed
from torchjanus.graph.tracing.quiet import quiet
from torchjanus.graph.tracing.small_sizes import conditions_of_few
from torchjanus.graph.tracing.trace_program import Traced, trace
from torchjanus.trace.values import Expr, leaves

__all__ = ["FINISHING", "LOWERING", "check_counts", "lower", "lower_rolled", "made_in", "without_marks"]


@without_function_modes()
def lower(program: Program, pinned: Mapping[int, float | int] | None = None) -> Lowered:
    """Return one graph for the whole program. Computes nothing; ``pinned`` slots become the given constants.

    A slot that is used where it may not vary (a shape, a probability) is specialised on its last value: each entry of
    ``Lowered.pinned`` needs a value guard. Raises Refused where no graph is correct.
    """
    held: dict[int, float | int] = dict(pinned or {})
    reasons = dict.fromkeys(held, "asked for")
    dtypes = {node.modes.default_dtype for node in program.nodes}
    if len(dtypes) > 1:
        what = f"the default dtype changes within the step ({', '.join(sorted(map(str, dtypes)))})"
        remedy = "Set it before the step."
        raise refused("default-dtype", what, "A graph runs under one default dtype.", remedy, program.nodes[0].place)
    traced = None
    while traced is None:
        try:
            with quiet():
                traced = LOWERING.run(program, held)
        except Pin as pin:
            if not pin.slots.keys() - held.keys():
                raise InternalFault("two traces of one program differ, and no number explains it") from pin
            for index, reason in pin.slots.items():
                held[index] = program.slots[index].seen[-1]
                reasons[index] = reason
    graph = traced.graph
    clean_up.clean(graph)
    symbolic = traced.symbolic
    FINISHING.begin(graph)
    with symbolic.mode:
        LAY_RESULTS(graph, traced.layouts)
    conditions, measures = tuple(symbolic.conditions()), tuple(map(symbolic.expression, traced.measures))
    numbers = number_slots.numbers_for(program.slots, held, seed=1)
    few = tuple(conditions_of_few(program, numbers, held, traced, (*conditions, *measures)))
    sized = _assert_made(program, (*few, *conditions), traced)
    lowered = Lowered(
        program=program,
        graph=graph,
        fresh=traced.fresh,
        mutated=traced.mutated,
        outputs=traced.outputs,
        leaves=traced.leaves,
        requires_grad_set=traced.requires_grad_set,
        replaced=traced.replaced,
        restored=traced.restored,
        pinned=held,
        pin_reasons=reasons,
        random=any(clean_up.is_random(node) for node in graph.graph.nodes),
        default_dtype=next(iter(dtypes), torch.get_default_dtype()),
        conditions=tuple(condition for condition in (*few, *conditions) if condition not in sized),
        sized=sized,
        measures=measures,
        drawn=traced.drawn,
        nodes=sum(node.op == "call_function" for node in graph.graph.nodes),
        uncounted=tuple(index for index in traced.mutated if index in traced.uncounted),
        saves=traced.saves,
        uses=traced.uses,
    )
    verify(lowered)
    return lowered


def made_in(program: Program, value: Any) -> bool:
    """Whether a value that the host computes depends on sizes that only the graph knows."""
    made = {dimension.expr.token for dimension in program.dimensions if dimension.made}
    return isinstance(value, Expr) and any(leaf.token in made for leaf in leaves(value))


def _assert_made(program: Program, conditions: Iterable[Any], traced: Traced) -> tuple[Any, ...]:
    """Let the graph assert the conditions on the number of elements that it selects, and return them. Raises Refused
    where the host would have to know that number."""
    if not any(dimension.made for dimension in program.dimensions):
        return ()
    results = (*traced.outputs, *(one.result for one in traced.leaves), *(one.result for one in traced.replaced))
    views = [result.source for result in results if isinstance(result.source, ViewOf)]
    numbers = (number for view in views for number in (*view.size, *view.stride, view.offset))
    asked = tuple(condition for condition in conditions if made_in(program, condition))
    if any(made_in(program, number) for number in numbers):
        what = "the step gives a view of what it selects"
        raise refused("selection-on-host", what, "The host makes the selection.")
    if asked and program.cuts:  # a violation after an extern call at a cut would waste that call
        what = "the step does something else where another number of elements is selected, and calls native code"
        raise refused("selection-on-host", what, "The host makes the selection.")
    if asked:
        sizes = {one.expr.token: size for one, size in zip(program.dimensions, traced.symbolic.sizes, strict=True)}
        assert_sizes(traced.graph, asked, sizes, traced.fresh, bool(program.assertions))
        ASSERT_SIZES.gave(traced.graph)
    return asked


def without_marks(program: Program) -> Program:
    """Return the program with its folded loops rolled. Raises Refused."""
    ROLLING.begin(program)
    return ROLL_FOLDED(program) if has_folded_loops(program) else program


def check_counts(program: Program, lowered: Lowered) -> None:
    """Raise FixedTripCount where the graph is specialised on the trip count of a folded loop of ``program``."""
    if lowered.pinned.keys() & set(counts_of(program)):
        what = "what a loop's iterations gave is used all together, and their number is no size of a tensor"
        raise FixedTripCount(
            Refusal("loop-count-used", what, "Each trip count has an entry of its own.", place=place_of_loop(program))
        )


def lower_rolled(program: Program) -> Lowered:
    """Do the same as ``lower``, with repeated segments rolled to loops where possible. The result says what could not
    be optimised. Raises Refused."""
    with collected() as remarks:
        lowered = _lower_rolled(program)
    return replace(lowered, remarks=tuple(remarks))


def _lower_rolled(program: Program) -> Lowered:
    if has_loops(program) or any(dimension.made for dimension in program.dimensions):
        return lower(program)
    for rolled in roll(program):
        try:
            return lower(ROLL_REPEATED.gave(rolled))
        except Refused as error:
            remark(error.refusal.at(_place_of_loops(rolled)).place, error.refusal.reason, error.refusal.what)
        except Fixed as fixed:
            remark(_place_of_loops(rolled), "loop-count-fixed", str(fixed))
    return lower(program)


def _place_of_loops(program: Program) -> Place:
    """Return the source location of the first rolled loop."""
    bodies = (node.func.body for node in program.nodes if isinstance(node.func, Loop))
    return place_of(node for body in bodies for node in body.nodes)


def _trace(program: Program, held: Mapping[int, float | int]) -> Traced:
    """Trace twice with different numbers and connect the slots to their uses. Raises Pin."""
    first = number_slots.numbers_for(program.slots, held, seed=1)
    second = number_slots.numbers_for(program.slots, held, seed=2)
    free = [index for index in range(len(program.slots)) if index not in held]
    sizes = [dimension.slot for dimension in program.dimensions if dimension.slot is not None]
    try:
        one = trace(program, first, held)
        one.symbolic.check()
        other = trace(program, second, held, one) if free else one
    except TraceFailed as failure:
        raise _blame(program, held, first, failure) from failure
    compared = other.twin or other.graph
    differences = number_slots.thread(one.graph, compared, first, second, sizes)
    if differences:
        # The first trace of a kernel may differ from later ones: cached fake results never share an object.
        one = trace(program, first, held)
        differences = number_slots.thread(one.graph, compared, first, second, sizes)
    if differences or _shape_of(one) != _shape_of(other):
        raise Pin(_culprits(program, held, first, second, one))
    return one


LOWERING = PassList(
    Part.LOWERING,
    (
        Pass(
            "trace_graph",
            Stage.LOWER,
            _trace,
            "Runs the program on fake tensors: forward, backward and optimizer become one functional ATen graph.",
            contextual=True,
            entry=trace,
        ),
    ),
)
LAY_RESULTS = Pass(
    "lay_results", Stage.GRAPH, lay_results, "Gives results the strides that eager's have.", contextual=True
)
ASSERT_SIZES = Pass(
    "assert_sizes",
    Stage.GRAPH,
    assert_sizes,
    "Adds assertions on the number of elements that the graph itself selects.",
    contextual=True,
)
FINISHING = PassList(Part.FINISHING, (LAY_RESULTS, ASSERT_SIZES))


def _shape_of(traced: Traced) -> tuple[Any, ...]:
    """Return what must be equal for all numbers. Nodes that only measure a size are left out: the graph drops them."""
    measures = [size if type(size) is int else str(size.node.expr) for size in traced.measures]
    return traced.outputs, traced.leaves, traced.mutated, traced.restored, measures, traced.saves, traced.uses


def _blame(
    program: Program, held: Mapping[int, float | int], numbers: list[float | int], failure: TraceFailed
) -> Pin | Refused:
    """Explain a failed trace with made-up numbers: pin the slots whose made-up numbers make it fail, or refuse."""
    free = [index for index in range(len(program.slots)) if index not in held]
    real = {index: program.slots[index].seen[-1] for index in free}
    if not _works(program, {**dict(enumerate(numbers)), **held, **real}, held):
        why = "It cannot be traced on tensors without data."
        remedy = "Make the call outside of the step, or by other operations."
        return refused("trace-failed", str(failure), why, remedy, failure.place)
    # Most often it is an argument of the call that failed.
    given = [part.index for node in program.nodes if node.place == failure.place for part in _slots_of(node)]
    for suspects in (given, free):
        guilty = {
            index: f"the step cannot be traced with another number ({failure})"
            for index in dict.fromkeys(suspects)
            if index in real and not _works(program, {**held, **real, index: numbers[index]}, held)
        }
        if guilty:
            return Pin(guilty)
    return Pin(dict.fromkeys(free, f"the step cannot be traced with other numbers ({failure})"))


def _works(program: Program, numbers: Mapping[int, float | int], held: Container[int]) -> bool:
    try:
        trace(program, [numbers[index] for index in range(len(program.slots))], held)
    except TraceFailed:
        return False
    return True


def _culprits(
    program: Program, held: Mapping[int, float | int], first: list[float | int], second: list[float | int], one: Traced
) -> dict[int, str]:
    """Return the slots that change the graph in a way that no single slot explains, found by bisection: usually few of
    many do, and each test takes two traces."""
    used = {part.index for node in program.nodes for part in _slots_of(node)}
    guilty: dict[int, str] = {}
    pending = [sorted(used - set(held))]
    fresh: Traced | None = one
    while pending:
        suspects = pending.pop()
        if not suspects:
            continue
        some = [second[index] if index in suspects else number for index, number in enumerate(first)]
        other = trace(program, some, held)
        fresh = fresh or trace(program, first, held)
        try:
            left = number_slots.thread(fresh.graph, other.graph, first, some)
        except Pin as pin:
            guilty.update(pin.slots)
            pending.append([index for index in suspects if index not in pin.slots])
            continue
        alike = not left and _shape_of(other) == _shape_of(fresh)
        if not left:
            fresh = None  # its slots are placeholders now
        if not alike and len(suspects) == 1:
            guilty[suspects[0]] = "it changes the graph itself, not only a number in it"
        elif not alike:
            half = len(suspects) // 2
            pending += suspects[:half], suspects[half:]
    if not guilty:  # only several together do: all must be pinned
        guilty = dict.fromkeys(used - set(held), "it is combined with other numbers before it reaches a tensor")
    return guilty


def _slots_of(node: Node) -> list[Slot]:
    """Return the slots among the arguments of a call."""
    found: list[Slot] = []

    def leaf(part: object) -> object:
        if isinstance(part, Slot):
            found.append(part)
        return part

    map_leaves((node.args, node.kwargs), leaf)
    return found
