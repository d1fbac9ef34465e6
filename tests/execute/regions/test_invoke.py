"""All calls of a forest at once, against plain recursion: values and all gradients."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from tests.forests import MODELS, Model, Tree, chain, trees
from torchjanus.core.errors import InternalFault
from torchjanus.execute.regions.invoke import run_by_replay
from torchjanus.graph.recursion.cells.invoke import Invocation
from torchjanus.graph.recursion.cells.invoke_op import BACKWARD, FORWARD, is_invoke, laid_out

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
    agree(plainly(model, given), together(model, given), within)


def agree(one_way: tuple[Any, Any], other_way: tuple[Any, Any], within: float) -> None:
    """Both are values, and gradients."""
    (expected, wanted), (found, gradients) = one_way, other_way
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


@pytest.mark.parametrize("name", MODELS)
def test_trees_of_one_node(name: str) -> None:
    check(MODELS[name](4, torch.float64), [Tree(3), Tree(5), Tree(3)], 1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_one_tree(name: str) -> None:
    check(MODELS[name](4, torch.float64), trees(1, 9, 9), 1e-12)


@pytest.mark.parametrize("name", ["TreeRNN", "TreeLSTM"])
def test_a_chain_of_2000_levels(name: str) -> None:
    model, tree = MODELS[name](3, torch.float64), chain(2000)
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(50_000)
    threading.stack_size(512 << 20)
    try:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(plainly(model, [tree])))
        thread.start()
        thread.join()
    finally:
        threading.stack_size(0)
        sys.setrecursionlimit(before)
    values, gradients = together(model, [tree])
    agree(found[0], (values, gradients), 1e-12)


def test_rows_taken_twice_and_shared_subtrees() -> None:
    shared = Tree(1, Tree(2), Tree(3))
    whole = Tree(0, Tree(4, shared, shared), shared)
    for name in ("TreeRNN", "TreeLSTM"):
        # A root twice, and a root within another tree.
        check(MODELS[name](5, torch.float64), [whole, shared, whole], 1e-12)


def test_results_without_tangents() -> None:
    model, given = MODELS["TreeLSTM"](5, torch.float64), trees(3, 4, 8)
    shared = model.recursion.shared
    invocation = Invocation(model.recursion)
    kept = run_by_replay(invocation)
    rows = [model.plain(shared, tree) for tree in given]
    for place in (0, 1):
        wanted = torch.autograd.grad(loss_of([torch.stack([row[place] for row in rows])]), shared, retain_graph=True)
        with invocation.use(model.layout(model.recursion, given)):
            found = torch.autograd.grad(loss_of([invocation(3, shared, [])[place]]), shared)
        for one, other in zip(wanted, found, strict=True):
            torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)
    assert kept


def test_without_gradients_nothing_is_kept() -> None:
    model, given = MODELS["TreeLSTM"](5, torch.float64), trees(3, 4, 8)
    invocation = Invocation(model.recursion)
    kept = run_by_replay(invocation)
    with torch.no_grad(), invocation.use(model.layout(model.recursion, given)):
        stacks = invocation(3, model.recursion.shared, [])
    assert all(not cell.saved and cell.rows is None and cell.sums is None for cell in kept[0].partition.cells)
    for one, other in zip(plainly(model, given)[0], stacks, strict=True):
        assert not other.requires_grad
        torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_some_shared_tensors_are_frozen() -> None:
    model, given = MODELS["TreeLSTM"](5, torch.float64), trees(3, 4, 8)
    shared = [tensor.detach() for tensor in model.recursion.shared]
    shared[4].requires_grad_()
    wanted = torch.autograd.grad(loss_of([torch.stack([model.plain(shared, tree)[0] for tree in given])]), shared[4])
    invocation = Invocation(model.recursion)
    kept = run_by_replay(invocation)
    with invocation.use(model.layout(model.recursion, given)):
        found = torch.autograd.grad(loss_of([invocation(3, shared, [])[0]]), shared[4])
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    # Leaves have no gradients at all, so none flow to them.
    assert [cell.wanted for cell in kept[0].partition.cells] == [(), (4,)]


def test_one_trace_serves_all_forests() -> None:
    model = MODELS["TreeLSTM"](5, torch.float64)
    shared = model.recursion.shared
    invocation = Invocation(model.recursion)
    kept = run_by_replay(invocation)
    for seed, most in enumerate((1, 2, 30, 5)):
        given = trees(4, 1, most, seed)
        with invocation.use(model.layout(model.recursion, given)):
            stacks = invocation(4, shared, [])
            gradients = torch.autograd.grad(loss_of(stacks), shared)
        agree(plainly(model, given), (stacks, list(gradients)), 1e-12)
    assert len(kept) == len(invocation.made) == 1


def test_two_threads_have_their_own_forests() -> None:
    model = MODELS["TreeRNN"](5, torch.float64)
    invocation = Invocation(model.recursion)
    kept = run_by_replay(invocation)
    invocation.partition(model.recursion.shared, [])
    barrier = threading.Barrier(2)

    def work(seed: int) -> tuple[Any, Any]:
        given = trees(4, 2, 9, seed)
        barrier.wait()
        with invocation.use(model.layout(model.recursion, given)):
            stacks = invocation(4, model.recursion.shared, [])
            barrier.wait()
            gradients = torch.autograd.grad(loss_of(stacks), model.recursion.shared)
        return plainly(model, given), (stacks, list(gradients))

    with ThreadPoolExecutor(2) as pool:
        for expected, found in pool.map(work, (1, 2)):
            agree(expected, found, 1e-12)
    assert kept


def test_in_a_graph_it_is_one_node_each_way() -> None:
    model = MODELS["top-down"](5, torch.float64)
    shared = model.recursion.shared
    one, other = Invocation(model.recursion), Invocation(model.recursion)

    def step(*given: Tensor) -> list[Tensor]:
        first = one(3, given[1:], given[:1])
        second = other(3, given[1:], [first[0] * 2])
        loss = loss_of([*first, *second])
        return [loss.detach(), *torch.autograd.grad(loss, given)]

    seeds = seeds_of(model, 3)
    graph = make_fx(step, tracing_mode="fake")(*seeds, *shared)
    targets = [node.target for node in graph.graph.nodes if is_invoke(node.target)]
    assert targets == [FORWARD, FORWARD, BACKWARD, BACKWARD]
    kept = [run_by_replay(one), run_by_replay(other)]
    given, more = trees(3, 2, 9, 1), trees(3, 2, 9, 2)
    forests = {one: model.layout(model.recursion, given), other: model.layout(model.recursion, more)}
    with laid_out(forests):
        # A graph may run twice on the same forests.
        runs = [graph(*seeds, *shared) for _ in range(2)]

    def plain() -> list[Tensor]:
        first = [model.plain(shared, tree, seeds[0][n]) for n, tree in enumerate(given)]
        stacks = [torch.stack(list(column)) for column in zip(*first, strict=True)]
        second = [model.plain(shared, tree, stacks[0][n] * 2) for n, tree in enumerate(more)]
        stacks += [torch.stack(list(column)) for column in zip(*second, strict=True)]
        loss = loss_of(stacks)
        return [loss, *torch.autograd.grad(loss, [*seeds, *shared])]

    for run in runs:
        for value, wanted in zip(run, plain(), strict=True):
            torch.testing.assert_close(value, wanted, rtol=1e-12, atol=1e-11)
    assert kept


def test_a_forest_must_be_laid_out() -> None:
    model, given = MODELS["TreeRNN"](5, torch.float64), trees(3, 2, 5)
    invocation = Invocation(model.recursion)
    kept = run_by_replay(invocation)
    with pytest.raises(InternalFault, match="no forest"):
        invocation(3, model.recursion.shared, [])
    with invocation.use(model.layout(model.recursion, given)), pytest.raises(InternalFault, match="not 4 roots"):
        invocation(4, model.recursion.shared, [])
    assert kept


def taken_once(model: Model) -> Model:
    """The model, which is given trees without common nodes."""
    buffers = tuple(replace(buffer, once=True) for buffer in model.recursion.buffers)
    return replace(model, recursion=replace(model.recursion, buffers=buffers))


@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("name", ["TreeRNN", "TreeLSTM"])
def test_gradients_of_rows_that_are_taken_once_are_written(name: str, spare: int, monkeypatch: Any) -> None:
    model = taken_once(MODELS[name](6, torch.float64))
    given = trees(6, 1, 9)
    used = given[: len(given) - spare]
    shared = model.recursion.shared
    cleared: list[Tensor] = []

    def zeros_like(tensor: Tensor) -> Tensor:
        cleared.append(torch.zeros(tensor.size(), dtype=tensor.dtype))
        return cleared[-1]

    invocation = Invocation(model.recursion)
    kept = run_by_replay(invocation)
    forest = model.layout(model.recursion, given)
    forest.results = [rows[: len(used)] for rows in forest.results]
    with invocation.use(forest):
        stacks = invocation(len(used), shared, seeds_of(model, len(used)))
        loss = loss_of(stacks)
        # Whatever lies in memory that nobody clears must not be read.
        monkeypatch.setattr(
            torch, "empty_like", lambda tensor: torch.full(tensor.size(), torch.nan, dtype=tensor.dtype)
        )
        monkeypatch.setattr(torch, "zeros_like", zeros_like)
        gradients = torch.autograd.grad(loss, [*shared], allow_unused=True)
    assert len(kept) == 1
    rows = sum(tensor.size(0) for tensor in cleared if tensor.dim() and tensor.size(0) > len(given))
    assert bool(rows) == bool(spare)  # nobody hands gradients on to the roots of spare trees
    agree(plainly(model, used), (stacks, list(gradients)), 1e-12)
