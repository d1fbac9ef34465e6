"""Decides which repeated segments of a tensor program become loop nodes, and rolls them (JANUS, section 4.2.1).

``roll`` looks for calls that repeat in a program without folded loops; ``roll_marked`` rolls the loops that were folded
in the trace (``loops.rewrites.fold``). Whether the iterations of a segment fit into one loop node is checked by
``graph.ir.loop_matching``. A rolled loop computes what the unrolled calls compute; a segment that does not fit stays.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from torchjanus.core.errors import NOWHERE, Place, refused
from torchjanus.core.remarks import NotMergeable, remark
from torchjanus.graph.ir.loop_matching import RolledSegment
from torchjanus.graph.ir.passes import Part, Pass, PassList, Stage
from torchjanus.graph.ir.program import Node, Program, Slot
from torchjanus.graph.ir.repetition import begin_iterations, end_iterations, marked, segments
from torchjanus.graph.loops.roll.emit import rewritten
from torchjanus.graph.loops.roll.training import functional_iterations

__all__ = [
    "LEAST", "ROLLING", "ROLL_FOLDED", "ROLL_REPEATED", "counts_of", "has_folded_loops", "is_nested", "place_of",
    "place_of_loop", "roll", "roll_marked",
]  # fmt: skip

LEAST = 17  # fewer iterations than this stay unrolled
WORTH = 20  # the loop node must replace at least so many nodes
_REMEDY = "Let all iterations do the same with what they carry on and with what is theirs by their number."


def roll(program: Program) -> Iterator[Program]:
    """Yield the program with its loops rolled, the form with all of them first; nothing if no segment fits. A segment
    becomes a loop if it repeats at least ``LEAST`` times, saves ``WORTH`` nodes, and fits (else there is a remark)."""
    found = [s for s in segments(program.nodes, LEAST) if s.length * (s.iterations - 1) >= WORTH]
    fit: list[RolledSegment] = []
    for segment in found:
        try:
            rolled = RolledSegment(program, segment)
            rewritten(program, [rolled])
        except NotMergeable as error:
            remark(place_of(program.nodes[segment.start : segment.end]), error.reason, error.detail)
            continue
        fit.append(rolled)
    if fit:
        yield rewritten(program, fit)
    if len(fit) > 1:
        largest = max(fit, key=lambda rolled: rolled.segment.length * rolled.segment.iterations)
        yield rewritten(program, [largest])


def has_folded_loops(program: Program) -> bool:
    """Whether the program has folded loops, which must be rolled."""
    return any(node.func is begin_iterations for node in program.nodes)


def is_nested(program: Program) -> bool:
    """Whether a folded loop has a folded loop in its iterations: all trip counts are sizes then."""
    marks = [node.func for node in program.nodes if node.func in (begin_iterations, end_iterations)]
    return any(one is other is begin_iterations for one, other in itertools.pairwise(marks))


def counts_of(program: Program) -> Iterator[int]:
    """Yield the slots that hold the trip count of a folded loop, or its limit."""
    for node in program.nodes:
        if node.func is begin_iterations:
            count, limit = node.args[0], node.args[3] if len(node.args) > 3 else None
            yield from (one.index for one in (count, limit) if isinstance(one, Slot))


def roll_marked(program: Program) -> Program:
    """Return the program with its folded loops rolled. Raises Refused."""
    place = place_of_loop(program)
    try:
        program = TRAINING_LOOPS(program)
        while has_folded_loops(program):  # inner loops first
            found = marked(program.nodes)
            if found is None:
                raise NotMergeable("loop-iterations-differ", "the iterations do not line up")
            loops: list[RolledSegment] = []
            for segment in found:
                place = program.nodes[segment.start - 1].place
                loops.append(RolledSegment(program, segment))
                rewritten(program, loops[-1:])
            program = rewritten(program, loops)
        return program
    except NotMergeable as error:
        what = f"the iterations of a loop whose trip count changes are not all alike: {error.detail}"
        raise refused(error.reason, what, "Each trip count has an entry of its own.", _REMEDY, place) from None


TRAINING_LOOPS = Pass(
    "functionalize_training_loops",
    Stage.REWRITE,
    functional_iterations,
    "Makes what iterations that train change (parameters, optimizer states) loop-carried values.",
)
ROLL_FOLDED = Pass(
    "roll_folded_loops", Stage.REWRITE, roll_marked, "Makes one loop node of each loop that was folded in the trace."
)
ROLL_REPEATED = Pass(
    "roll_repeated_calls",
    Stage.REWRITE,
    roll,
    f"Makes one loop node of calls that repeat at least {LEAST} times in a program without folded loops.",
)
ROLLING = PassList(Part.ROLLING, (TRAINING_LOOPS, ROLL_FOLDED, ROLL_REPEATED))


def place_of(nodes: Iterable[Node]) -> Place:
    """Return the source location of the first of these nodes that is not a library's; if all are, of the first."""
    places = [node.place for node in nodes]
    return next((place for place in places if not place.is_library), places[0])


def place_of_loop(program: Program) -> Place:
    """Return the source location of the first folded loop."""
    return next((node.place for node in program.nodes if node.func is begin_iterations), NOWHERE)
