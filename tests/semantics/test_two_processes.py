"""Steps of processes that communicate leave on each of them what they leave eagerly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.semantics.two_processes import CALLS, STEPS, run_both

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")

# For each run; the others take long.
QUICK = ["data_parallel", "gradients_are_added_up", "who_there_is_is_asked"]
# Those that are served, with all their collectives.
SERVED = frozenset(
    """data_parallel several_buckets_and_buffers buffers_are_not_broadcast tensors_are_exchanged
    gradients_are_accumulated gradients_are_added_up gradients_are_added_up_meanwhile
    hook_on_the_gradients_of_parameters parameters_are_sent_around collectives_of_all_kinds shares_are_added_up
    numbers_are_sent store_of_both metrics_are_averaged_behind_the_training who_there_is_is_asked""".split()
)


def test_quick_steps(tmp_path: Path) -> None:
    """One pair of processes does all: to start one takes longer."""
    both, changed = run_both(QUICK, tmp_path, changing=True)
    check(both)
    # ``join()`` makes each forward pass begin with a reduction: a graph that leaves it out mixes up the ranks.
    for rows in changed:
        for eager, speculated in zip(rows[::2], rows[1::2], strict=True):
            change, *results = eager[:3]
            assert same(results, list(speculated[1:3])), change
            assert speculated[3] >= 4 and speculated[4] == 0, change
    assert [len(rows) for rows in changed] == [4, 4]


@pytest.mark.slow
def test_other_steps(tmp_path: Path) -> None:
    both, _ = run_both([name for name in STEPS if name not in QUICK], tmp_path)
    check(both)


def check(both: list[list[Any]]) -> None:
    """Of each rank's rows, the speculated ones are as the eager ones, and served as they are to be."""
    for rank, rows in enumerate(both):
        for eager, speculated in zip(rows[::2], rows[1::2], strict=True):
            name, _, results, served, reported = speculated
            assert same(eager[2], results), f"{name} on rank {rank}: {eager[2]} and {results}"
            assert "torchjanus itself failed" not in reported and "internal fault" not in reported, reported
            if name in SERVED:
                assert served == CALLS - 3, reported
                # the first call of a DistributedDataParallel model is Python's
                assert "refused:" not in reported or "it sorts its buckets" in reported, reported
            elif name == "gradients_are_accumulated_over_calls":
                assert "runs imperatively" not in reported, reported
            elif not served:
                codes = ("[distributed]", "processes communicate there", "DTensor")
                assert any(code in reported for code in codes), reported


def same(one: Any, other: Any) -> bool:
    """Whether both are equal bit by bit."""
    left, right = pytree.tree_leaves(one), pytree.tree_leaves(other)
    return len(left) == len(right) and all(map(_equal, left, right))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return alike and torch.equal(*(t.contiguous().reshape(-1).view(torch.uint8) for t in (one, other)))
    return repr(one) == repr(other)  # NaN equals itself
