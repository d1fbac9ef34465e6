"""Descriptions of iterations: where operands come from, what is carried, which loops have decisions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.iteration_reader import iterations_in
from torchjanus.graph.switches.analysis.iterations import Iteration, is_decided, subject_of
from torchjanus.graph.switches.analysis.numbers import NumberStates
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead


def run(step: Any, *args: Any) -> Trace:
    return watch_call(step, (), args, {})[1]


def described(trace: Trace) -> list[Iteration]:
    frames = next(frames for frames in trace.frames if not frames.region)
    return iterations_in(trace, frames, NumberStates.of(trace, frames, {}), {})


def rows(*signs: int) -> torch.Tensor:
    return torch.stack([sign * torch.ones(3) for sign in signs])


def deciding(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for x in xs:
        h = h + x
        if x.sum() > 0:
            h = h * 2
    return h


def test_operands_are_rows_and_variables() -> None:
    first, second, third = described(run(deciding, rows(1, -1, 1)))
    for number, one in enumerate((first, second, third)):
        kinds = [{source[0] for source in takes} for takes in one.takes]
        assert any("name" in kind for kind in kinds) and {"row"} in kinds
        assert one.iteration == number and one.last is (number == 2)
        (name,) = [key for key in one.ends if key[-1] == "h"] or [key for key in one.ends if "h" in str(key)]
        assert any(source[0] == "own" for source in one.ends[name])
    assert first.tokens == third.tokens != second.tokens
    assert (first.sizes, second.sizes) == (4, 3)


def test_a_decision_is_among_the_events() -> None:
    taken, not_taken = described(run(deciding, rows(1, -1)))
    assert len(taken.asked) == len(not_taken.asked) == 1
    (position,) = taken.asked
    assert taken.events[position].outcome is True
    (position,) = not_taken.asked
    assert not_taken.events[position].outcome is False


def test_loops_with_decisions_are_recognised() -> None:
    def plain(xs: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(3)
        for x in xs:
            h = h + x
        return h

    trace = run(deciding, rows(1, -1))
    assert is_decided(trace.frames[0], trace)
    trace = run(plain, rows(1, -1))
    assert not any(is_decided(frames, trace) for frames in trace.frames)


def test_one_iteration_decides_nothing_for_others() -> None:
    trace = run(deciding, rows(1))
    assert not any(is_decided(frames, trace) for frames in trace.frames if not frames.region)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda h, x: h.add_(x), "branch-in-place"),
        (lambda h, x: h * float(x[0]), "branch-numbers"),
    ],
)
def test_what_iterations_may_not_do(change: Any, reason: str) -> None:
    def step(h: torch.Tensor, xs: torch.Tensor) -> torch.Tensor:
        for x in xs:
            if x.sum() > 0:
                h = change(h, x)
        return h * 2

    trace = run(step, torch.zeros(3), rows(1, -1, 1))
    if reason == "branch-in-place":
        with pytest.raises(NotMergeable) as error:
            described(trace)
        assert error.value.reason == reason
    else:  # a fetched number is an operand with a known form
        first = described(trace)[0]
        assert first.counts and first.fetched


def test_iterations_that_do_nothing_cannot_be_described() -> None:
    trace = run(deciding, rows(1, -1))
    (number, loop) = next((n, frames) for n, frames in enumerate(trace.frames) if not frames.region)
    trace.frames[number] = replace(loop, starts=(loop.starts[0],) * 2)
    with pytest.raises(NotMergeable, match="does nothing") as error:
        described(trace)
    assert error.value.reason == "branch-arms-differ"


def test_the_subject_of_a_fact_is_what_it_is_about() -> None:
    path = AccessPath.arg(0)
    assert subject_of(HeapRead(path, 3, "number")) == subject_of(HeapRead(path, 4, "number")) == ("found", path.token)
