"""Staged graphs as programs of ``torch.export`` and as ONNX models, against eager on both sides of branches."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from torch import nn

import torchjanus
from tests.semantics.staged import test_control_flow as flow
from tests.semantics.staged.test_graph_functions import TreeRNN, power_of_tensors, tree
from torchjanus import Rep, staged


def needs_onnx() -> None:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)


# torch.onnx takes seconds for each graph: only ``test_programs_of_torch_and_models_of_onnx`` is always run.
BACKENDS = ["export", pytest.param("onnx", marks=pytest.mark.slow)]


def agrees(backend, fn, known, inputs):
    """The graph gives what ``fn`` gives for each of the inputs."""
    if backend == "onnx":
        needs_onnx()
    graph = staged(fn, backend=backend)(*known)
    for args in inputs:
        torch.testing.assert_close(graph(*args), fn(*args), rtol=1e-5, atol=1e-6)
    return graph


def switched(x):
    k = 2 if x.sum() > 0 else 3.5
    return (x * k if x[0] > 0 else x + k), k


def numbers(n, r):
    """Python's arithmetic, of every kind that is exported."""
    whole = n // 3 + n % 4 - (-n) ** 2 * 2 + abs(n)
    real = r / 7 - r % 2.5 + r // 0.3 + n
    truth = not n > 2 or (r < 0) == (n == 1)
    return whole, real, truth, min(n, 3), max(r, 0.5), bool(n), float(n), len(range(n, 9, 2)), True + n


def with_tensors(x, n, r):
    """A number as an operand: the result's dtype is as with Python's own."""
    return (
        torch.select(x, 0, n),
        x * n,
        x + r,
        n - x,
        x > n,
        x < r,
        x / n,
        x.long() * r,
        x.int() + n,
        x.sum() * r,
        (x > 0) * n,
        torch.select(x, 0, n - 3),
    )


def scaled(x, scale):
    total = torch.zeros(3)
    for row in x:
        total = total + row * scale
        if total.sum() > 20:
            total = total / 2
    return total, {"length": x.shape[0]}


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.norm = nn.Linear(3, 4), nn.Linear(4, 2), nn.LayerNorm(4)

    def forward(self, x):
        x = torch.relu(self.norm(self.first(x)))
        if x.mean() > 0.5:
            x = x - x.mean()
        return self.second(x).softmax(-1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers(backend):
    known = Rep(int), Rep(float)
    agrees(backend, numbers, known, [(n, r) for n in (-7, 0, 1, 2, 5) for r in (-2.5, 0.0, 3.75)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_numbers_with_tensors(backend):
    known = torch.ones(3), Rep(int), Rep(float)
    agrees(backend, with_tensors, known, [(x, n, r) for (x,) in flow.VECTORS for n in (1, 2) for r in (-1.5, 0.1)])


def switched_sign(x):
    k = 2 if x.sum() > 0 else 3
    return (x * k if x[0] > 0 else x + k), k


def elements(x, n, m):
    return x[n], x[:, m], x[n, m], x[..., m, None], x[None, n, 1:], x[n][m], x[-1, m - 4], x[1:, 0, ...][n - 1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_elements_at_numbers(backend):
    known = torch.ones(3, 4), Rep(int), Rep(int)
    agrees(backend, elements, known, [(torch.arange(12.0).reshape(3, 4) * k, n, k) for n in (1, 2) for k in (0, 1, 3)])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_switch(backend):
    graph = agrees(backend, switched_sign, (torch.ones(3),), flow.VECTORS)
    assert "switch" in flow.regions(graph)


def one_of_each(x, n):
    for k in range(n):
        x = x + k
    if x.sum() > 5:
        x = x / 2
    return x


def switch_in_a_loop(x, n):
    for k in range(n):
        if x.sum() > 5:
            x = x / 2
        else:
            x = x + k
    return x


@pytest.mark.parametrize(
    "fn", [flow.counted, flow.collatz, flow.with_break, flow.with_return, flow.nested_loops], ids=lambda f: f.__name__
)
def test_loops(fn):
    agrees("export", fn, (torch.ones(3), Rep(int)), flow.with_numbers())


def regions_within_each_other(x, n):
    for k in range(n):
        if x.sum() > 5:
            for j in range(k):
                x = x / 2
                if x[0] < 1:
                    x = x + j
        else:
            x = x + k
    if n > 2:
        while x.sum() < 4:
            x = x * 2 + 1
    return x, n


@pytest.mark.slow
@pytest.mark.parametrize(
    "fn", [one_of_each, regions_within_each_other, flow.with_break, flow.with_return, flow.nested_loops, flow.collatz],
    ids=lambda fn: fn.__name__,
)  # fmt: skip
def test_loops_and_switches_of_onnx(fn):
    agrees("onnx", fn, (torch.ones(3), Rep(int)), flow.with_numbers())


def test_a_loop_over_a_tensor_of_any_length():
    torch.manual_seed(0)
    inputs = [(torch.randn(length, 3), scale) for length in (2, 3, 8) for scale in (0.5, -1.0, 9.0)]
    agrees("export", scaled, (Rep(torch.float32, ("T", 3)), Rep(float)), inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_model(backend):
    torch.manual_seed(0)
    model = Classifier().eval()
    with torch.no_grad():
        agrees(backend, model, (Rep(torch.float32, ("N", 3)),), [(torch.randn(n, 3) * n,) for n in (2, 3, 7)])


def test_programs_of_torch_and_models_of_onnx():
    graph = staged(flow.counted)(torch.ones(3), Rep(int))
    program = graph.exported()
    assert isinstance(program, torch.export.ExportedProgram)
    torch.testing.assert_close(program.module()(torch.ones(3), torch.tensor(4)), flow.counted(torch.ones(3), 4))
    needs_onnx()
    graph = staged(switch_in_a_loop, backend="onnx")(torch.ones(3), Rep(int))
    for x, n in flow.with_numbers():
        torch.testing.assert_close(graph(x, n), switch_in_a_loop(x, n), rtol=1e-5, atol=1e-6)
    model = graph.onnx()
    importlib.import_module("onnx").checker.check_model(model)
    [loop] = [node for node in model.graph.node if node.op_type == "Loop"]
    [body] = [attribute.g for attribute in loop.attribute if attribute.name == "body"]
    assert "If" in {node.op_type for node in body.node}


def test_parameters_stay_parameters():
    model = Classifier().eval()
    with torch.no_grad():
        program = staged(model)(torch.ones(2, 3)).exported()
    assert {id(one) for one in program.parameters()} == {id(one) for one in model.parameters()}


@pytest.mark.parametrize(
    ("fn", "known", "why"),
    [
        (flow.raising, (torch.ones(3),), "raises no errors"),
        (flow.in_place, (torch.ones(3),), "writes nothing in place"),
        (TreeRNN(), (Rep(tree(2)),), "no recursion|tensors and numbers"),
        (lambda x, n: power_of_tensors(x, n), (torch.ones(2), Rep(int)), "no recursion"),
        (switched, (torch.ones(3),), "it has no number"),
        (lambda x, n: x / 1 + 1 / n, (torch.ones(3), Rep(int)), "truediv"),
        (lambda x, n: torch.zeros(n), (torch.ones(3), Rep(int)), "zeros"),
    ],
    ids=["raise", "in_place", "trees", "recursion", "number", "division", "sizes"],
)
def test_what_an_exported_graph_has_no_words_for_is_refused(fn, known, why):
    graph = staged(fn)(*known)
    with pytest.raises(torchjanus.Unsupported, match=why):
        graph.exported()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    if "onnx" not in sys.modules:
        monkeypatch.setitem(sys.modules, "onnx", None)
    graph = staged(flow.counted)(torch.ones(3), Rep(int))
    with pytest.raises(torchjanus.Unsupported, match=r"takes the package onnx.*torchjanus\[onnx\]"):
        graph.onnx()


def test_random_numbers_are_not_those_of_onnx():
    needs_onnx()
    with pytest.raises(torchjanus.Unsupported, match="random"):
        staged(lambda x: x + torch.rand(3))(torch.ones(3)).onnx()
