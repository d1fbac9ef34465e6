"""The code of an artifact past the wrappers that torch puts around it."""

from __future__ import annotations

from typing import Any

import torch

import torchjanus.execute.compiled.invoke as invoke_inductor
from tests.execute.compiled.test_invoke import compiled
from tests.execute.regions.test_invoke import agree, loss_of, seeds_of, together
from tests.forests import MODELS, trees
from torchjanus.execute.compiled.artifacts import bare_call
from torchjanus.execute.compiled.shared_parts import compile_part
from torchjanus.graph.lowering.invoke_for_inductor import writing_of
from torchjanus.graph.recursion.cells.invoke import Invocation


def part_of(name: str) -> Any:
    recursion = MODELS["TreeRNN"](6, torch.float32).recursion
    inner = Invocation(recursion).partition(recursion.shared, []).cells[1]
    writing = writing_of(inner, recursion, name)
    assert writing is not None
    return writing, compile_part(writing).call


def test_it_does_the_same_past_the_wrappers() -> None:
    writing, artifact = part_of("forward")
    bare = bare_call(artifact)
    assert bare is not None
    values = torch.Generator().manual_seed(0)
    for count in (1, 7):
        results = []
        for call in (lambda *given: artifact(*given), lambda *given: bare([*given])):
            values.manual_seed(count)
            given = []
            for one in writing.taken:
                size = [extent if isinstance(extent, int) else count for extent in one.size]
                given.append(
                    torch.randn(size, generator=values) if one.dtype.is_floating_point else torch.zeros(size).long()
                )
            call(*given)
            results.append(given)
        assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


def test_nobody_looks_into_what_is_no_artifact() -> None:
    _, artifact = part_of("forward")
    assert bare_call(lambda *given: artifact(*given)) is None
    assert bare_call(None) is None


def test_what_disagrees_past_the_wrappers_is_called_with_them(monkeypatch: Any) -> None:
    asked = []

    def wrong(artifact: Any) -> Any:
        asked.append(artifact)
        return lambda given: None

    monkeypatch.setattr(invoke_inductor, "bare_call", wrong)
    model = MODELS["TreeRNN"](6, torch.float32)
    given = trees(5, 1, 12)
    invocation, calls, _ = compiled(model)
    assert asked
    assert calls.cells
    shared, seeds = model.recursion.shared, seeds_of(model, len(given))
    with invocation.use(model.layout(model.recursion, given)):
        stacks = invocation(len(given), shared, seeds)
        gradients = torch.autograd.grad(loss_of(stacks), [*shared, *seeds], allow_unused=True)
    agree(together(model, given), (stacks, list(gradients)), 1e-5)
