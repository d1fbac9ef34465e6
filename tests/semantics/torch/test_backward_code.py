"""The user's code that autograd calls: marks around it, what a context keeps, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchjanus.semantics.torch.backward_code import is_autograd_node
from torchjanus.semantics.torch.function_context import METHODS, Context
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.user_code import MARKS, Begin, End, Hook, Unhook


def watched(step: Any, *args: Any) -> tuple[Any, Trace]:
    return watch_call(step, (), args, {})


def marks(trace: Trace) -> list[Any]:
    return [event.func for event in trace.events if isinstance(event, Op) and isinstance(event.func, MARKS)]


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = 2.0
        return x * ctx.factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * ctx.factor + x * 0


def trained(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    w.grad = None
    Doubled.apply(w * x).sum().backward()
    assert w.grad is not None
    return w.grad.clone()


def test_forward_and_backward_lie_between_marks() -> None:
    x, w = torch.randn(3), torch.ones(3, requires_grad=True)
    result, trace = watched(trained, x, w)
    assert torch.equal(result, 2 * x) and trace.refusals == []
    found = marks(trace)
    assert [type(mark) for mark in found if isinstance(mark, Begin | End)] == [Begin, End, Begin, End]
    # The operation of backward() is recorded between the marks of its call.
    names = [event.name for event in trace.events if isinstance(event, Op)]
    assert sum("mul" in name for name in names) >= 3


def test_hooks_are_registered_called_and_removed() -> None:
    seen: list[float] = []

    def step(x: torch.Tensor, w: torch.Tensor) -> None:
        y = w * x
        handle = y.register_hook(lambda grad: grad * 3)
        y.sum().backward()
        handle.remove()

    x, w = torch.randn(3), torch.ones(3, requires_grad=True)
    _, trace = watched(step, x, w)
    assert w.grad is not None and torch.equal(w.grad, 3 * x)
    assert trace.refusals == [] and seen == []
    kinds = [type(mark) for mark in marks(trace)]
    assert kinds.count(Hook) == kinds.count(Unhook) == 1
    assert kinds.index(Hook) < kinds.index(Begin) < kinds.index(End) < kinds.index(Unhook)


@pytest.mark.parametrize(
    ("look", "what"),
    [
        (lambda y: y.grad_fn._saved_dim, "reads the attribute '_saved_dim' of autograd's"),
        (lambda y: y.grad_fn.metadata, "reads the attribute 'metadata' of autograd's"),
    ],
)
def test_data_of_autograd_nodes_are_refused(look: Any, what: str) -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> int:
        look((w * x).sum(0))
        return 1

    result, trace = watched(step, torch.randn(3), torch.ones(3, requires_grad=True))
    assert result == 1
    assert [one.reason for one in trace.refusals] == ["autograd-node"] and what in trace.refusals[0].what


def test_names_and_edges_of_nodes_are_no_obstacle() -> None:
    def step(x: torch.Tensor, w: torch.Tensor) -> Any:
        node = (w * x).sum().grad_fn
        return node.name(), len(node.next_functions)

    result, trace = watched(step, torch.randn(3), torch.ones(3, requires_grad=True))
    assert result == ("SumBackward0", 1) and trace.refusals == []


class Recorded:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def refuse(self, reason: str, *words: str) -> None:
        self.reasons.append(reason)


class Real:
    needs_input_grad = (True, False)
    input_metadata = "anything"


def context() -> tuple[Context, Recorded]:
    recording: Any = Recorded()
    return Context(Real(), recording), recording


def test_a_context_keeps_what_forward_gives_it() -> None:
    ctx, recording = context()
    x, y = torch.ones(1), torch.ones(2)
    ctx.save_for_backward(x, y)
    ctx.mark_dirty(x)
    ctx.mark_non_differentiable(y)
    ctx.set_materialize_grads(False)
    assert (ctx.to_save, ctx.dirty, ctx.undifferentiable, ctx.materialize_grads) == ((x, y), (x,), (y,), False)
    assert ctx.needs_input_grad == (True, False) and recording.reasons == []


def test_other_parts_of_a_context_are_refused_and_given_all_the_same() -> None:
    ctx, recording = context()
    assert ctx.input_metadata == "anything" and recording.reasons == ["function-context"]
    with pytest.raises(AttributeError):
        ctx.nothing
    with pytest.raises(AttributeError):
        ctx.__deepcopy__
    assert recording.reasons == ["function-context"]


def test_a_context_that_outlives_the_run_holds_plain_values() -> None:
    ctx, _ = context()
    ctx.factor = 3
    ctx.leave(lambda value: ("bare", value))
    assert ctx.factor == ("bare", 3)


def test_the_methods_of_a_context_are_known() -> None:
    assert Context.save_for_backward in METHODS and Context.set_materialize_grads in METHODS


def test_what_autograd_nodes_are() -> None:
    y = torch.ones(1, requires_grad=True) * 2
    assert is_autograd_node(y.grad_fn)
    assert not is_autograd_node(y) and not is_autograd_node(None)
