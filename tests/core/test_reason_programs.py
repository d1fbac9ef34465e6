"""Each program of docs/reasons.md meets its code."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchjanus
from torchjanus import runtime
from torchjanus.core.reasons import reasons

# Those of which no short program is known.
WITHOUT = frozenset(
    """warning-filters
    native-callback native-uses-tensor native-given-autograd native-keeps-tensor distributed array-operator
    tensor-layout generator-seeded trace-failed autograd-node hook-on-node backward-thread function-result
    autocast-cache default-dtype trace-differs internal-fault learning-too-different learning-no-time
    learning-assertions-fail learning-graph-raises entry-dropped inductor-compile inductor-error-lost
    inductor-copied-input inductor-random-strides inductor-recurrent-layer inductor-disagrees
    loop-iterations-differ loop-first-iteration loop-training loop-body loop-count-fixed loop-random-gradients
    loop-native-call loop-output-gradient loop-small loop-modes loop-in-place loop-effects loop-numbers loop-sizes
    loop-parameters loop-sources loop-tensor-exit branch-gradients branch-in-place branch-numbers
    branch-too-many-arms branch-evidence branch-not-selected recursion-table-changed recursion-reads-writes
    recursion-accumulator recursion-list-lengths recursion-result recursion-result-identity recursion-list-used
    recursion-list-gradients recursion-list-shared recursion-writes recursion-body recursion-too-many-variants
    recursion-unseen recursion-device""".split()
)


def test_which_codes_have_no_program() -> None:
    assert {code for code, reason in reasons().items() if not reason.program} == WITHOUT


@pytest.mark.parametrize("code", [code for code, reason in reasons().items() if reason.program])
def test_the_program_meets_its_code(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program.py"
    path.write_text(reasons()[code].program)
    names: dict[str, Any] = {"torch": torch, "np": np, "torchjanus": torchjanus, "__name__": "program"}
    monkeypatch.setattr(torchjanus, "speculate", lambda fn: runtime.speculate(fn, executor="replay"))
    torch.manual_seed(0)
    enabled, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(path.read_text(), str(path), "exec"), names)
    finally:
        torch.set_grad_enabled(enabled)
        torch.set_default_dtype(dtype)
    explanation = torchjanus.explain(names["step"])
    assert code in explanation.codes, explanation
    assert f"[{code}]" in str(explanation)
