"""The extension module of a compiled graph does what the artifact does, or is not called by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.execute.lockstep import Lockstep
from tests.execute.steps import data_of, kept_grads_step, make_state, plain_step, schedule
from tests.graph.generalize.test_generalize import plan_of
from torchjanus.execute.compiled import extension
from torchjanus.execute.compiled.extension import CompiledExtension, Extension
from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.execute.compiled.store import Product
from torchjanus.execute.compiled.worker import Compilation
from torchjanus.execute.processes.orders import order_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.lower import lower

Step = Callable[..., Any]


def by_another_process(lowered: Lowered) -> Inductor:
    return order_of(lowered).start().result(timeout=600)


@pytest.mark.parametrize(
    ("model", "optimizer", "step"),
    [
        ("mlp", "sgd", kept_grads_step),
        pytest.param("mlp", "adamw", plain_step, marks=pytest.mark.slow),
        pytest.param("tied", "adam", plain_step, marks=pytest.mark.slow),
        pytest.param("convnet", "sgd", plain_step, marks=pytest.mark.slow),
    ],
)
def test_a_training_run_by_the_module_alone_is_within_rounding(model: str, optimizer: str, step: Step) -> None:
    run = Lockstep(make_state(model, optimizer), step, data_of(model), by_another_process, before=schedule)
    assert isinstance(run.executable.call, CompiledExtension)
    for _ in range(4):
        run.advance(tolerance=1e-5 if model != "convnet" else 1e-4)


def product_of(step: Step, *given: torch.Tensor) -> tuple[Product, list[torch.Tensor]]:
    """Return what another process compiles for a step, and the inputs of the graph."""
    lowered = lower(plan_of(step, [given] * 3).program)
    (made,) = Compilation(order_of(lowered).requests).result(timeout=600)
    return made, [entry.example for entry in lowered.program.inputs]


def updating(weights: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    weights += F.gelu(given @ weights).mean(0)
    return weights * 2


def test_it_returns_and_changes_what_the_artifact_does() -> None:
    product, given = product_of(updating, torch.randn(4, 4), torch.randn(5, 4))
    assert isinstance(product.extension, Extension)
    outcomes = []
    for one in (product, dataclasses.replace(product, extension=None)):
        call, own = one.load(), [tensor.clone() for tensor in given]
        versions = [tensor._version for tensor in own]
        with torch.enable_grad():
            made = call(*own)
            assert torch.is_grad_enabled()
        counted = [tensor._version - before for tensor, before in zip(own, versions, strict=True)]
        outcomes.append((isinstance(call, CompiledExtension), [*made, *own], counted))
    (by_module, made, counted), (by_torch, expected, as_torch) = outcomes
    assert (by_module, by_torch) == (True, False)
    assert counted == as_torch
    assert sum(counted)
    assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))


def test_a_library_that_is_missing_is_loaded_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchjanus.execute.compiled.store.load", lambda path: path.read_bytes())
    assert Product(b"artifact", extension=Extension("none.so", ())).load() == b"artifact"


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [lambda given: (given.view(2, 10), given + 1), lambda given: (given + 1).t()], ids=["input", "result"]
)
def test_results_that_are_views_are_as_the_artifact_makes_them(step: Step) -> None:
    product, given = product_of(step, torch.randn(5, 4))
    made, expected = (one.load()(*given) for one in (product, dataclasses.replace(product, extension=None)))
    assert all(torch.equal(one, other) for one, other in zip(made, expected, strict=True))
    assert [one._base is None for one in made] == [one._base is None for one in expected]
    assert [one.stride() for one in made] == [one.stride() for one in expected]


SOURCE = f"""
import torch
from torch._inductor.codecache import CppWrapperCodeCache
cpp_wrapper_src = ("text")
inductor_entry = CppWrapperCodeCache.load_pybinding(main_code=cpp_wrapper_src, kernel_code=None, extra_flags=())
{extension._AROUND[0]}
def get_args():
    pass
if __name__ == "__main__":
    pass
"""


@pytest.mark.parametrize(
    ("changes", "is_one"),
    [
        ({}, True),
        ({"source_code": SOURCE.replace(extension._AROUND[0], extension._AROUND[1])}, True),
        ({"source_code": SOURCE.replace(extension._AROUND[0], extension._AROUND[1].replace("set()", "{1}"))}, False),
        ({"constants": {"constant": torch.zeros(1)}}, False),
        ({"device_types": {"cuda"}}, False),
        ({"inputs_to_check": [0]}, False),
        ({"source_code": SOURCE.replace("kernel_code=None", "kernel_code=kernel_src")}, False),
        ({"source_code": SOURCE.replace("extra_flags=()", "extra_flags=('other.so',)")}, False),
        ({"source_code": SOURCE.replace("return output_tensors", "return output_tensors[0].item()")}, False),
        ({"source_code": SOURCE.replace("text", "torch._inductor.codecache")}, False),
        ({"source_code": SOURCE + "\nregister()"}, False),
    ],
)
def test_anything_unknown_in_the_source_is_left_to_torch(changes: dict[str, Any], is_one: bool) -> None:
    known = {"device_types": {"cpu"}, "constants": {}, "inputs_to_check": [], "source_code": SOURCE}
    assert extension._is_one_module(SimpleNamespace(**{**known, **changes})) is is_one
