"""All calls of a forest by compiled cells, against replay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.execute.regions.test_invoke import agree, loss_of, seeds_of, together
from tests.forests import MODELS, Model, Tree, chain, trees
from torchjanus.core.errors import Refused
from torchjanus.execute.compiled.invoke import CompiledCalls, compile_calls
from torchjanus.execute.compiled.shared_parts import compile_part
from torchjanus.graph.lowering.invoke_for_inductor import PreparedPart
from torchjanus.graph.recursion.cells.invoke import Invocation
from torchjanus.graph.recursion.cells.invoke_op import register


def compiled(model: Model, change: Callable[[Any], Any] = lambda made: made) -> tuple[Invocation, CompiledCalls, int]:
    """The model's recursion, run by compiled code; and how many parts were compiled."""
    invocation = Invocation(model.recursion)
    partition = invocation.partition(model.recursion.shared, seeds_of(model, 1))
    count = 0

    def one(writing: PreparedPart) -> Any:
        nonlocal count
        count += 1
        part = compile_part(writing)
        return replace(part, call=change(part.call))

    calls = compile_calls(partition, one)
    register(partition.key, calls)
    return invocation, calls, count


SHARED = Tree(1, Tree(2), Tree(3))
FORESTS = [
    trees(5, 1, 12),
    trees(1, 30, 30, 1),
    [Tree(4), Tree(4)],
    [chain(40)],
    trees(20, 1, 3, 2),
    [Tree(0, Tree(4, SHARED, SHARED), SHARED), SHARED, SHARED],  # backwards by replay
]


@pytest.mark.parametrize(
    "name", ["TreeRNN", *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name != "TreeRNN")]
)
def test_one_compilation_serves_all_forests(name: str) -> None:
    model = MODELS[name](6, torch.float32)
    shared = model.recursion.shared
    invocation, calls, count = compiled(model)
    assert calls.cells
    assert count <= 3 * len(model.recursion.cells)
    for given in FORESTS:
        if given is FORESTS[-1] and name not in ("TreeRNN", "TreeLSTM"):
            continue
        seeds = seeds_of(model, len(given))
        with invocation.use(model.layout(model.recursion, given)):
            stacks = invocation(len(given), shared, seeds)
            gradients = torch.autograd.grad(loss_of(stacks), [*shared, *seeds], allow_unused=True)
        agree(together(model, given), (stacks, list(gradients)), 1e-5)


def test_what_is_compiled_wrongly_is_refused() -> None:
    def wrong(made: Any) -> Any:
        def run(*given: torch.Tensor) -> Any:
            found = made(*given)
            for tensor in given[4:]:
                if tensor.dtype.is_floating_point and tensor.size(0) == 2:
                    tensor.mul_(1.01)  # for some numbers of calls only
            return found

        return run

    with pytest.raises(Refused, match="disagrees with replay on made-up rows"):
        compiled(MODELS["TreeRNN"](6, torch.float32), wrong)
