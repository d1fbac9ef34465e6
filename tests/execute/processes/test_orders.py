"""An executor that another process makes names all that is compiled, and agrees with replay."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.execute.lockstep import Lockstep
from tests.execute.steps import data_of, make_state, plain_step, schedule
from torchjanus.execute.processes.orders import order_of
from torchjanus.execute.replay import Replay
from torchjanus.execute.trust import Trial


def test_an_order_names_all_that_a_child_compiles() -> None:
    run = Lockstep(make_state("mlp", "adam-foreach"), plain_step, data_of("mlp"), Replay, before=schedule)
    (request,) = order_of(run.lowered).requests
    assert request.default_dtype is torch.get_default_dtype()


@pytest.mark.slow
def test_an_artifact_made_in_another_process_passes_its_trial() -> None:
    run = Lockstep(make_state("mlp", "adam-foreach"), plain_step, data_of("mlp"), Replay, before=schedule)
    generator = torch.get_rng_state()
    pending = order_of(run.lowered).start()
    run.advance()  # the training goes on
    generator = torch.get_rng_state()
    trial: Any = Trial(pending.result(timeout=600))
    assert pending.ready() and torch.equal(torch.get_rng_state(), generator)
    run.executable = trial
    for _ in range(trial.needed):
        run.advance()
    assert trial.trusted, [str(found) for found in trial.disagreements]
    run.executable = trial.candidate
    for _ in range(4):
        run.advance(tolerance=1e-5)
