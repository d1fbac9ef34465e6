"""Compiling in another process gives an executor that agrees with replay, and faults come back as refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.execute.lockstep import Lockstep
from tests.execute.steps import data_of, make_state, plain_step, schedule
from torchjanus.errors import Refused
from torchjanus.execute.inductor import Inductor
from torchjanus.execute.replay import Replay
from torchjanus.execute.trust import Trial
from torchjanus.execute.worker import Compilation, Request


def test_an_artifact_made_in_another_process_passes_its_trial() -> None:
    run = Lockstep(make_state("mlp", "adam-foreach"), plain_step, data_of("mlp"), Replay, before=schedule)
    generator = torch.get_rng_state()
    pending = Inductor.start(run.lowered)
    run.advance()  # the training goes on
    generator = torch.get_rng_state()
    trial: Any = Trial(pending.result(timeout=300))
    assert pending.ready() and torch.equal(torch.get_rng_state(), generator)
    run.executable = trial
    for _ in range(trial.needed):
        run.advance()
    assert trial.trusted, [str(found) for found in trial.disagreements]
    run.executable = trial.candidate
    for _ in range(4):
        run.advance(tolerance=1e-5)


def test_a_fault_of_the_compiler_is_a_refusal() -> None:
    pending = Compilation([Request(b"no graph", (), {}, 1, torch.float32)])
    with pytest.raises(Refused, match="Inductor cannot compile the step"):
        pending.result(timeout=300)


def test_a_compilation_can_be_given_up() -> None:
    pending = Compilation([Request(b"no graph", (), {}, 1, torch.float32)])
    pending.cancel()
    assert pending.ready()
