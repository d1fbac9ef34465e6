"""Framework calls become one node each; what a graph cannot carry is refused at its line, and still carried out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchjanus
from torchjanus.semantics.known.framework_calls import call_name
from torchjanus.semantics.torch.torch_state import ambient_modes
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import TensorPredicate


def watched(fn: Any, *args: Any) -> tuple[Any, Trace]:
    return watch_call(fn, (), args, {})


def ops(trace: Trace) -> list[str]:
    return [event.name for event in trace.events if isinstance(event, Op)]


X = torch.arange(4.0) + 1

NODES: dict[str, tuple[Any, list[str]]] = {
    "function": (lambda x: torch.relu(x), ["torch.relu"]),
    "functional": (lambda x: F.softmax(x.reshape(1, 4), 1), ["Tensor.reshape", "F.softmax"]),
    "operator": (lambda x: 1 - x, ["Tensor.rsub"]),
    "in place": (lambda x: x.clone().add_(1), ["Tensor.clone", "Tensor.add_"]),
    "subscript": (lambda x: x[1:], ["Tensor.__getitem__"]),
    "several results": (lambda x: x.sort(), ["Tensor.sort"]),
    "factory": (lambda x: torch.zeros(2), ["torch.zeros"]),
    "metadata": (lambda x: (x.shape[0], x.dim(), x.dtype), []),
    "fetch": (lambda x: x[0].item(), ["Tensor.__getitem__"]),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "names"), NODES.values(), ids=NODES)
def test_one_node_for_each_call(fn: Any, names: list[str]) -> None:
    result, trace = watched(fn, X)
    expected = fn(X)
    assert repr(result) == repr(expected)
    assert [n.replace("__rsub__", "rsub") for n in ops(trace)] == names
    assert trace.refusals == []


def test_an_in_place_result_is_the_tensor_it_was() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.clone()
        return y.mul_(2)

    _, trace = watched(step, X)
    clone, mul = (e for e in trace.events if isinstance(e, Op))
    assert clone.outs == mul.outs == (mul.args[0],)


def test_modes_are_recorded_for_each_node() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = x * 2
        return x + 1

    _, trace = watched(step, X)
    assert [e.modes.grad for e in trace.events if isinstance(e, Op)] == [False, True]
    assert ambient_modes().grad


def test_a_decision_on_a_tensor_is_an_assertion() -> None:
    def step(x: torch.Tensor) -> int:
        return 1 if x.sum() > 3 else 2

    result, trace = watched(step, X)
    assert result == 1
    (asserted,) = (e for e in trace.events if isinstance(e, TensorPredicate))
    assert (asserted.outcome, asserted.after) == (True, 2)
    assert asserted.place.line == step.__code__.co_firstlineno + 1


REFUSED: dict[str, tuple[Any, str, str]] = {
    "data_ptr": (lambda x: x.data_ptr(), "Tensor.data_ptr inside the step", ""),
    "data": (lambda x: setattr(x, "data", x.data[:1]), "'x.data = y' replaces a tensor's storage", "x.copy_(y)"),
}


@pytest.mark.parametrize(("fn", "what", "remedy"), REFUSED.values(), ids=REFUSED)
def test_refusals_say_what_where_and_the_way_out(fn: Any, what: str, remedy: str) -> None:
    x = X.clone()
    result, trace = watched(fn, x)
    if result is not None and "ptr" not in what:
        assert repr(result) == repr(fn(X.clone()))
    found = [r for r in trace.refusals if what in r.what]
    assert found, trace.refusals
    assert remedy in found[0].remedy
    assert found[0].place.file == __file__
    assert found[0].why


@pytest.mark.parametrize(
    ("func", "name"),
    [
        (torch.Tensor.add_, "Tensor.add_"),
        (torch.relu, "torch.relu"),
        (F.linear, "F.linear"),
        (F.cross_entropy, "F.cross_entropy"),
        (torch.Tensor.grad.__get__, "Tensor.grad.__get__"),
        (torch.Tensor.backward, "Tensor.backward"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_names(func: Any, name: str) -> None:
    assert call_name(func) == name


def test_whether_a_gradient_exists_is_assumed_where_the_program_asks() -> None:
    """Without a backward pass, or a write of gradients, in the step."""

    def step(p: torch.nn.Parameter) -> torch.Tensor:
        return torch.zeros_like(p) if p.grad is None else p.grad.clone()

    weight = torch.nn.Parameter(torch.ones(3))
    fast = torchjanus.speculate(step, executor="replay")
    for _ in range(4):
        fast(weight)
    weight.grad = torch.ones(3)
    assert fast(weight).tolist() == [1.0] * 3
    for _ in range(4):
        fast(weight)
    assert fast.statistics().speculated >= 2
    weight.grad = None
    assert fast(weight).tolist() == [0.0] * 3
