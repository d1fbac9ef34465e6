"""What native code reads of containers, library objects and modules is assumed, or the step is refused.

Each question of ``native_reads`` is asked of state that changes at each call, in the step and outside of it.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

import torchjanus
from tests.semantics.native_reads import QUESTIONS, bump, make

CALLS = 12
QUICK = 4  # one of so many is asked in quick runs


@pytest.fixture(scope="module")
def asks(tmp_path_factory):
    """The questions as functions of a file, whose source can be read."""
    functions = "\n".join(f"def ask_{n}(h):\n    return {question}\n" for n, question in enumerate(QUESTIONS))
    file = tmp_path_factory.mktemp("questions") / "questions_of_native_reads.py"
    file.write_text(f"from tests.semantics.native_reads import *\n\n{functions}")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, marks=[] if n % QUICK == 0 else pytest.mark.slow, id=q) for n, q in enumerate(QUESTIONS)],
)
def test_what_native_code_reads_is_assumed(asks, number):
    ask = getattr(asks, f"ask_{number}")
    expected = answers(ask, lambda step: step, inside=True)
    assert len(set(expected)) > 1
    for inside in (True, False):
        assert answers(ask, lambda step: torchjanus.speculate(step, executor="replay"), inside) == expected


def answers(ask, made, inside):
    """``inside``: the step itself changes the state that it asks."""
    state = make()

    def step(x):
        if inside:
            bump(state)
        return x if ask(state) else x * 2

    call, found = made(step), []
    for _ in range(CALLS):
        if not inside:
            bump(state)
        try:
            found.append(call(torch.ones(())).item())
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found
