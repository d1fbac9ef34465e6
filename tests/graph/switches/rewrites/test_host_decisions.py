"""Decisions by chance as decisions of tensors: how the draws are hoisted, and what is left as it is."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.loops.rewrites.filled_tensors import sink_element_writes
from torchjanus.graph.switches.rewrites.host_decisions import host_draws
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import BatchedExtern, Extern, Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import NumberPredicate, TensorPredicate, is_chance
from torchjanus.trace.loops.records import LoopSnapshots


def run(step: Callable[..., Any], *args: Any) -> tuple[Trace, LoopSnapshots]:
    trace = watch_call(step, (), args, {})[1]
    return trace, next(frames for frames in trace.frames if len(frames.starts) > 1)


def sampled(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for t in range(1, xs.shape[0]):
        h = torch.tanh(h + xs[t])
        if random.random() < 0.5:
            h = h * 2
    return h


def test_one_call_gives_all_draws_and_each_iteration_asks_a_tensor() -> None:
    trace, frames = run(sampled, torch.randn(5, 3))
    outcomes = [event.outcome for event in trace.events if is_chance(event) and isinstance(event, NumberPredicate)]
    merged, loop = host_draws(trace, frames)
    calls = [event for event in merged.events if isinstance(event, Extern)]
    assert [type(call) for call in calls] == [BatchedExtern]
    assert isinstance(calls[0], BatchedExtern)
    assert calls[0].count is frames.count
    asked = [event for event in merged.events[loop.starts[0] : loop.end] if isinstance(event, TensorPredicate)]
    assert [event.outcome for event in asked] == outcomes
    assert len(asked) == 4
    assert not any(is_chance(event) for event in merged.events[loop.starts[0] : loop.end])


def test_calls_that_others_follow_stay_one_by_one() -> None:
    def step(xs: torch.Tensor) -> torch.Tensor:
        return sampled(xs) * random.random()

    merged, loop = host_draws(*run(step, torch.randn(5, 3)))
    assert sum(isinstance(event, Extern) for event in merged.events) == 5
    assert not any(isinstance(event, BatchedExtern) for event in merged.events)
    assert loop.count is None  # a run of another number of iterations is another path


def used(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for x in xs:
        chance = random.random()
        h = torch.tanh(h + x) * chance if chance < 0.5 else h + x
    return h


def sometimes(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for n in range(xs.shape[0]):
        if n % 2 and random.random() < 0.5:
            h = h + xs[n]
        h = torch.tanh(h)
    return h


def collected(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for n in range(xs.shape[0]):
        chance = random.random()
        LOG.append((n, [chance]))
        h = torch.tanh(h + xs[n]) if chance < 0.5 else h + xs[n]
    return h


LOG: list[Any] = []


def printed(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for x in xs:
        h = h + x
        print("round")
        if random.random() < 0.5:
            h = torch.tanh(h)
    return h


@pytest.mark.parametrize("step", [used, collected, sometimes, printed])
def test_what_is_more_than_a_question_is_refused(step: Any) -> None:
    random.seed(1)  # of four draws the first is small, and the second is not
    trace, frames = run(step, torch.randn(4, 3))
    with pytest.raises(NotMergeable):
        host_draws(trace, frames)


def test_a_loop_without_draws_is_left_alone() -> None:
    def step(xs: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(h + x)
            if h.sum() > 0:
                h = h * 2
        return h

    trace, frames = run(step, torch.randn(4, 3))
    assert host_draws(trace, frames) == (trace, frames)


def test_a_tensor_of_which_iterations_show_numbers_is_not_filled_later() -> None:
    log: list[Any] = []

    def step(xs: torch.Tensor) -> torch.Tensor:
        outs, h = torch.zeros(xs.shape[0], 3), torch.zeros(3)
        for t in range(xs.shape[0]):
            h = torch.tanh(h + xs[t])
            if h.sum() > 0:
                h = h * 2
            outs[t] = h
            log.append(outs.tolist())
        return outs

    trace, frames = run(step, torch.randn(4, 3))
    assert writes(*sink_element_writes(trace, frames)) == writes(trace, frames) == 4


def writes(trace: Trace, frames: LoopSnapshots) -> int:
    inside = trace.events[frames.starts[0] : frames.end]
    return sum(isinstance(event, Op) and event.name == "Tensor.__setitem__" for event in inside)


def filling(out: Callable[[int], torch.Tensor], key: Callable[[int], Any], look: bool = False) -> Callable[..., Any]:
    def step(xs: torch.Tensor) -> torch.Tensor:
        outs = out(xs.shape[0])
        h = torch.zeros(3)
        for t in range(xs.shape[0]):
            h = torch.tanh(h + xs[t])
            if h.sum() > 0:
                h = h * 2
            outs[key(t)] = h
            if look:
                h = h + outs[key(t)]
        return outs

    return step


@pytest.mark.parametrize(
    ("step", "left"),
    [
        (filling(lambda n: torch.zeros(n, 3), lambda t: t), 0),
        (filling(lambda n: torch.zeros(3, n), lambda t: (slice(None), t)), 0),
        (filling(lambda n: torch.zeros(n + 2, 3), lambda t: t + 1), 0),
        (filling(lambda n: torch.zeros(n, 3), lambda t: t, look=True), 4),  # an iteration looks at what it has written
        (filling(lambda n: torch.zeros(2 * n, 3), lambda t: 2 * t), 4),  # not one behind the other
        (filling(lambda n: torch.zeros(n, 2, 3), lambda t: t), 4),  # a row that is written twice over
        (filling(lambda n: torch.zeros(n * 3).view(n, 3), lambda t: t), 4),  # others lie in its memory
    ],
)
def test_rows_that_nobody_looks_at_are_written_behind_the_loop(step: Any, left: int) -> None:
    trace, frames = run(step, torch.randn(4, 3))
    assert writes(trace, frames) == 4
    assert writes(*sink_element_writes(trace, frames)) == left
