"""The trial of a path's graph: run on copies of a recorded call's inputs, it has to give the same bits as the call.

It detects what torch's calls do not show: a hook, or native code that changes a tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from torchjanus.core.trees import map_leaves
from torchjanus.execute.running.base import Violated
from torchjanus.graph.ir.lowered import Fresh, FromInput, NoGradient, Source, ViewOf
from torchjanus.graph.ir.program import Ref
from torchjanus.runtime.coexecution.graphs.run import restored, saved
from torchjanus.runtime.coexecution.graphs.served import Served
from torchjanus.runtime.coexecution.recording.arrays import same_bits
from torchjanus.runtime.coexecution.recording.events import Kind, Trace
from torchjanus.runtime.coexecution.recording.recorder import Recorder
from torchjanus.trace.layout import reinterpreted

__all__ = ["differences"]


def differences(
    served: Served, trace: Trace, recorder: Recorder, before: list[torch.Tensor], after: list[torch.Tensor]
) -> list[str]:
    """Return where the graph differs from the recorded call. ``before``, ``after``: the generators' states around it,
    which this changes."""
    restored(before)
    try:
        found = [*_differences(served, trace, recorder)]
    except Exception as error:
        return [f"it raises {type(error).__name__}: {error}"]
    if any(not torch.equal(one, other) for one, other in zip(saved(), after, strict=True)):
        found.append("the random generator")
    return found


def _differences(served: Served, trace: Trace, recorder: Recorder) -> Iterator[str]:
    plan, copies = served.plan, recorder.copies
    assert copies is not None
    inputs = [copies[n] for n in plan.inputs]
    numbers: list[Any] = [None] * len(plan.program.slots)
    for (at, place), slot in plan.slots.items():
        numbers[slot] = trace.events[at].numbers[place]
    run = served.begin_graph()

    def advance(stage: int) -> list[torch.Tensor]:
        given = [inputs[index] for index in served.inputs[stage]]
        made = run.advance(given, [numbers[index] for index in served.slots[stage]], stage)
        assert not isinstance(made, Violated)
        return made

    for k, event in enumerate(trace.events):
        if k in plan.hosted:
            hosted = plan.hosted[k]
            contents = {hosted.number: hosted.value(copies[hosted.number])}
        elif k in plan.cuts:
            cut, places = plan.cuts[k]
            made = advance(cut)
            contents = {n: made[place] for n, place in places.items()}
            if event.kind is Kind.HOST:
                if event.draws:
                    event.func(*_filled(event.args, contents), **_filled(event.kwargs, contents))
                continue
        else:
            continue
        fetched = event.func(*_filled(event.args, contents), **_filled(event.kwargs, contents))
        if not _same(fetched, recorder.fetched[k]):
            yield f"{event.name} at {event.place}"
    values = advance(len(plan.program.cuts))

    def value(source: Source) -> torch.Tensor | None:
        match source:
            case Fresh(index=index):
                return values[index]
            case FromInput(index=index):
                return inputs[index]
            case ViewOf(base=base, size=size, stride=stride, offset=offset) as view:
                below = value(base)
                assert below is not None
                below = below if view.dtype is None else reinterpreted(below, view.dtype)
                made = below.detach().as_strided(size, stride, below.storage_offset() + offset)  # type: ignore[arg-type,operator]
                made = made.conj() if view.conjugated else made
                return made._neg_view() if view.negated else made
            case NoGradient():
                return None
        raise AssertionError(source)

    for position, n in plan.escapes.items():
        if n in trace.tensors and not same_bits(value(served.lowered.outputs[position].source), trace.tensors[n]):
            yield f"a result of the step (tensor {n})"
    for index, n in enumerate(plan.inputs):
        if not same_bits(inputs[index], trace.tensors[n]):
            yield f"an input after the step (tensor {n})"
    for leaf in served.lowered.leaves:
        if not same_bits(value(leaf.result.source), trace.tensors[plan.inputs[leaf.index]].grad):
            yield f"the gradient of tensor {plan.inputs[leaf.index]}"


def _filled(tree: Any, contents: dict[int, torch.Tensor]) -> Any:
    return map_leaves(tree, lambda leaf: contents[leaf.index] if type(leaf) is Ref else leaf)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return type(one) is type(other) and repr(one) == repr(other)
