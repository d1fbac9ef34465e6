"""The measured programs: they train, equal arguments give equal jobs, and their state is all that training changes."""

from __future__ import annotations

import pytest
import torch

from benchmarks.programs.steps import OPTIMIZERS, PROGRAMS, make

CASES = [("mlp", name) for name in OPTIMIZERS] + [(name, "adam") for name in PROGRAMS if name != "mlp"]


@pytest.mark.parametrize(("program", "optimizer"), CASES)
def test_equal_arguments_give_bitwise_equal_jobs(program: str, optimizer: str) -> None:
    torch.manual_seed(99)  # must not matter
    first = make(program, optimizer, seed=3, dropout=0.1, batches=3)
    random = torch.get_rng_state()
    first_losses = [first.step(*batch) for batch in first.batches]
    second = make(program, optimizer, seed=3, dropout=0.1, batches=3)
    assert torch.equal(torch.get_rng_state(), random)
    second_losses = [second.step(*batch) for batch in second.batches]
    assert all(torch.equal(a, b) and a.isfinite() for a, b in zip(first_losses, second_losses, strict=True))
    left, right = first.state(), second.state()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_step_trains_every_parameter(program: str) -> None:
    job = make(program, "sgd", batches=1)
    before = job.state()
    for _ in range(5):
        loss = job.step(*job.batches[0])
    assert not loss.requires_grad
    after = job.state()
    parameters = [key for key in before if key.startswith("parameter ")]
    assert parameters
    # A key's bias shifts all scores of a row alike, and the softmax takes it out again: its gradient is rounding.
    still = [key for key in parameters if torch.equal(before[key], after[key])]
    assert all(".key.bias" in key for key in still)
    gradients = {key.removeprefix("gradient ") for key in after if key.startswith("gradient ")}
    assert gradients == {key.removeprefix("parameter ") for key in parameters}
    assert any(key.startswith("optimizer ") and key.endswith("momentum_buffer") for key in after)


def test_the_loss_goes_down() -> None:
    job = make("digits", "adam", batches=40)
    losses = [job.step(*batch).item() for batch in job.batches]
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])


def test_state_is_a_copy() -> None:
    job = make("mlp", "adamw", batches=1)
    job.step(*job.batches[0])
    state = job.state()
    kept = {key: value.clone() for key, value in state.items()}
    job.step(*job.batches[0])
    assert all(torch.equal(state[key], kept[key]) for key in state)


def test_other_seeds_give_other_data_and_parameters() -> None:
    one, two = make("mlp", "sgd", seed=0, batches=1), make("mlp", "sgd", seed=1, batches=1)
    assert not torch.equal(one.batches[0][0], two.batches[0][0])
    assert not torch.equal(one.state()["parameter 0.weight"], two.state()["parameter 0.weight"])
