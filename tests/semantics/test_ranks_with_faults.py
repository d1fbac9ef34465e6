"""Whatever fails on one of several ranks: each does what it does eagerly, and none waits for ever."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.semantics.ranks_with_faults import run_all, run_all_killed
from tests.semantics.test_two_processes import same

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")


def check(world: int, work: list[tuple[str, tuple[Any, ...]]], folder: Path) -> list[list[int]]:
    """Return for each rank how many calls were served, or faults came into effect, in each piece of work."""
    ranks = run_all(world, work, folder)
    for rank, rows in enumerate(ranks):
        for (name, given), (eager, speculated) in zip(work, rows, strict=True):
            for number, (one, other) in enumerate(zip(eager[0], speculated[0], strict=True)):
                assert same(one, other), f"{name}{given}, rank {rank}, call {number}: {one} and {other}"
    return [[speculated[1] for _, speculated in rows] for rows in ranks]


def test_faults_on_one_rank(tmp_path: Path) -> None:
    assert check(2, [("each_fault", ("in buckets", 1, 5))], tmp_path) == [[0], [5]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["by hand", "in buckets"])
def test_faults_on_each_rank(kind: str, tmp_path: Path) -> None:
    work = [("each_fault", (kind, which, 40)) for which in range(2)]
    assert check(2, work, tmp_path) == [[40, 0], [0, 40]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["by hand", "in buckets"])
@pytest.mark.parametrize(("world", "count", "often"), [(2, 250, 4), (2, 250, 10), (4, 60, 6)])
def test_random_events(kind: str, world: int, count: int, often: int, tmp_path: Path) -> None:
    served = check(world, [("schedules", (kind, count, count, often))], tmp_path)
    assert all(each > count // 2 for (each,) in served), served


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("kind", ["by hand", "in buckets", "of one module"])
def test_the_other_rank_is_killed(kind: str, tmp_path: Path) -> None:
    eager, speculated = run_all_killed(kind, tmp_path)
    assert speculated[-1] == 5  # of eight calls: the last call, too, begins with a graph
    assert same(eager[:3], speculated[:3])
    for error in (eager[3], speculated[3]):  # gloo says in several ways that the other one is gone
        assert error.startswith("builtins.RuntimeError: ") and "gloo/transport" in error
