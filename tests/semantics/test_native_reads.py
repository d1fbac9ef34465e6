"""What native code reads of containers, library objects and modules is assumed, or the step is refused.

Each question of these modules is asked of state that changes at each call, in the step and outside of it.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

import torchjanus
from tests.semantics import native_calls_of_code, native_reads, native_reads_of_classes

MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (native_reads, native_reads_of_classes, native_calls_of_code)
}
CALLS = 12
IMPORTS = """import collections, contextlib, copy, itertools, operator, pickle, re, torch
from torch.utils.data import DataLoader, Subset, TensorDataset
"""
QUICK = 24  # one of so many is asked in quick runs


@pytest.fixture(scope="module")
def asks(tmp_path_factory):
    """The questions as functions of files, whose source can be read."""
    found = {}
    for name, module in MODULES.items():
        functions = "\n".join(f"def ask_{n}(h):\n    return {asked}\n" for n, asked in enumerate(module.QUESTIONS))
        file = tmp_path_factory.mktemp(name) / f"questions_of_{name}.py"
        file.write_text(f"{IMPORTS}from {module.__name__} import *\n\n{functions}")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        found[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[name])
    return found


CASES = [(name, n, asked) for name, module in MODULES.items() for n, asked in enumerate(module.QUESTIONS)]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(name, n, marks=[] if n % QUICK == 0 else pytest.mark.slow, id=f"{name}-{asked}")
        for name, n, asked in CASES
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_what_native_code_reads_is_assumed(asks, name, number):
    ask = getattr(asks[name], f"ask_{number}")
    expected = answers(MODULES[name], ask, lambda step: step, inside=True)
    assert len(set(expected)) > 1
    for inside in (True, False):
        assert (
            answers(MODULES[name], ask, lambda step: torchjanus.speculate(step, executor="replay"), inside) == expected
        )


def answers(module, ask, made, inside):
    """``inside``: the step itself changes the state that it asks."""
    state = module.make()

    def step(x):
        if inside:
            module.bump(state)
        return x if ask(state) else x * 2

    call, found = made(step), []
    for _ in range(CALLS):
        if not inside:
            module.bump(state)
        try:
            found.append(call(torch.ones(())).item())
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found
