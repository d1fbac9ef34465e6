"""Real library code: steps of transformers' BERT and GPT-2 under imperative semantics are eager's, bit by bit."""

from __future__ import annotations

import pytest

from benchmarks.robustness.rewriting_coverage import MODELS, OPTIMIZERS, agree, training, watched
from torchjanus.rewrite import CENSUS
from torchjanus.semantics.protocols.imperative import Imperative
from torchjanus.semantics.protocols.virtualize import virtualize

# What runs natively in such a step, by the reason; everything else that the step reaches is rewritten.
NATIVE_REASONS = ("called by native code", "called by a function that is left native", "left native")


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_training_step_is_eagers_bit_by_bit(model: str, optimizer: str) -> None:
    same, losses = agree(model, optimizer, steps=3)
    assert same
    assert losses[0] != losses[-1]


@pytest.mark.parametrize("model", MODELS)
def test_what_a_step_reaches_is_rewritten(model: str) -> None:
    step = virtualize(training(model, "adamw").step, Imperative())
    step()
    ran = watched(step)
    assert len(ran.rewritten) > 100
    assert len(ran.native) < len(ran.rewritten) / 2
    listed = {(entry.file, entry.line, entry.function) for entry in CENSUS.native}
    assert all(key in listed or why.startswith(NATIVE_REASONS) for key, why in ran.native.items())
