"""Replay is eager, bit for bit: parameters, optimizer state, buffers, gradients, outputs and the generator."""

from __future__ import annotations

import pytest

from tests.execute.lockstep import Lockstep
from tests.execute.steps import (
    MODELS,
    OPTIMIZERS,
    accumulate_step,
    data_of,
    kept_grads_step,
    make_state,
    plain_step,
    schedule,
)
from torchjanus.execute.replay import Replay

STEPS = 8


# Every optimizer with the smallest model, every model with two optimizers; all pairs in the slow run.
QUICK = {("mlp", optimizer) for optimizer in OPTIMIZERS} | {(model, "sgd") for model in MODELS} | {("convnet", "adamw")}
PAIRS = [
    pytest.param(model, optimizer, marks=() if (model, optimizer) in QUICK else pytest.mark.slow)
    for model in MODELS
    for optimizer in OPTIMIZERS
]


@pytest.mark.parametrize(("model", "optimizer"), PAIRS)
def test_a_training_run_is_bitwise_eagers(model: str, optimizer: str) -> None:
    run = Lockstep(make_state(model, optimizer), plain_step, data_of(model), Replay, before=schedule)
    for _ in range(STEPS):
        run.advance()


@pytest.mark.parametrize(("model", "optimizer"), [("mlp", "sgd"), ("convnet", "adamw-foreach"), ("tied", "adam")])
def test_gradients_kept_and_clipped(model: str, optimizer: str) -> None:
    run = Lockstep(make_state(model, optimizer), kept_grads_step, data_of(model), Replay, before=schedule)
    assert not any(leaf.changed for leaf in run.lowered.leaves), "the .grad objects stay, updated in place"
    for _ in range(STEPS):
        run.advance()


@pytest.mark.parametrize("model", ["convnet", "tied"])
def test_gradients_pile_up(model: str) -> None:
    run = Lockstep(make_state(model, "plain"), accumulate_step, data_of(model), Replay)
    for _ in range(STEPS):
        run.advance()
