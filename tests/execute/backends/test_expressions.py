"""S-expressions: the paper's figures, their interpreter, and their compiler to C++, against eager."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import nn

import torchjanus
from tests.sampling import every
from tests.semantics.staged import test_control_flow as flow
from tests.semantics.staged.test_graph_functions import ChildSum, Tree, TreeLSTM, TreeRNN, bush, staged_power, tree
from torchjanus import Rep, staged

BACKENDS = ["expressions", pytest.param("cpp", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no g++"))]


def power(n, k):
    if k == 0:
        return 1
    else:
        return n * power(n, k - 1)


def run(x):
    return power(x, 2)


def add_one(x):
    return x + 1


def aggregate(x):
    ret = 0
    while x > 0:
        ret = ret + x
        x = x - 1
    return ret


def returns_in_both(x):
    if x > 0:
        return x
    else:
        return -x


def same(one: str, other: str) -> bool:
    return one.split() == other.split()


# -- the paper's figures --------------------------------------------------------------------------------------------


def test_figure_6_power_with_a_staged_base():
    text = staged(run)(Rep(int)).expressions()
    assert same(text, "(program (tensors) (def run (in1) (begin (let x0 (* in1 1) (let x1 (* in1 x0) x1)))))")


def test_figure_7_staging_by_type():
    assert add_one(1) == 2
    assert add_one(2.0) == 3.0
    text = staged(add_one)(Rep(int)).expressions()
    assert same(text, "(program (tensors) (def add_one (in1) (begin (let x0 (+ in1 1) x0))))")


def test_figure_8_both_arms_return():
    text = staged(returns_in_both)(Rep(int)).expressions()
    assert same(
        text,
        """(program (tensors) (def returns_in_both (in1) (begin
             (let x0 (> in1 0) (let x2 (if x0 (begin in1) (begin (let x1 (neg in1) x1))) x2)))))""",
    )


def test_figure_9_recursive_functions():
    text = staged(lambda x, n: staged_power(x, n))(Rep(int), Rep(int)).expressions()
    assert same(
        text,
        """(program (tensors)
             (def staged_power (in1 in2) (begin
               (let x0 (= in2 0)
               (let x4 (if x0 (begin 1) (begin
                 (let x1 (- in2 1) (let x2 (staged_power in1 x1) (let x3 (* in1 x2) x3)))))
               x4))))
             (def lambda (in1 in2) (begin (let x0 (staged_power in1 in2) x0))))""",
    )


def test_figure_10_a_staged_loop():
    text = staged(aggregate)(Rep(int)).expressions()
    assert same(
        text,
        """(program (tensors) (def aggregate (in1) (begin
             (let (x5 _x) (loop (x0 x1) (0 in1)
               (begin (let x2 (> x1 0) x2))
               (begin (let x3 (+ x0 x1) (let x4 (- x1 1) (values x3 x4)))))
             x5))))""".replace("_x", text.split("(let (x5 ")[1].split(")")[0]),
    )


def test_figures_run():
    for backend in ("replay", "expressions"):
        assert staged(run, backend=backend)(Rep(int))(-7) == 49
        assert [staged(aggregate, backend=backend)(Rep(int))(n) for n in (0, 4, 10)] == [0, 10, 55]
        assert [staged(returns_in_both, backend=backend)(Rep(int))(n) for n in (-3, 3)] == [3, 3]


@pytest.mark.parametrize("backend", BACKENDS)
def test_recursion_of_numbers(backend):
    both = staged(lambda x, n: staged_power(x, n), backend=backend)(Rep(int), Rep(int))
    assert [both(2, n) for n in range(5)] == [1, 2, 4, 8, 16]


# -- back ends against eager ----------------------------------------------------------------------------------------


def gradients(module: nn.Module, run, *args):
    module.zero_grad()
    loss = run(*args)
    loss.backward()
    return [loss.detach(), *(None if p.grad is None else p.grad.clone() for p in module.parameters())]


class SumLSTM(TreeLSTM):
    def forward(self, node):
        h, c = self.visit(node)
        return h.sum() + c.sum()


CPP_TREES = [] if shutil.which("g++") is None else [("cpp", SumLSTM, tree), ("cpp", ChildSum, bush)]


class RNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.i, self.h = nn.Linear(3, 5), nn.Linear(5, 5)

    def forward(self, xs, h):
        for x in xs:
            h = torch.tanh(self.i(x) + self.h(h))
            if h.sum() > 1:
                h = h / 2
        return h.sum()


@pytest.mark.parametrize(
    ("backend", "model", "grow"),
    [
        ("expressions", TreeRNN, tree),
        ("expressions", ChildSum, bush),
        ("expressions", SumLSTM, tree),
        *every(2, CPP_TREES),
    ],
)
def test_trees(backend, model, grow):
    torch.manual_seed(0)
    module = model()
    graph = staged(module, backend=backend)(Rep(grow(3)))
    for depth in range(6):
        node = grow(depth)
        torch.testing.assert_close(
            gradients(module, graph, node), gradients(module, module, node), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_recurrent_network_of_any_length(backend):
    torch.manual_seed(0)
    module = RNN()
    graph = staged(module, backend=backend)(Rep(torch.float32, ("T", 3)), torch.zeros(5))
    for length in (1, 2, 7):
        xs, h = torch.randn(length, 3), torch.randn(5)
        found, expected = gradients(module, graph, xs, h), gradients(module, module, xs, h)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fn", [flow.counted, flow.with_break, flow.with_return, flow.tensor_decides, flow.several])
def test_control_flow(fn):
    def g(x, n):
        found = fn(x, n)
        return found[0] if isinstance(found, tuple) else found

    graph = staged(g, backend="expressions")(torch.ones(3), Rep(int))
    for x, n in flow.with_numbers():
        torch.testing.assert_close(graph(x, n), g(x, n), rtol=0, atol=0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_control_flow_in_cpp():
    graph = staged(flow.with_return, backend="cpp")(torch.ones(3), Rep(int))
    for x, n in flow.with_numbers():
        torch.testing.assert_close(graph(x, n), flow.with_return(x, n))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_results_that_are_no_numbers(backend):
    graph = staged(flow.counted, backend=backend)(torch.ones(3), Rep(int))
    x = torch.randn(3, requires_grad=True)
    weights = torch.arange(3.0)
    found = torch.autograd.grad((graph(x, 4) * weights * x).sum() + graph(x, 2).sum(), x)
    expected = torch.autograd.grad((flow.counted(x, 4) * weights * x).sum() + flow.counted(x, 2).sum(), x)
    torch.testing.assert_close(found, expected)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_what_cpp_has_no_words_for_is_refused():
    with pytest.raises(torchjanus.Unsupported, match=r"C\+\+ has no"):
        staged(lambda x: x.cumsum(0), backend="cpp")(torch.ones(3))
    graph = staged(lambda x: x * 2, backend="cpp")(torch.ones(3, dtype=torch.float64))
    with pytest.raises(torchjanus.Unsupported, match="float32"):
        graph(torch.ones(3, dtype=torch.float64))
    divided = staged(lambda n: 1 / n, backend="cpp")(Rep(int))
    with pytest.raises(RuntimeError, match="division by zero"):
        divided(0)


def test_what_expressions_have_no_words_for_is_refused():
    with pytest.raises(torchjanus.Unsupported, match="pure"):
        staged(lambda x: x.add_(1), backend="expressions")(torch.ones(3))
    with pytest.raises(torchjanus.Unsupported, match="no back end"):
        staged(run, backend="lisp")


def test_an_attribute_of_none_raises():
    module = TreeRNN()
    for backend in ("replay", "expressions"):
        graph = staged(module, backend=backend)(Rep(tree(2)))
        with pytest.raises(AttributeError):
            graph(Tree(torch.ones(4), Tree(torch.ones(4)), None))
