"""Staged control flow: both arms and one iteration become the graph, which does what eager does on each input."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchjanus
from tests.semantics.staged.checking import agree, asserting, grads_agree
from torchjanus import Rep
from torchjanus.tracegraph.graph import is_merged, walk

X = torch.ones(3)
VECTORS = [(torch.tensor(v),) for v in ([1.0, 2.0, 3.0], [-1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [4.0, -9.0, 1.0])]


def with_numbers(most: int = 6) -> list[tuple[Any, ...]]:
    return [(vector, n) for (vector,) in VECTORS for n in range(most)]


def regions(staged: torchjanus.StagedGraph) -> list[str]:
    return [node.kind for node in walk(staged.graph.body) if is_merged(node)]


# -- if -----------------------------------------------------------------------------------------------------------


def both_arms(x):
    y = x * 2
    if y.sum() > 0:
        y, z = y + 1, 3
    else:
        y, z = y - 1, 4
    return y, z


def one_arm(x):
    if x.max() > 2:
        x = x / 2
    return x


def nested(x):
    if x[0] > 0:
        if x[1] > 1.5:
            return x + 1
        x = x * 3
    elif x[2] > 0:
        x = -x
    else:
        return x - 1, x
    return x, x * 2


def early_return(x):
    if x.sum() > 3:
        return x * 10
    y = x + 1
    if y.sum() < 0:
        return -y
    return y / 2


def logic(x):
    a = x[0] > 0 and x[1] > 0
    b = x[0] > 3 or x[2] > 2
    if not a and (b or 0 < x[2] < 2):
        return x + 1
    return x - 1 if b else x


def in_place(x):
    y = torch.zeros(3)
    if x.sum() > 0:
        y[1] = x[1]
        y += 1
    else:
        y.sub_(x)
    return y


def conditional_expressions(x):
    k = 2 if x.sum() > 0 else 3.5
    return (x * k if x[0] > 0 else x + k), k


def containers(x):
    state = {"h": x, "n": [0, x]}
    pair = (x, 1)
    if x.sum() > 0:
        state["h"] = x * 2
        state["n"][0] = 7
        pair = (x + 1, 2)
    return state, pair


class Box:
    def __init__(self, value):
        self.value = value
        self.count = 0

    def grow(self, by):
        if by > 1:
            self.value = self.value * by
            self.count += 1
        return self.value


def objects(x):
    box = Box(x)
    box.grow(x.sum())
    box.grow(x[0] * 3)
    return box.value, box.count


def raising(x):
    if x.sum() > 3:
        raise ValueError("too large")
    return x + 1


def not_always_set(x):
    if x.sum() > 0:
        y = x * 2
    return y + 1


def one_of_three(x):
    return x * (3 if x[0] > 3 else 2 if x[0] > 0 else 1)


ONE = [
    both_arms, one_arm, early_return, logic, in_place, conditional_expressions, containers, objects, raising, asserting,
    one_of_three,
]  # fmt: skip


@pytest.mark.parametrize("fn", ONE, ids=lambda fn: fn.__name__)
def test_if(fn):
    assert "switch" in regions(agree(fn, (X,), *VECTORS)) or fn is asserting


def test_a_variable_that_is_not_always_set_raises_when_it_is_used():
    staged = agree(not_always_set, (X,), (torch.ones(3),))
    with pytest.raises(UnboundLocalError, match="'y'"):
        staged(-torch.ones(3))


def test_returns_of_different_kinds_are_refused():
    with pytest.raises(torchjanus.NotStaged) as refused:
        torchjanus.staged(nested)(X)
    assert refused.value.refusal.reason == "staged-left"
    assert "nested" in refused.value.refusal.place.function


@pytest.mark.parametrize("fn", [both_arms, one_arm, early_return], ids=lambda fn: fn.__name__)
def test_gradients_of_arms(fn):
    def first(x):
        found = fn(x)
        return found[0] if isinstance(found, tuple) else found

    grads_agree(first, (torch.ones(3, requires_grad=True),), *[(v.clone().requires_grad_(),) for (v,) in VECTORS])


# -- loops --------------------------------------------------------------------------------------------------------


def counted(x, n):
    for k in range(n):
        x = x + k
    return x


def collatz(x, n):
    n = n + 1
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps, x


def with_break(x, n):
    i = 0
    while i < n:
        i += 1
        if x.sum() > 2:
            x = x - 0.5
            continue
        x = x * 1.5
        if x.min() < -100:
            break
    else:
        x = x + 1000
    return x, i


def with_return(x, n):
    for k in range(n):
        if x[0] > k:
            return x * k
        x = x + 1 if x[1] > 0 and k < 3 else x - 1
    return x


def nested_loops(x, n):
    total = torch.zeros(())
    for i in range(n):
        for j in range(i):
            if j % 2:
                continue
            total = total + x.sum() * j
            if total > 5:
                break
        else:
            total = total - 1
    return total


def tensor_decides(x, n):
    count = 0
    while x.norm() > 1:
        x = x / 2
        count += 1
    return x, count + n


def last_of_loop(x, n):
    for k in range(n):
        y = x * k
    return y


def in_place_in_a_loop(x, n):
    out = torch.zeros(8)
    for k in range(n):
        out[k] = x[0] * k
        x += 1
    return out, x


def several(x, n):
    a, b = x, x * 2
    for _ in range(n):
        a, b = b, a + b
    return a, b


def pairs(x, n):
    state = (x, 0)
    for k in range(n):
        state = (state[0] * 2, state[1] + k)
    return state


def ordinary_with_staged_break(x, n):
    for k in range(4):
        if x.sum() > 5 + n:
            break
        if x[0] < 0:
            x = x + 2
            continue
        x = x * 2
    else:
        x = -x
    return x


def endless(x, n):
    while True:
        x = x + 1
        n = n - 1
        if n < 0 or x[0] > 3:
            return x, n


LOOPS = [
    counted, collatz, with_break, with_return, nested_loops, tensor_decides, in_place_in_a_loop, several, pairs,
    ordinary_with_staged_break, endless,
]  # fmt: skip


@pytest.mark.parametrize("fn", LOOPS, ids=lambda fn: fn.__name__)
def test_loops(fn):
    staged = agree(fn, (X, Rep(int)), *with_numbers())
    assert ("loop" in regions(staged)) is (fn is not ordinary_with_staged_break)


def test_a_loop_that_never_ran_leaves_its_variables_unset():
    staged = agree(last_of_loop, (X, Rep(int)), (torch.ones(3), 2), (torch.ones(3), 5))
    with pytest.raises(UnboundLocalError, match="'y'"):
        staged(torch.ones(3), 0)


@pytest.mark.parametrize("fn", [counted, with_return, nested_loops], ids=lambda fn: fn.__name__)
def test_gradients_of_loops(fn):
    grads_agree(fn, (X, Rep(int)), *[(v.clone().requires_grad_(), n) for v, n in with_numbers(4)])


def test_a_loop_over_rows_of_unknown_number():
    def scan(xs, h):
        for x in xs:
            h = torch.tanh(h + x)
        for k, x in enumerate(xs):
            h = h + x * k
        return h, len(xs)

    known = (Rep(torch.float32, ("T", 3)), X)
    staged = agree(scan, known, *[(torch.randn(t, 3), torch.randn(3)) for t in (0, 1, 2, 5)])
    assert regions(staged) == ["loop", "loop"]


def test_known_things_run_now():
    def f(x, n, names):
        for name in names:
            if name == "twice" and n > 2:
                x = x * 2
            elif name == "more":
                x = x + n
        return x

    staged = agree(f, (X, 3, ["twice", "more"]), (X, 3, ["twice", "more"]))
    assert regions(staged) == []
    assert len(list(walk(staged.graph.body))) == 2
    with pytest.raises(torchjanus.Unsupported):
        staged(X, 2, ["twice", "more"])


def test_one_iteration_and_each_arm_are_run_once():
    runs = []

    def f(x, n):
        for _ in range(n):
            runs.append(1) if False else note()
            if x.sum() > 0:
                x = x + 1
            else:
                x = x - 1
        return x

    def note():
        counted_runs.append(len(counted_runs))

    counted_runs: list[int] = []
    with pytest.raises(torchjanus.NotStaged):  # it changes a list from before the call: once is not n times
        torchjanus.staged(f)(X, Rep(int))


_OUTSIDE = itertools.count(1)


def test_an_iterator_from_before_the_call_is_not_advanced_once_for_all_calls() -> None:
    def zipped(outside: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: sum((row * weight for row, weight in zip([x[0], x[1]], outside)), torch.zeros(3))

    def by_a_global(x: torch.Tensor) -> torch.Tensor:
        return x * next(_OUTSIDE)

    made = (itertools.count(1), iter([1.0, 2.0, 3.0]), (k for k in range(9)), iter({1: 2, 3: 4, 5: 6}), iter(range(9)))
    for fn in (*map(zipped, made), by_a_global):
        with pytest.raises(torchjanus.NotStaged, match="from before the call is changed"):
            torchjanus.staged(fn)(torch.ones(2, 3))
