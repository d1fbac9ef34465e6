"""When extern calls are made: as early as nobody can tell, but a clock never before the work that it times."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchjanus


def _timed(x: torch.Tensor) -> torch.Tensor:
    start = time.perf_counter()
    x = x @ x.T
    if time.perf_counter() - start > 3600.0:
        x = x + 1
    return x * 2


def _drawn(x: torch.Tensor) -> torch.Tensor:
    x = x @ x.T
    return x * random.random()


def _merged(x: torch.Tensor) -> torch.Tensor:
    print(x.shape[0])
    return x * 2


CASES: dict[str, tuple[Callable[..., Any], int, int]] = {  # calls before the graph, and cuts
    "a clock around work": (_timed, 1, 1),
    "a random number after work that cannot fail": (_drawn, 1, 0),
    "what nobody waits for": (_merged, 0, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_schedule(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    fn, early, cuts = CASES[case]
    step = torchjanus.speculate(fn, executor="replay")
    for _ in range(5):
        step(torch.ones(2, 2))
    (entry,) = step.entries
    schedule = entry.plan.schedule
    assert (len(schedule.stages[0]), len(schedule.cuts)) == (early, cuts)
    assert step.statistics().speculated == 2
