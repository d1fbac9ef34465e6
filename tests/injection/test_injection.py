"""A sample of the corpus under injection, and its seams. ``python -m benchmarks.robustness.injection`` does all."""

from __future__ import annotations

import random

import pytest
import torch

import torchjanus
from tests.injection.driving import inject
from tests.programs import harness
from torchjanus.execute.running.gate import Generators
from torchjanus.runtime.entries.path_tree import BranchPoint
from torchjanus.testing import Fault, faults, injected, parts, rehearsed

EVERY = list(harness.programs())
SAMPLE = random.Random(0).sample(EVERY, 24)


@pytest.mark.parametrize(
    ("category", "name"),
    [
        pytest.param(*pair, id="-".join(pair), marks=pytest.mark.slow if number % 6 else ())
        for number, pair in enumerate(SAMPLE)
    ],
)
def test_sample(category: str, name: str) -> None:
    report = inject(category, name, seed=0, runs=2)
    assert report.unequal == []
    assert report.entries == 0 or report.guards + report.operations + report.rehearsed + report.assertions > 0


class Counter:
    def __init__(self) -> None:
        self.n = 0
        self.weight = torch.ones(3)


def made(executor: str = "replay"):
    state = Counter()

    @torchjanus.speculate(executor=executor)
    def step(x):
        state.n += 1
        noise = torch.rand(3)
        if (x.sum() > 0).item():
            state.weight.add_(x * noise)
        return state.weight.sum().item(), state.n

    for _ in range(4):
        step(torch.ones(3))
    (entry,) = step.entries
    return state, step, entry


def of_kind(entry, kind: str) -> list[Fault]:
    return [fault for fault in faults(entry) if fault.kind == kind]


def test_every_kind_of_fault_is_listed() -> None:
    _, _, entry = made()
    assert of_kind(entry, "guard")
    assert len(of_kind(entry, "assertion")) == 1
    assert len(of_kind(entry, "operation")) >= 5


def test_a_guard_that_fails_is_a_miss() -> None:
    for number in range(len(of_kind(made()[2], "guard"))):
        state, step, entry = made()
        before = step.statistics()
        fault = of_kind(entry, "guard")[number]
        with injected(entry, fault) as injection:
            _, count = step(torch.ones(3))
        assert (count, state.n) == (5, 5)
        assert injection.struck == 1
        assert step.statistics().missed == before.missed + 1
        assert step.statistics().speculated in (before.speculated, before.speculated + 1)  # relaxed, or watched


def test_an_assertion_that_fails_is_a_violation() -> None:
    state, step, entry = made()
    expected, expected_step, _ = made()
    for side, run in ((state, step), (expected, expected_step)):
        side.weight.zero_()
        torch.manual_seed(1)
        if side is state:
            (fault,) = of_kind(entry, "assertion")
            with injected(entry, fault) as injection:
                run(torch.ones(3))
            assert injection.struck == 1
            random_after = torch.get_rng_state()
        else:
            run(torch.ones(3))
    assert torch.equal(state.weight, expected.weight)
    assert torch.equal(random_after, torch.get_rng_state())
    assert step.statistics().violated == 1
    assert state.n == expected.n == 5


def test_an_operation_that_raises_is_completed_by_eager() -> None:
    for number in range(len(of_kind(made()[2], "operation"))):
        state, step, entry = made()
        fault = of_kind(entry, "operation")[number]
        with injected(entry, fault) as injection:
            _, count = step(torch.ones(3))
        assert injection.struck == 1
        assert (count, state.n) == (5, 5)
        assert [event.kind for event in step.events].count("fault") == 1


def test_rehearsals_leave_no_trace() -> None:
    state, step, entry = made()
    weight, generator = state.weight.clone(), torch.get_rng_state()
    with rehearsed(entry, faults(entry)) as injections:
        _, count = step(torch.ones(3))
    assert [injection.struck for injection in injections] == [1] * len(injections)
    assert {injection.fault.kind for injection in injections} == {"guard", "assertion", "operation"}
    assert (count, state.n) == (5, 5)
    torch.set_rng_state(generator)
    assert torch.equal(state.weight, weight + torch.rand(3))
    assert step.statistics().speculated == 2


def test_a_guard_that_is_not_in_the_code_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    _, step, entry = made()
    monkeypatch.setattr("torchjanus.host.source.Source.fail_if", lambda self, condition: None)
    with rehearsed(entry, of_kind(entry, "guard")):
        step(torch.ones(3))
    assert any(event.kind == "fault" and "did not come out" in event.text for event in step.events)


def test_rehearsals_of_a_graph_in_parts_make_its_extern_calls_once() -> None:
    state = Counter()

    @torchjanus.speculate(executor="replay")
    def step(x):
        state.weight.mul_(random.uniform(0.5, x.sum().item()))
        return (state.weight * x).sum().item()

    for _ in range(4):
        step(torch.ones(3))
    (entry,) = step.entries
    assert entry.lowered.program.cuts
    random.seed(1)
    weight = state.weight.clone()
    with rehearsed(entry, faults(entry)) as injections:
        step(torch.ones(3))
    assert all(injection.struck for injection in injections)
    assert step.statistics().speculated == 2
    random.seed(1)
    assert torch.equal(state.weight, weight * random.uniform(0.5, 3.0))


def test_all_is_as_before_afterwards() -> None:
    _, step, entry = made()
    launch, assumptions = entry.launch, entry.assumptions
    for fault in faults(entry):
        with injected(entry, fault):
            assert entry.launch is not launch or fault.kind != "guard"
        assert entry.launch is launch
        assert entry.assumptions is assumptions
    before = step.statistics().speculated
    step(torch.ones(3))
    assert step.statistics().speculated == before + 1


def test_a_wrong_outcome_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A runtime that forgets to put the generators back when an operation raises is found out."""
    category, name = "modules", "lstm_bidirectional_dropout"
    monkeypatch.setattr(Generators, "restore", lambda self, states: None)
    assert any(inject(category, name, seed, runs=1).unequal for seed in range(6))


def test_faults_strike_in_what_several_paths_begin_with() -> None:
    weight = torch.ones(3)

    @torchjanus.speculate(executor="replay")
    def step(x):
        y = (x * weight).sum()
        if y > 0:
            return y * 2
        return y - 1

    for number in range(12):
        step(torch.ones(3) * (-1) ** number)
    fork = next(parts(step))
    assert isinstance(fork, BranchPoint)
    kinds = {fault.kind for fault in faults(fork)}
    assert kinds == {"guard", "assertion", "operation"}
    for kind in sorted(kinds):
        fork = next(part for part in parts(step) if isinstance(part, BranchPoint))
        fault = next(fault for fault in faults(fork) if fault.kind == kind)
        with injected(fork, fault) as injection:
            assert step(torch.ones(3)).item() == 6
        assert injection.struck == 1
        with rehearsed(next(parts(step)), [fault]) as (injection,):
            assert step(-torch.ones(3)).item() == -4
        assert injection.struck == 1
