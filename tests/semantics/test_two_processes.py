"""Steps of processes that communicate leave on each of them what they leave eagerly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.semantics.two_processes import STEPS, run_both

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")

# For each run; the others take long.
QUICK = ["data_parallel", "gradients_are_added_up", "who_there_is_is_asked"]
# Those of which graphs serve a part: what comes before, or after.
SERVED = frozenset({"who_there_is_is_asked", "metrics_are_averaged_behind_the_training"})


def test_quick_steps(tmp_path: Path) -> None:
    check(QUICK, tmp_path)


@pytest.mark.slow
def test_other_steps(tmp_path: Path) -> None:
    check([name for name in STEPS if name not in QUICK], tmp_path)


def check(names: list[str], folder: Path) -> None:
    """All in one pair of processes."""
    both = run_both(names, folder)
    for rank, rows in enumerate(both):
        for eager, speculated in zip(rows[::2], rows[1::2], strict=True):
            name, _, results, served, reported = speculated
            assert same(eager[2], results), f"{name} on rank {rank}: {eager[2]} and {results}"
            assert "torchjanus itself failed" not in reported and "internal fault" not in reported, reported
            if name in SERVED:
                assert served, reported
            elif not served:
                assert "processes communicate there" in reported or "DTensor" in reported, reported


def same(one: Any, other: Any) -> bool:
    """Whether both are equal bit by bit."""
    left, right = pytree.tree_leaves(one), pytree.tree_leaves(other)
    return len(left) == len(right) and all(map(_equal, left, right))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    return bool(one == other)
