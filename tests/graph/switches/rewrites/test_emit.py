"""Runs in which each iteration is one switch: what they compute, and when they are not made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.regions.switch import Switch
from torchjanus.graph.switches.analysis.arms import SwitchSites
from torchjanus.graph.switches.rewrites.emit import with_switches
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace


def run(step: Any, *args: Any) -> Trace:
    return watch_call(step, (), args, {})[1]


def rows(*signs: int) -> torch.Tensor:
    return torch.stack([sign * torch.ones(3) for sign in signs])


def deciding(xs: torch.Tensor) -> torch.Tensor:
    h = torch.zeros(3)
    for x in xs:
        h = torch.tanh(h + x)
        if x.sum() > 0:
            h = h * 2
    return h * 1.0


def switched(known: list[SwitchSites], step: Any, *args: Any) -> Trace:
    trace = run(step, *args)
    return with_switches(trace, next(frames for frames in trace.frames if not frames.region), known)


def switches(trace: Trace) -> list[Op]:
    return [event for event in trace.events if isinstance(event, Op) and isinstance(event.func, Switch)]


def test_each_iteration_is_one_switch() -> None:
    known: list[SwitchSites] = []
    made = switched(known, deciding, rows(1, -1, 1, -1))
    assert len(switches(made)) == 4 and len(known) == 1
    assert not any(event.name in ("torch.tanh", "Tensor.mul") for event in switches(made))
    assert made.frames == [] or not any(len(frames.starts) == 4 for frames in made.frames)
    assert len(made.loop_instances) == 1  # it may be rolled: the trip count is a size


def test_runs_on_other_arms_are_alike() -> None:
    known: list[SwitchSites] = []
    switched(known, deciding, rows(1, -1, 1, -1))
    one, other = (switched(known, deciding, rows(*signs)) for signs in ((1, 1, -1, -1), (-1, 1, -1, 1)))
    assert one.tokens() == other.tokens()
    assert len(known) == 1


def test_an_arm_that_was_seen_once_is_not_evidence() -> None:
    with pytest.raises(NotMergeable) as error:
        switched([], deciding, rows(-1, -1, 1))
    assert error.value.reason == "branch-evidence"


def test_evidence_adds_up_over_runs() -> None:
    known: list[SwitchSites] = []
    with pytest.raises(NotMergeable):
        switched(known, deciding, rows(-1, -1, 1))
    assert len(switches(switched(known, deciding, rows(-1, 1, -1)))) == 3


def test_the_rewritten_run_leaves_the_old_one_as_it_was() -> None:
    trace = run(deciding, rows(1, -1, 1, -1))
    before = trace.tokens()
    with_switches(trace, next(frames for frames in trace.frames if not frames.region), [])
    assert trace.tokens() == before


def test_effects_of_one_arm_that_no_variable_shows_are_not_merged() -> None:
    last = 0

    def step(xs: torch.Tensor) -> torch.Tensor:
        nonlocal last
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(h + x)
            if x.sum() > 0:
                last = 1
        return h * 1.0

    with pytest.raises(NotMergeable) as error:
        switched([], step, rows(1, -1, 1, -1))
    assert error.value.reason == "branch-effects"
