"""Co-executed programs do what they do in eager, bit by bit, and most of their calls are served."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchjanus
from tests.runtime.coexecution.programs import PROGRAMS, Twins


def coexecuted(step: Any) -> Any:
    return torchjanus.speculate(step, executor="coexecute")


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_state_and_generators_are_eagers(name: str) -> None:
    twins = Twins(PROGRAMS[name], coexecuted)
    twins.run()
    step = twins.steps[1]
    assert [event.text for event in step.events if event.kind == "fault"] == []
    assert step.refusals == []
    assert step.statistics().speculated >= len(twins.made[0].calls) / 2, torchjanus.explain(step)


def test_a_path_that_is_learnt_leaves_no_divergence_behind() -> None:
    twins = Twins(PROGRAMS["branch"], coexecuted)
    twins.run()
    report = twins.steps[1].coexecution
    assert report.paths == 2
    assert report.transitions <= 4
    assert any("fetch by Tensor.__bool__" in what and seconds > 0 for _, what, _, seconds in report.points)
    assert report.waits > 0
    explained = torchjanus.explain(twins.steps[1])
    assert "co-executed:" in str(explained)
    assert "fetch by Tensor.__bool__" in explained.detailed()
    assert explained.data()["coexecution"]["transitions"] == report.transitions


def test_the_size_of_a_placeholder_is_a_size() -> None:
    step = coexecuted(lambda x: ((x * 2).shape, x.size()))
    for _ in range(5):
        assert [type(size) for size in step(torch.ones(3, 4))] == [torch.Size] * 2
    assert step.coexecution.served > 0
