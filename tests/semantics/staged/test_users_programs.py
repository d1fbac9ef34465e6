"""Programs as users of Snek and AutoGraph write them, staged once, against eager on ten inputs or more: decoding,
iteration until something converges, recurrent networks, trees, sorting."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.semantics.staged.checking import agree, first_of, grads_agree
from torchjanus import Rep, stage

_DRAWN = torch.Generator().manual_seed(0)


def randn(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=_DRAWN)


TABLE = randn(7, 7)
CELL = nn.GRUCell(3, 4)


def beam_step(logits, scores, eos):
    total = scores[:, None] + torch.log_softmax(logits, -1)
    best, flat = total.flatten().topk(3)
    tokens = flat % 7
    parents = flat // 7
    finished = []
    for k in range(3):
        if tokens[k] == eos:
            best[k] = best[k] / 2
            finished.append(True)
        else:
            finished.append(False)
    if all(finished):
        return best, tokens, parents, -1
    done = 0
    for f in finished:
        if f:
            done += 1
    return best, tokens, parents, done


def beam_search(first, most):
    beams = torch.zeros(2, 16, dtype=torch.long)
    scores = torch.tensor([0.0, -1e9])
    length = 0
    while length < most:
        logits = torch.log_softmax(first + TABLE[beams[:, length]], -1)
        total = (scores[:, None] + logits).view(-1)
        scores, flat = total.topk(2)
        beams = beams[flat // 7].clone()
        length += 1
        beams[:, length] = flat % 7
        if (beams[:, length] == 0).all():
            break
    return beams, scores, length


def newton(a):
    x = a if a > 1 else torch.ones(())
    steps = 0
    while abs(x * x - a) > 1e-3 * a and steps < 40:
        x = 0.5 * (x + a / x)
        steps += 1
    return x, steps


def dynamic_rnn(x, lengths):
    batch, steps, _ = x.shape
    h = x.new_zeros(batch, 4)
    outputs = x.new_zeros(batch, steps, 4)
    t = 0
    while t < steps:
        if t >= lengths.max():
            break
        new = CELL(x[:, t], h)
        alive = (t < lengths)[:, None]
        h = torch.where(alive, new, h)
        outputs[:, t] = h
        t += 1
    return outputs, h, t


def first_above(x, threshold):
    found = (-1, -1)
    looked = 0
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            looked += 1
            if x[i, j] > threshold:
                found = (i, j)
                break
        if found[0] >= 0:
            break
    return found, looked


def fizzbuzz(numbers):
    out = torch.zeros_like(numbers)
    fizz = buzz = both = 0
    for k, n in enumerate(numbers):
        if n % 15 == 0:
            both += 1
            out[k] = 3
        elif n % 5 == 0:
            buzz += 1
            out[k] = 2
        elif n % 3 == 0:
            fizz += 1
            out[k] = 1
        else:
            out[k] = -n
    return out, fizz, buzz, both


def collatz(n):
    steps = torch.zeros((), dtype=torch.long)
    peak = n
    while n != 1:
        n = 3 * n + 1 if n % 2 else n // 2
        if n > peak:
            peak = n
        steps += 1
    return steps, peak


def mandelbrot(cr, ci, most):
    zr, zi = torch.zeros_like(cr), torch.zeros_like(ci)
    counts = torch.zeros_like(cr, dtype=torch.int32)
    for k in range(most):
        alive = zr * zr + zi * zi <= 4
        if not alive.any():
            break
        zr, zi = torch.where(alive, zr * zr - zi * zi + cr, zr), torch.where(alive, 2 * zr * zi + ci, zi)
        counts += alive
    return counts


def kmeans(points, centers, most):
    shift = float("inf")
    repeated = 0
    while shift > 1e-4 and repeated < most:
        labels = torch.cdist(points, centers).argmin(1)
        new = []
        for c in range(3):
            mask = labels == c
            if mask.any():
                w = mask.float()[:, None]
                new.append((points * w).sum(0) / w.sum())
            else:
                new.append(centers[c])
        moved = torch.stack(new)
        shift = (moved - centers).norm().item()
        centers = moved
        repeated += 1
    return centers, repeated


def bubble_sort(x):
    x = x.clone()
    n = x.shape[0]
    for i in range(n):
        swapped = False
        for j in range(n - 1 - i):
            if x[j] > x[j + 1]:
                x[j], x[j + 1] = x[j + 1].clone(), x[j].clone()
                swapped = True
        if not swapped:
            break
    return x


def binary_search(x, v):
    lo, hi = 0, len(x)
    while lo < hi:
        mid = (lo + hi) // 2
        if x[mid] < v:
            lo = mid + 1
        else:
            hi = mid
    return lo


def early_stop_training(x, lr):
    w = torch.zeros(())
    best, bad, k = float("inf"), 0, 0
    while True:
        loss = ((w - x) ** 2).mean()
        if loss < best - 1e-3:
            best, bad = loss.item(), 0
        else:
            bad += 1
            if bad > 2:
                break
        w = w - lr * (w - x).mean()
        k += 1
        if k >= 30 or not math.isfinite(best):
            break
    return w, k, best


def nonlocal_counter(x, n):
    count = 0

    def tick(y):
        nonlocal count
        count += 1
        if y.sum() > 0:
            count += 10
        return y * 0.5 - 0.1

    x = tick(tick(x))
    k = 0
    while k < n:
        x = tick(x)
        k += 1
    return x, count


def any_all_generators(x):
    if any(v > 1 for v in x):
        return x * 2
    if all(v < 0.5 for v in x):
        return x - 1
    return x


class Tree:
    def __init__(self, value, kids=()):
        self.value, self.kids = value, list(kids)


def grow(depth, width=2):
    return Tree(randn(2), [grow(depth - 1, width) for _ in range(width if depth else 0)])


@stage
def fold(node, depth):
    if depth == 0:
        return node.value
    total = node.value
    for kid in node.kids:
        below = fold(kid, depth - 1)
        if below.sum() > total.sum():
            total = total + below
        else:
            total = total - 0.5 * below
    return torch.clamp(total, -3, 3)


def tree_fold(tree, depth):
    return fold(tree, depth).sum()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.heads = 2

    def forward(self, x, mask=None, causal=False):
        b, t, d = x.shape

        def split(y):
            return y.view(b, t, self.heads, d // self.heads).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(x)), split(self.v(x))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        if causal:
            scores = scores.masked_fill(torch.ones(t, t).triu(1).bool(), float("-inf"))
        if mask is not None and not mask.all():
            scores = scores.masked_fill(~mask[:, None, None, :], -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d)


ATTENTION = Attention()


def attention(x, mask, causal):
    return ATTENTION(x, mask, causal)


def dynamic_rnn_of_a_list(x, h):
    """The outputs are a list that grows with a sequence of any length."""
    outputs = []
    for row in x:
        h = torch.tanh(h + row)
        outputs.append(h)
        if h.sum() > 1.5:
            break
    return torch.stack(outputs), h, len(outputs)


def vector(*values: float) -> tuple[torch.Tensor]:
    return (torch.tensor(values),)


COUNTS = ((1, 1), (2, 3), (4, 2), (5, 5), (3, 1))
CASES: list[tuple[Any, tuple[Any, ...], list[Any]]] = [
    (beam_step, (randn(3, 7), randn(3), Rep(int)), [(randn(3, 7), randn(3), n) for n in range(10)]),
    (beam_search, (randn(7), Rep(int)), [(randn(7), n) for n in range(10)]),
    (newton, (torch.tensor(1.0),), [(torch.tensor(v),) for v in (0.0, 1.0, 2.0, 9.0, 1e-4, 1e2, 1e4, 3.0, 0.5, 7.0)]),
    (
        dynamic_rnn, (Rep(torch.float32, ("B", "T", 3)), Rep(torch.int64, ("B",))),
        [(randn(b, t, 3), torch.arange(b) % (t + 1)) for b in (1, 2, 4) for t in (1, 3, 6)]
        + [(randn(2, 3, 3), torch.tensor([0, 2]))],
    ),
    (first_above, (Rep(torch.float32, ("N", "M")), Rep(float)),
     [(randn(*sizes), limit) for sizes in COUNTS for limit in (0.5, -1.0)]),
    (fizzbuzz, (Rep(torch.int64, ("N",)),),
     [(torch.arange(k, k + n),) for k, n in ((0, 16), (1, 15), (3, 1), (5, 1), (15, 2), (7, 1), (1, 0), (-15, 20),
                                             (2, 4), (30, 3))]),
    (tree_fold, (Rep(grow(2)), Rep(int)),
     [(grow(d, b), n) for d, b, n in ((0, 2, 0), (1, 2, 3), (2, 2, 1), (2, 3, 5), (3, 1, 2), (1, 0, 1), (2, 1, 9),
                                      (3, 2, 4), (1, 4, 1), (2, 2, 2))]),
    (collatz, (torch.tensor(1),), [(torch.tensor(n),) for n in (1, 2, 3, 6, 7, 9, 12, 19, 27, 25)]),
    (mandelbrot, (Rep(torch.float32, ("H", "W")), Rep(torch.float32, ("H", "W")), Rep(int)),
     [(randn(*sizes), randn(*sizes), n) for sizes in COUNTS for n in (0, 20)]),
    (kmeans, (Rep(torch.float32, ("N", 2)), Rep(torch.float32, (3, 2)), Rep(int)),
     [(randn(n, 2), randn(3, 2), k) for n, k in ((5, 10), (20, 10), (7, 1), (3, 0), (9, 2), (30, 20), (4, 5), (6, 3),
                                                 (12, 8), (50, 4))]),
    (attention, (Rep(torch.float32, ("B", "T", 8)), Rep(torch.bool, ("B", "T")), Rep(bool)),
     [(randn(b, t, 8), torch.rand(b, t, generator=_DRAWN) < p, causal)
      for (b, t, p) in ((1, 1, 0.5), (2, 3, 1.1), (3, 4, 0.5), (1, 6, 0.8), (2, 2, 0.0)) for causal in (True, False)]),
    (bubble_sort, (Rep(torch.float32, ("N",)),), [(randn(n),) for n in range(1, 11)]),
    (binary_search, (Rep(torch.float32, ("N",)), Rep(float)),
     [(randn(n).sort().values, v) for n in (1, 2, 5, 7, 9) for v in (0.0, 1.5)]),
    (early_stop_training, (Rep(torch.float32, ("N",)), Rep(float)),
     [(randn(n), rate) for n in (1, 2, 5, 7, 9) for rate in (0.3, 2.0)]),
    (nonlocal_counter, (randn(4), Rep(int)), [(randn(4), n) for n in range(-2, 8)]),
    (any_all_generators, (randn(4),), [(randn(4),) for _ in range(10)]),
    (dynamic_rnn_of_a_list, (Rep(torch.float32, ("T", 4)), randn(4)), [(randn(t, 4), randn(4)) for t in range(1, 11)]),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "known", "inputs"), CASES, ids=[case[0].__name__ for case in CASES])
def test_a_program_agrees_with_eager_on_ten_inputs(fn, known, inputs):
    assert len(inputs) >= 10
    agree(fn, known, *inputs)


@pytest.mark.parametrize("fn", [dynamic_rnn_of_a_list, dynamic_rnn, attention], ids=lambda fn: fn.__name__)
def test_gradients(fn):
    known, inputs = next(case[1:] for case in CASES if case[0] is fn)

    grads_agree(first_of(fn), known, *[(args[0].clone().requires_grad_(), *args[1:]) for args in inputs])
