"""Rewritten traces refer to no operation that comes later, and to no tensor that there is not.

What is recorded beside the events has positions, too: trip counts, states of variables, fetches. A rewriter that
forgets one of them fails far away from it, in a later pass, and only for some programs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.programs import harness
from torchjanus.graph.loops.analysis.truncation import TruncatedLoops
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.loops.records import TensorTermination
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.values import Expr, Fetch, Size, leaves

PROGRAMS = [
    ("branches_in_loops", "loops_after_a_loop_in_which_tensors_decide"),
    ("branches_in_loops", "normalised_where_large"),
    ("effects_of_arms", "local_counter"),
    ("index_conditions", "even"),
    ("random_branches_in_loops", "sampling"),
    ("windows_of_changing_width", "windows_in_iterations_with_arms"),
    ("nested_loops", "passed_through_both"),
    ("loops", "range_of_an_argument"),
]


def malformed(trace: Trace) -> Iterator[Any]:
    """Yield what refers to more operations than there are before it, or to tensors that there are not."""
    total = sum(isinstance(event, Op) for event in trace.events)

    def late(what: Any, expr: Any, before: int) -> Iterator[Any]:
        for leaf in leaves(expr) if isinstance(expr, Expr) else ():
            # The trip count of a tensor-terminated loop is a tensor that the rolled loop will make.
            if isinstance(leaf, Size | Fetch) and leaf.after > before:
                yield what, leaf, before
            if isinstance(leaf, Size) and leaf.ref >= len(trace.tensors):
                yield what, leaf, len(trace.tensors)

    done = 0
    for position, event in enumerate(trace.events):
        done += isinstance(event, Op)
        for name in ("expr", "count"):
            yield from late((position, type(event).__name__), getattr(event, name, None), done)
        if getattr(event, "after", 0) > done:
            yield position, event, done
    for loop in trace.loop_instances:
        if not isinstance(loop.count, TensorTermination):
            yield from late(("loop", loop.starts[:1]), loop.count, total)
        for asked in loop.asked:
            yield from late(("loop", loop.starts[:1]), asked, total)
    for record in trace.loop_records:
        yield from late(("record", record.starts[:1]), record.count, total)
    for frames in trace.frames:
        yield from late(("frames", frames.starts[:1]), frames.count, total)
        for state in frames.states:
            for name, (kind, *value) in state.items():
                if kind == "tensor" and value[0] >= len(trace.tensors):
                    yield name, value[0], len(trace.tensors)
                elif kind in ("fetched", "number"):
                    yield from late(name, value[0], total)


@pytest.mark.parametrize(("category", "name"), [pytest.param(*pair, id="-".join(pair)) for pair in PROGRAMS])
def test_rewritten_runs_are_well_formed(category: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Any] = []

    def watched(owner: type, method: str) -> None:
        original = getattr(owner, method)

        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = original(self, *args, **kwargs)
            found.extend((owner.__name__, one) for one in malformed(made))
            return made

        monkeypatch.setattr(owner, method, wrapped)

    watched(TraceRewriter, "made")
    watched(TruncatedLoops, "trace")
    harness.run_in(harness.load_file(harness.files()[category]), name, "replay")
    assert found == []
