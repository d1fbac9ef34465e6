"""What watched runs teach: when a graph is made, what is relaxed, and which graphs are dropped."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.core.errors import Refusal
from torchjanus.runtime.learning import learning as module
from torchjanus.runtime.learning.learning import Learning
from torchjanus.semantics.watch.run import watch_call


def learner(watch: int = 3, cut: Any = lambda traces: False) -> Learning:
    return Learning("step", watch=watch, executor="replay", cut=cut)


def teach(learning: Learning, step: Any, *calls: tuple[Any, ...]) -> Learning:
    for call in calls:
        trace = watch_call(step, (), call, {})[1]
        learning.counts.calls += 1
        learning.counts.watched += 1
        learning.learn(trace, call, {})
    return learning


def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


def calls(count: int, k: float = 0.5) -> list[tuple[Any, ...]]:
    return [(torch.randn(3), k) for _ in range(count)]


def kinds(learning: Learning) -> list[str]:
    return [event.kind for event in learning.event_log.events]


def test_a_graph_is_made_after_so_many_runs_of_one_path() -> None:
    learning = teach(learner(), scaled, *calls(2))
    assert learning.routes.entries == [] and learning.counts.compiles == 0
    teach(learning, scaled, *calls(1))
    (entry,) = learning.routes.entries
    assert learning.counts.compiles == 1
    x = torch.randn(3)
    assert torch.equal(entry.call((x, 0.5), {}, None), x * 0.5)


def test_a_broken_assumption_is_relaxed() -> None:
    learning = teach(learner(), scaled, *calls(3))
    route = learning.relax((torch.ones(3), 0.7), {})
    assert route is not None and "relax" in kinds(learning)
    assert torch.equal(route.call((torch.ones(3), 0.9), {}, None), torch.full((3,), 0.9))


def test_what_no_graph_can_take_is_not_relaxed() -> None:
    learning = teach(learner(), scaled, *calls(3))
    assert learning.relax((torch.ones(3, dtype=torch.float64), 0.5), {}) is None
    assert "miss" in kinds(learning) and len(learning.routes.entries) == 1


def test_runs_that_are_refused_make_no_graph() -> None:
    def step(x: torch.Tensor) -> Any:
        return torch.ones(2).set_(x)  # type: ignore[call-overload]

    learning = teach(learner(), step, *[(torch.ones(2),)] * 3)
    assert learning.routes.entries == [] and learning.counts.refused == 3
    assert [one.reason for one in learning.event_log.refusals] == ["tensor-internals"]
    assert learning.policy.given_up


def test_statements_that_differ_may_be_cut() -> None:
    seen: list[int] = []

    def cut(traces: Any) -> bool:
        seen.append(len(traces))
        return True

    def step(x: torch.Tensor) -> Any:
        return torch.ones(2).set_(x)  # type: ignore[call-overload]

    learning = teach(learner(cut=cut), step, *[(torch.ones(2),)] * 3)
    assert seen and not learning.policy.given_up


def test_a_graph_that_differs_from_eager_is_dropped() -> None:
    learning = teach(learner(), scaled, *calls(3))
    (entry,) = learning.routes.entries
    learning.record_verification(entry, [])
    assert learning.routes.entries == [entry] and learning.counts.verified == 1
    learning.record_verification(entry, ["the result"])
    assert learning.routes.entries == []
    assert {"verify", "dropped"} <= set(kinds(learning))
    assert isinstance(entry.group.refusal, Refusal) and entry.group.refusal.reason == "entry-dropped"


def test_no_graph_is_made_again_of_a_dropped_path() -> None:
    learning = teach(learner(), scaled, *calls(3))
    learning.drop(learning.routes.entries[0], "no reason")
    teach(learning, scaled, *calls(3))
    assert learning.routes.entries == [] and learning.counts.compiles == 1


def test_assertions_that_keep_failing_drop_the_graph() -> None:
    learning = teach(learner(), scaled, *calls(3))
    (entry,) = learning.routes.entries
    for _ in range(module.MAX_VIOLATIONS - 1):
        learning.count_violation(entry)
    assert learning.routes.entries == [entry]
    learning.count_violation(entry)
    assert learning.routes.entries == []
    assert "learning-assertions-fail" in [event.reason for event in learning.event_log.events]


def test_a_graph_that_mostly_serves_keeps_its_violations() -> None:
    learning = teach(learner(), scaled, *calls(3))
    (entry,) = learning.routes.entries
    entry.runs = 1000
    for _ in range(module.MAX_VIOLATIONS + 1):
        learning.count_violation(entry)
    assert learning.routes.entries == [entry] and entry.violations == module.MAX_VIOLATIONS + 1


@pytest.mark.parametrize(("runs", "stays"), [(0, False), (1000, True)])
def test_graphs_that_raise_more_often_than_not_are_dropped(runs: int, stays: bool) -> None:
    learning = teach(learner(), scaled, *calls(3))
    (entry,) = learning.routes.entries
    entry.runs = runs
    for _ in range(module.MAX_ERRORS):
        learning.record_raise(entry, ValueError("no"))
    assert (learning.routes.entries == [entry]) is stays
    assert ("learning-graph-raises" in [event.reason for event in learning.event_log.events]) is not stays


def test_only_so_many_graphs_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_COMPILES", 1)
    learning = teach(learner(watch=1), scaled, (torch.ones(3), 0.5))
    teach(learning, scaled, (torch.ones(3, 3), 0.5))
    assert learning.counts.compiles == 1
    assert learning.policy.closed and learning.event_log.events[-1].reason == "learning-too-different"


def test_remarks_of_runs_are_kept() -> None:
    def step(xs: Any) -> torch.Tensor:
        h = torch.zeros(3)
        for n in set(range(len(xs))):
            h = torch.tanh(h + xs[n])
        return h

    learning = teach(learner(), step, *[(torch.ones(n, 3),) for n in (4, 5, 6)])
    assert [one.reason for one in learning.event_log.remarks] == ["loop-sources"]


def test_the_end_closes_all_graphs() -> None:
    learning = teach(learner(), scaled, *calls(3))
    learning.end()
    assert learning.routes.entries == []


def test_what_was_learnt_before_goes_on_being_counted() -> None:
    before = teach(learner(), scaled, *calls(3))
    after = Learning("step", watch=3, executor="replay", cut=lambda traces: False, after=before)
    assert after.event_log.events is before.event_log.events and after.budget is before.budget
    assert after.event_log.totals()["watched"] == 3 and after.counts.watched == 0
    assert not after.routes.entries
