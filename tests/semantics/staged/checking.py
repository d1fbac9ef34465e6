"""Stages a function, runs its graph on several inputs, and compares with eager."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

import torchjanus
from torchjanus.tracegraph.text.parsing import parse_graph
from torchjanus.tracegraph.text.printing import constants_of, print_graph
from torchjanus.tracegraph.verify import verify

__all__ = ["agree", "asserting", "first_of", "grads_agree", "outcome"]


def asserting(x: torch.Tensor) -> torch.Tensor:
    """Here, since pytest rewrites the assertions of tests."""
    assert x.sum() < 3, "too large"
    return x * 2


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, Any]:
    """What a call gives, or which error it raises."""
    try:
        return "result", fn(*args)
    except torchjanus.JanusError:
        raise
    except Exception as error:
        return "error", (type(error), str(error))


def agree(
    fn: Callable[..., Any], known: tuple[Any, ...], *inputs: tuple[Any, ...], close: float = 0.0
) -> torchjanus.StagedGraph:
    """The graph of ``fn`` for what is ``known`` of its arguments: as text it leads back to itself, and it gives what
    ``fn`` gives for each of the inputs."""
    staged = torchjanus.staged(fn)(*known)
    text = staged.text()
    back = parse_graph(text, constants_of(staged.graph))
    verify(back)
    assert print_graph(back) == text
    assert inputs
    for args in inputs:
        mine, eagers = copy.deepcopy(args), copy.deepcopy(args)
        torch.manual_seed(0)
        kind, expected = outcome(fn, eagers)
        torch.manual_seed(0)
        found, result = outcome(staged, mine)
        assert found == kind, (args, result, expected)
        if kind == "error":
            assert result == expected
        else:
            torch.testing.assert_close(result, expected, rtol=close, atol=close)
        for one, other in zip(pytree.tree_leaves(mine), pytree.tree_leaves(eagers), strict=True):
            if isinstance(one, torch.Tensor):  # what is written in place
                torch.testing.assert_close(one, other, rtol=close, atol=close)
    return staged


def grads_agree(fn: Callable[..., Any], known: tuple[Any, ...], *inputs: tuple[Any, ...]) -> None:
    """Gradients of the sum of a staged function's result are eager's."""
    staged = torchjanus.staged(fn)(*known)
    for args in inputs:
        if not fn(*args).requires_grad:
            assert not staged(*args).requires_grad
            continue
        leaves = [one for one in args if isinstance(one, torch.Tensor) and one.requires_grad]
        mine, eagers = (
            torch.autograd.grad(run(*args).sum(), leaves, allow_unused=True, materialize_grads=True)
            for run in (staged, fn)
        )
        torch.testing.assert_close(mine, eagers, rtol=0, atol=0)


def first_of(fn: Callable[..., Any]) -> Callable[..., Any]:
    """``fn`` with the first of its results only, whose gradients can be compared."""

    def first(*args: Any) -> Any:
        found = fn(*args)
        return found[0] if isinstance(found, tuple) else found

    return first
