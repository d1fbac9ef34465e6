"""All calls of a forest at once, against plain recursion: values and all gradients."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.forests import MODELS, Model, Tree, trees
from torchjanus.execute.invoke import run_by_replay
from torchjanus.graph.invocations import Invocation

KINDS = [(torch.float64, 1e-12), (torch.float32, 1e-5)]


def seeds_of(model: Model, count: int) -> list[Tensor]:
    dtype = model.recursion.shared[0].dtype
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(count, *shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in model.seeds
    ]


def loss_of(stacks: Sequence[Tensor]) -> Tensor:
    """A loss that weighs all elements differently."""
    total = torch.zeros((), dtype=torch.float64)
    for stack in stacks:
        if stack.dtype.is_floating_point:
            weights = torch.linspace(-1, 1, stack.numel(), dtype=torch.float64).view(stack.shape)
            total = total + (stack.double() * weights).sum()
    return total


def plainly(model: Model, given: Sequence[Tree]) -> tuple[list[Tensor], list[Tensor | None]]:
    shared, seeds = model.recursion.shared, seeds_of(model, len(given))
    rows = [model.plain(shared, tree, *(seed[n] for seed in seeds)) for n, tree in enumerate(given)]
    stacks = [torch.stack(list(column)) for column in zip(*rows, strict=True)]
    return stacks, list(torch.autograd.grad(loss_of(stacks), [*shared, *seeds], allow_unused=True))


def together(model: Model, given: Sequence[Tree]) -> tuple[list[Tensor], list[Tensor | None]]:
    shared, seeds = model.recursion.shared, seeds_of(model, len(given))
    invocation = Invocation(model.recursion)
    kept = run_by_replay(invocation)
    with invocation.use(model.layout(model.recursion, given)):
        stacks = invocation(len(given), shared, seeds)
        gradients = torch.autograd.grad(loss_of(stacks), [*shared, *seeds], allow_unused=True)
    assert len(kept) == 1
    return stacks, list(gradients)


def check(model: Model, given: Sequence[Tree], within: float) -> None:
    (expected, wanted), (found, gradients) = plainly(model, given), together(model, given)
    for one, other in zip(expected, found, strict=True):
        torch.testing.assert_close(other, one, rtol=within, atol=within)
    for number, (one, other) in enumerate(zip(wanted, gradients, strict=True)):
        if one is None:
            assert other is None or not other.any(), number
        else:
            torch.testing.assert_close(other, one, rtol=within, atol=within * float(one.abs().max()))


@pytest.mark.parametrize(("dtype", "within"), KINDS, ids=["double", "single"])
@pytest.mark.parametrize("name", MODELS)
def test_a_forest_is_plain_recursion(name: str, dtype: torch.dtype, within: float) -> None:
    check(MODELS[name](6, dtype), trees(5, 1, 12), within)
