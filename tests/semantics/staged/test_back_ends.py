"""Staged functions by back ends for whole steps: what is between the graph's control flow is theirs, and the results
are eager's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import torchjanus
from tests.sampling import every
from torchjanus import Rep

SQUARE = Rep(torch.float32, ("N", 3))
WEIGHT = torch.randn(3, 3, generator=torch.Generator().manual_seed(1))


def settle(x, w, n):
    """A loop, a switch with several operations on both sides, and straight code around them."""
    y = torch.tanh(x @ w) + x
    k = 0
    for k in range(n):
        if y.sum() > 0:
            y = torch.relu(y - 0.5) * 0.9
            y = y - y.mean()
        else:
            y = (y + 0.3) @ w
            y = y.sigmoid() + 0.1
    return (y * y).sum(), k


def sizes_of_what_is_computed(x, w, n):
    y = torch.cat([x, x * 2])
    y = y.reshape(y.shape[0] * 3) * y.shape[0]
    return y.sum() + n, y.shape[0]


def several_results(x, w, n):
    values, places = (x * 2).sort(dim=1)
    first, second, third = values.unbind(1)
    if first.sum() + second.sum() > 0:
        return first * third, places
    return second - third, places + 1


def in_place(x, w, n):
    y = x.clone()
    row = x[:, 0]
    for k in range(n):
        row = y[:, 0]
        row += k
        y[:, 1] = row * 2
        if row.sum() > 3:
            y.mul_(0.5)
            y.sub_(x)
    return y, row


def without_gradients(x, w, n):
    with torch.no_grad():
        scale = x.abs().sum() + 1
        scale = scale.sqrt()
    y = x / scale
    y = y @ w
    if n > 2:
        y = y.detach() + y * 2
    return y.sum(), n


def drawn(x, w, n):
    y = torch.dropout(x, 0.5, True) + torch.rand_like(x)
    for _ in range(n):
        y = y + torch.randn(3)
        y = y * 0.5
    return y.sum(), n


@torchjanus.stage
def halved(y, w, n):
    if n <= 0:
        return y
    if y.sum() > 0:
        return halved(torch.tanh(y @ w) - 0.1, w, n - 1)
    return halved(y * 0.5 + 0.2, w, n - 2) + y


def recursion(x, w, n):
    return halved(x, w, n).sum() * 2, n


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def own_function(x, w, n):
    y = Square.apply(x @ w) + 1
    y = y * 0.5
    if n > 2:
        y = Square.apply(y) - n
        y = y * 2
    return y.sum(), n


PROGRAMS = [settle, sizes_of_what_is_computed, several_results, in_place, without_gradients, drawn, recursion,
            own_function]  # fmt: skip


def inputs(sizes):
    drawn = torch.Generator().manual_seed(0)
    for number, size in enumerate(sizes):
        x = torch.randn(size, 3, generator=drawn) + (-1.0) ** number
        yield x.requires_grad_(number % 3 != 2), WEIGHT.clone().requires_grad_(), number % 5


def agree(fn, known, backend, given, times=1):
    """Results, gradients and what is drawn are eager's."""
    staged = torchjanus.staged(fn, backend=backend)(*known)
    for args in [*given] * times:
        found = []
        for run in (fn, staged):
            mine = [copy.deepcopy(one) for one in args]
            leaves = [one for one in mine if isinstance(one, torch.Tensor) and one.requires_grad]
            torch.manual_seed(0)
            result = run(*mine)
            if result[0].requires_grad:
                result[0].sum().backward()
            found.append((result, [one.grad for one in leaves], torch.rand(1)))
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    return staged


@pytest.mark.parametrize("sizes", [[4] * 10, [4, 2, 4, 5, 1, 3, 2, 6, 7, 4]], ids=["one size", "any sizes"])
@pytest.mark.parametrize("fn", every(2, PROGRAMS), ids=lambda fn: fn.__name__)
def test_results_and_gradients(fn, sizes):
    known = (SQUARE, Rep(WEIGHT), Rep(int))
    staged = agree(fn, known, "eager", list(inputs(sizes)), times=2)
    served = [one for one in staged.pieces() if one.served]
    assert served, staged.pieces()
    if len({*sizes}) == 1 and fn is not several_results:
        assert any(one.by == "eager" for one in served), [*map(str, staged.pieces())]


def test_a_function_that_takes_a_graph():
    seen = []

    def mine(graph, examples):
        seen.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    staged = agree(settle, (SQUARE, Rep(WEIGHT), Rep(int)), mine, list(inputs([4] * 10)), times=3)
    assert len(seen) >= 4  # what is before the loop, both arms, what is after it; and backward graphs
    assert {one.by.rpartition(".")[2] for one in staged.pieces()} == {"mine"}
    lines = [one.place.line - settle.__code__.co_firstlineno for one in staged.pieces()]
    assert sorted(lines) == [2, 5, 6, 9, 11], lines


def test_inductor():
    def small(x, n):
        for _ in range(n):
            x = torch.tanh(x) * 0.9
            x = x + 0.1
        return x

    staged = torchjanus.staged(small, backend="inductor")(torch.ones(4), Rep(int))
    for _ in range(4):
        torch.testing.assert_close(staged(torch.ones(4), 4), small(torch.ones(4), 4))
        staged.wait()
    [piece] = staged.pieces()
    assert (piece.by, piece.why) == ("inductor", "")


def test_one_that_is_wrong_is_not_used():
    def wrong(graph, examples):
        return lambda *given: [one * 1.5 if one.is_floating_point() else one for one in graph(*given)]

    staged = agree(settle, (SQUARE, Rep(WEIGHT), Rep(int)), wrong, list(inputs([4] * 10)), times=3)
    # Of a decision only its truth leaves the piece, which this back end gives as it is. The name of the back end has a
    # number where another function has the same name.
    assert [one.by.rpartition(".")[2][:5] for one in staged.pieces() if not one.by.startswith("replay")] == ["wrong"]
    assert any("disagrees with replay" in one.why for one in staged.pieces()), [*map(str, staged.pieces())]


def test_one_that_raises_is_not_used():
    def raising(graph, examples):
        raise RuntimeError("no")

    staged = agree(settle, (SQUARE, Rep(WEIGHT), Rep(int)), raising, list(inputs([4] * 10)))
    assert {one.by for one in staged.pieces()} == {"replay"}
    assert all("RuntimeError: no" in one.why for one in staged.pieces()), [*map(str, staged.pieces())]


def test_sizes_that_vary_are_left_to_replay_and_that_is_said():
    def f(x, n):
        for _ in range(n):
            x = x * 2 + 1
        return x

    staged = torchjanus.staged(f, backend="eager")(SQUARE, Rep(int))
    for size in range(1, 12):
        assert torch.equal(staged(torch.ones(size, 3), 3), f(torch.ones(size, 3), 3))
    [piece] = staged.pieces()
    assert piece.by == "replay" and "sizes vary" in piece.why, piece
    assert piece.served > 10


def test_what_a_graph_does_not_hold_is_pythons_and_said():
    """Views of one operation leave the piece, with their backward pass still to come."""
    staged = agree(several_results, (SQUARE, Rep(WEIGHT), Rep(int)), "eager", list(inputs([4] * 10)), times=2)
    first = staged.pieces()[0]
    assert (first.by, first.served) == ("Python", 0)
    assert first.why.startswith(f"{first.place}: a tensor leaves the step")
    assert "Return a clone of it." in first.why


def test_gradients_of_gradients():
    def f(x, n):
        for _ in range(n):
            x = x * x + 1
            x = x.sin()
        return x.sum()

    staged = torchjanus.staged(f, backend="eager")(torch.ones(3, requires_grad=True), Rep(int))
    for _ in range(8):
        x = torch.randn(3, requires_grad=True)
        found = []
        for run in (f, staged):
            [first] = torch.autograd.grad(run(x, 3), x, create_graph=True)
            found.append(torch.autograd.grad((first * first).sum(), x))
        torch.testing.assert_close(found[1], found[0])


def test_errors_of_the_program():
    def f(x, n):
        y = x.reshape(n, 2) * 2
        y = y + 1
        assert y.sum() > 0, "small"
        return y.sum()

    staged = torchjanus.staged(f, backend="eager")(torch.ones(4), Rep(int))
    for _ in range(8):
        assert torch.equal(staged(torch.ones(4), 2), f(torch.ones(4), 2))
        with pytest.raises(AssertionError, match="small"):
            staged(-torch.ones(4) * 3, 2)
    with pytest.raises(RuntimeError, match="is invalid for input of size 4"):
        staged(torch.ones(4), 3)


def test_a_module_that_trains():
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))

    def loss(model, x, n):
        for _ in range(n):
            x = x + model(x)
        return (x * x).mean()

    losses = []
    for backend in ("replay", "aot_eager"):
        mine = copy.deepcopy(model)
        staged = torchjanus.staged(loss, backend=backend)(mine, SQUARE, Rep(int))
        optimizer = torch.optim.SGD(mine.parameters(), lr=0.1)
        found = []
        for x, _, n in inputs([4] * 12):
            optimizer.zero_grad()
            value = staged(mine, x.detach(), n)
            if value.requires_grad:
                value.backward()
            optimizer.step()
            found.append(value.detach().clone())
        losses.append(found)
    torch.testing.assert_close(losses[1], losses[0])


def test_recursion_while_pieces_are_made():
    """A function's body is put together in pieces while calls of it around that are still being run."""

    @torchjanus.stage
    def down(x, n):
        if n == 0:
            return x
        y = x * 0.5 + 1
        y = down(y * 2, n - 1) + x
        y = y - 0.1
        z = down(y * 0.3 + 2, n - 1)
        return z * 2 - y

    staged = torchjanus.staged(lambda x, n: down(x, n), backend="eager")(torch.ones(2), Rep(int))
    for n in (3, 0, 1, 4, 2, 3, 3):
        torch.testing.assert_close(staged(torch.ones(2), n), down(torch.ones(2), n))
    assert all(one.by == "eager" for one in staged.pieces()), [*map(str, staged.pieces())]


def test_names_that_there_are_not():
    with pytest.raises(torchjanus.Unsupported, match=r"no back end 'lisp'.* Staged functions also have 'replay', "):
        torchjanus.staged(settle, backend="lisp")
    with pytest.raises(torchjanus.Unsupported, match="neither"):
        torchjanus.staged(settle, backend=3)
