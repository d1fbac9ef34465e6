"""Generated calls of one entry: misses, violations, failures, timings, rehearsals, and what is not generated."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.core.errors import NOWHERE, Refused
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Updating, Violated
from torchjanus.graph.generalize.generalize import EntryPlan, generalise
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.lower import lower
from torchjanus.host.assumption import Arguments, Assumption
from torchjanus.runtime.launch.launch import Launch, build_launch
from torchjanus.runtime.launch.outcomes import MISS, Failure, Violation, failure
from torchjanus.semantics.watch.run import watch_call


def planned(step: Any, *args: Any) -> tuple[EntryPlan, Lowered, list[Assumption]]:
    """Return what two runs of the step give, of which each has tensors of its own."""
    other = tuple(one.clone() if isinstance(one, torch.Tensor) else one for one in args)
    traces = [watch_call(step, (), given, {})[1] for given in (args, other)]
    assert not any(trace.refusals for trace in traces)
    plan = generalise(traces)
    return plan, lower(plan.program), [Arguments(NOWHERE, len(args), ()), *plan.assumptions]


def launched(step: Any, *args: Any) -> Launch:
    plan, lowered, assumptions = planned(step, *args)
    launch = build_launch(plan, lowered, assumptions)
    launch.use(Replay.of(lowered).run)
    return launch


class Model:
    def __init__(self) -> None:
        self.rate = 0.5
        self.seen = 0


def training(x: torch.Tensor, model: Model) -> torch.Tensor:
    model.seen = model.seen + 1
    return x * model.rate


def test_a_call_returns_what_eager_returns_and_writes() -> None:
    model = Model()
    launch = launched(training, torch.ones(3), model)
    seen = model.seen
    x = torch.randn(3)
    result = launch.call((x, model), {}, None)
    assert torch.equal(result, x * 0.5)
    assert model.seen == seen + 1


def test_guards_that_do_not_hold_are_a_miss_that_changes_nothing() -> None:
    model = Model()
    launch = launched(lambda x, m: x * m.rate, torch.ones(3), model)
    assert launch.check((torch.ones(3), model), {}) is True
    model.rate = 0.25
    assert launch.check((torch.ones(3), model), {}) is MISS
    assert launch.call((torch.ones(3), model), {}, None) is MISS
    assert launch.call((torch.ones(4), Model()), {}, None) is MISS


def test_what_can_no_longer_be_read_is_a_miss() -> None:
    model = Model()
    launch = launched(lambda x, m: x * m.rate, torch.ones(3), model)
    del model.rate
    assert launch.call((torch.ones(3), model), {}, None) is MISS


def decided(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x


def test_an_assertion_that_fails_is_a_violation() -> None:
    launch = launched(decided, torch.ones(3))
    assert torch.equal(launch.call((torch.ones(3) * 3,), {}, None), torch.full((3,), 6.0))
    result = launch.call((-torch.ones(3),), {}, None)
    assert type(result) is Violation and isinstance(result.violated, Violated)


def test_a_violation_updates_nothing() -> None:
    w = torch.zeros(3)

    def step(x: torch.Tensor) -> None:
        w.add_(x)
        if x.sum() > 0:
            w.mul_(2)

    launch = launched(step, torch.ones(3))
    before = w.clone()
    assert type(launch.call((-torch.ones(3),), {}, None)) is Violation
    assert torch.equal(w, before)
    assert launch.call((torch.ones(3),), {}, None) is None
    assert torch.equal(w, (before + 1) * 2)


def test_errors_before_the_commit_are_raised() -> None:
    launch = launched(lambda x: torch.linalg.cholesky(x), torch.eye(2))
    with pytest.raises(torch.linalg.LinAlgError):
        launch.call((-torch.eye(2),), {}, None)


def test_the_executor_can_be_exchanged() -> None:
    launch = launched(lambda x: x * 2, torch.ones(1))
    assert launch.call((torch.ones(1),), {}, None).item() == 2.0
    launch.use(lambda inputs, slots: (torch.full((1,), 7.0),))
    assert launch.call((torch.ones(1),), {}, None).item() == 7.0


def test_times_are_taken_at_four_points() -> None:
    launch = launched(lambda x: x * 2, torch.ones(1))
    ticks: list[int] = []
    assert launch.timed((torch.ones(1),), {}, None, ticks).item() == 2.0
    assert len(ticks) == 4 and ticks == sorted(ticks)


def test_a_rehearsal_writes_nothing() -> None:
    model = Model()
    plan, lowered, assumptions = planned(training, torch.ones(3), model)
    launch = build_launch(plan, lowered, assumptions)
    before = model.seen
    result, by_calls, effects, gradients, memory = launch.outcome(
        (torch.ones(3), model), {}, None, Replay.of(lowered).run
    )
    assert model.seen == before
    assert result.tolist() == [0.5] * 3 and effects == [(before + 1,)]
    assert by_calls == gradients == memory == []


def test_the_source_is_python_that_a_person_can_read() -> None:
    launch = launched(decided, torch.ones(3))
    compile(launch.source, "launch", "exec")
    assert "def call(args, kwargs, journal, live=()):" in launch.source
    assert not launch.journaled


def test_a_result_whose_backward_is_to_come_has_no_code() -> None:
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(Refused) as error:
        launched(lambda x: (x * w).sum(), torch.ones(3))
    assert error.value.refusal.reason == "backward-missing"


def test_only_an_error_while_updating_is_one_of_the_commit() -> None:
    error = ValueError("no")
    assert failure(error, "entry") == Failure(error, False, "entry")
    assert failure(Updating(error)) == Failure(error, True, None)
