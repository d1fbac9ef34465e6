"""While a run is watched, what eager would have freed takes no memory; what anybody could still reach is as it was."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import torchjanus
from torchjanus.semantics import sweeping
from torchjanus.semantics.run_record import RunRecord
from torchjanus.semantics.sweeping import SMALL, Sweeping

SIDE = 128


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at every tensor that is made."""
    assert SIDE * SIDE * 4 >= SMALL
    monkeypatch.setattr(sweeping, "OFTEN", -1)


def kept(keep: Callable[[torch.Tensor], Any]) -> bool:
    """Whether a tensor keeps its contents, if this is all that is kept of it, beside the list."""
    made = [torch.ones(SIDE, SIDE)]
    looked = Sweeping(made)
    looked.made(0)
    holder = keep(made[0])
    made.append(torch.ones(SIDE, SIDE))
    looked.made(1)
    found = made[0].untyped_storage().nbytes() > 0
    del holder
    return found


@pytest.mark.parametrize(
    "keep",
    [
        lambda t: t, lambda t: [t], weakref.ref, lambda t: t.view(-1), lambda t: t.numpy(), lambda t: t.detach()[3:],
        lambda t: torch.utils.dlpack.to_dlpack(t), lambda t: t.untyped_storage(), lambda t: t.requires_grad_().exp(),
        lambda t: memoryview(t.numpy()),
    ],
)  # fmt: skip
def test_what_can_be_reached_in_any_way_is_kept(keep: Callable[[torch.Tensor], Any]) -> None:
    assert kept(keep)


def test_what_cannot_is_not() -> None:
    assert not kept(lambda t: None)
    assert not kept(lambda t: t.sum())


def test_views_go_together() -> None:
    base = torch.ones(SIDE, SIDE)
    other = base.detach()
    made = [base, other, other.t()]
    looked = Sweeping(made)
    for number in range(3):
        looked.made(number)
    assert all(tensor.untyped_storage().nbytes() for tensor in made)  # ``base`` is a name of it
    del base, other
    made.append(torch.ones(SIDE, SIDE))
    looked.made(3)
    assert not any(tensor.untyped_storage().nbytes() for tensor in made[:3])
    assert made[3].untyped_storage().nbytes()


def test_memory_that_is_not_torchs_is_left_alone() -> None:
    array = np.ones((SIDE, SIDE), np.float32)
    made = [torch.from_numpy(array)]
    looked = Sweeping(made)
    looked.made(0)
    made.append(torch.ones(SIDE, SIDE))
    looked.made(1)
    assert array.sum() == SIDE * SIDE


def test_a_watched_run_holds_no_more_than_eager_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long chain of operations eager holds two results at a time."""
    most = 0

    def new_tensor(self: RunRecord, tensor: torch.Tensor) -> Any:
        nonlocal most
        ref = original(self, tensor)
        most = max(most, sum(one is not None and one.untyped_storage().nbytes() > 0 for one in self.trace.tensors))
        return ref

    original = RunRecord.new_tensor
    monkeypatch.setattr(RunRecord, "new_tensor", new_tensor)

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(50):
            x = x.sin() + 1
        return x

    speculated = torchjanus.speculate(step, executor="replay")
    for _ in range(5):
        x = torch.randn(SIDE, SIDE)
        assert torch.equal(speculated(x), step(x))
    assert 2 <= most <= 6


def test_a_step_that_follows_weak_references_and_views_is_as_in_eager() -> None:
    def step(x: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        said = []
        y = x * 2
        part = y[3:5]
        array = (x + 1).numpy()
        rows = (x * 3).unbind()
        last = rows[-1]
        del y, rows
        for _ in range(5):
            x = (x + 1).cos()
        said.append(float(array.sum()))
        return part + last + x[:2], said

    speculated = torchjanus.speculate(step, executor="replay")
    for _ in range(6):
        x = torch.randn(SIDE, SIDE)
        ours, eager = speculated(x), step(x)
        assert torch.equal(ours[0], eager[0]) and ours[1] == eager[1]
