"""Algorithms as users write them, staged: searches, decoders, recurrences, iterations until they converge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchjanus
from tests.sampling import every
from tests.semantics.staged.checking import agree
from torchjanus import Rep, stage

NUMBERS = [0, 1, 2, 3, 5, 8, 4, 7, 6, 2]
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[tuple[Any, ...]]]] = {}
_DRAWN = torch.Generator().manual_seed(3)


def draw(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=_DRAWN)


def program(known: tuple[Any, ...], inputs: list[tuple[Any, ...]]) -> Callable[..., Any]:
    """Register a program with what is known of its arguments, and ten inputs."""

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[fn.__name__] = fn, known, inputs
        return fn

    return register


class Tree:
    def __init__(self, v, left=None, right=None):
        self.v, self.left, self.right = v, left, right


def grown(depth):
    return None if depth == 0 else Tree(draw(2), grown(depth - 1), grown(max(0, depth - 2)))


cell = nn.GRUCell(3, 4)

out = nn.Linear(4, 3)

emb = nn.Embedding(6, 3)

lstm = nn.LSTMCell(3, 4)


@program((torch.ones(1, 4), Rep(int)), [(draw(1, 4), n) for n in NUMBERS])
def greedy_decoder(h, limit):
    token = torch.zeros(1, dtype=torch.long)
    said = []
    while len(said) < limit:
        h = cell(emb(token), h)
        token = out(h).argmax(1)
        if token.item() == 2:
            break
        said.append(token)
    return torch.cat(said) if said else torch.zeros(0, dtype=torch.long)


@program((Rep(torch.float32, ()), Rep(int)), [(draw(()) * 5 + 0.1, n) for n in NUMBERS])
def newton_sqrt(a, most):
    x = a.abs() + 1
    for step in range(most):
        new = 0.5 * (x + a.abs() / x)
        if (new - x).abs() < 1e-06:
            return (new, step)
        x = new
    return (x, most)


@program((torch.ones(3, 3), Rep(float)), [(draw(3, 3), 10.0 ** (-k)) for k in range(1, 11)])
def power_iteration(m, tol):
    m = m @ m.T
    v = torch.ones(3)
    last = torch.zeros(())
    while True:
        v = m @ v
        norm = v.norm()
        v = v / norm
        if (norm - last).abs() < tol * norm:
            break
        last = norm
    return (v, norm)


@program(
    (Rep(torch.float32, ("N",)), Rep(torch.float32, ("M",))),
    [(draw(n), draw(m)) for n, m in ((1, 1), (2, 3), (3, 2), (4, 4), (5, 1), (1, 5), (2, 2), (6, 3), (3, 6), (4, 2))],
)
def dtw(a, b):
    n, m = (a.shape[0], b.shape[0])
    cost = torch.full((n + 1, m + 1), float("inf"))
    cost[0, 0] = 0
    for i in range(1, n + 1):
        for j in range(1, m + 1):
            best = torch.minimum(torch.minimum(cost[i - 1, j], cost[i, j - 1]), cost[i - 1, j - 1])
            cost[i, j] = (a[i - 1] - b[j - 1]).abs() + best
    return cost[n, m]


@program(
    (Rep(torch.float32, ("T", 3)), Rep(int)), [(draw(t, 3), k) for t, k in zip((1, 2, 3, 4, 5, 6, 7, 8, 3, 2), NUMBERS)]
)
def lstm_over_rows(x, skip):
    h, c = (torch.zeros(1, 4), torch.zeros(1, 4))
    for t, row in enumerate(x):
        if t % 3 == skip % 3:
            continue
        h, c = lstm(row[None], (h, c))
        if h.abs().max() > 0.9:
            break
    return (h, c)


@program((torch.ones(4, 3), Rep(int)), [(draw(4, 3), n) for n in NUMBERS])
def attention_while(x, hops):
    q = x.mean(0)
    k = 0
    while k < hops:
        w = torch.softmax(x @ q / math.sqrt(3), 0)
        new = w @ x
        if torch.allclose(new, q, atol=0.001):
            break
        q = new
        k += 1
    return (q, k)


@program((Rep(torch.float32, ("N",)),), [(draw(n),) for n in (1, 2, 3, 4, 5, 6, 7, 8, 9, 3)])
def bubble_pass(x):
    x = x.clone()
    swapped = True
    passes = 0
    while swapped:
        swapped = False
        for i in range(len(x) - 1):
            if x[i] > x[i + 1]:
                t = x[i].clone()
                x[i] = x[i + 1]
                x[i + 1] = t
                swapped = True
        passes += 1
    return (x, passes)


@program(
    (Rep(int), Rep(int)),
    [(a, b) for a, b in ((12, 18), (7, 3), (0, 5), (5, 0), (100, 75), (1, 1), (17, 51), (9, 6), (64, 48), (13, 8))],
)
def gcd(a, b):
    while b:
        a, b = (b, a % b)
    return a


@program((Rep(int),), [(n,) for n in (1, 2, 3, 6, 7, 9, 11, 12, 19, 27)])
def collatz(n):
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps


@stage
def tsum(t, w):
    if t is None:
        return torch.zeros(2)
    below = tsum(t.left, w) + tsum(t.right, w)
    return torch.tanh(t.v * w + below) if below.sum() > 0 else t.v - below * w


@program(
    (Rep(Tree(draw(2), Tree(draw(2)), Tree(draw(2)))), torch.ones(2)),
    [(Tree(draw(2), grown(d), grown(d - 1)), draw(2)) for d in (1, 2, 3, 4, 2, 1, 3, 2, 4, 3)],
)
def tree_rec(t, w):
    return tsum(t, w)


@program((torch.ones(5), Rep(int)), [(draw(5), k) for k in (1, 2, 3, 4, 5, 1, 2, 3, 4, 5)])
def topk_masks(x, k):
    mask = torch.zeros(5, dtype=torch.bool)
    for _ in range(k):
        masked = x.masked_fill(mask, float("-inf"))
        i = masked.argmax()
        mask = mask | F.one_hot(i, 5).bool()
    return (x * mask, mask.sum())


@program((torch.ones(3, 4), Rep(int)), [(draw(3, 4), k) for k in NUMBERS])
def beam(logits, width):
    probs = logits.log_softmax(1)
    scores = torch.zeros(1)
    beams = [(torch.zeros(()), 0)]
    total = torch.zeros(())
    for t in range(3):
        best, _ = probs[t].max(0)
        if width > 2:
            second = probs[t].topk(2).values[1]
            total = total + torch.logaddexp(best, second)
        else:
            total = total + best
    return total


@program((torch.ones(4), Rep(float)), [(draw(4), s) for s in (0.1, 0.2, 0.3, 0.01, 0.5, 0.9, 1.0, 0.05, 0.15, 0.25)])
def line_search(x, step):
    f = lambda z: (z**4).sum() - z.sum()
    g = 4 * x**3 - 1
    t = step
    f0 = f(x)
    for _ in range(20):
        if f(x - t * g) <= f0 - 0.5 * t * (g * g).sum():
            break
        t *= 0.5
    else:
        return (x, 0.0)
    return (x - t * g, t)


@program(
    (Rep(torch.float32, ("N", 2)), Rep(int)),
    [(draw(n, 2), k) for n, k in zip((3, 4, 5, 6, 7, 8, 9, 10, 4, 5), NUMBERS)],
)
def kmeans_1d(x, iters):
    c = x[:2].clone()
    for _ in range(iters):
        d = (x[:, None] - c[None]).pow(2).sum(-1)
        own = d.argmin(1)
        new = []
        for j in range(2):
            m = (own == j).float()
            s = m.sum()
            new.append((x * m[:, None]).sum(0) / s if s > 0 else c[j])
        n = torch.stack(new)
        if torch.equal(n, c):
            break
        c = n
    return c


@program((torch.ones(3), Rep(float)), [(draw(3), s) for s in (0.1, 1.0, 2.0, 0.5, 0.3, 3.0, 0.7, 0.9, 1.5, 0.2)])
def clip_norm(x, most):
    n = x.norm()
    if n > most:
        x = x * (most / (n + 1e-06))
    return x


@program((torch.ones(6), Rep(int)), [(draw(6), k) for k in NUMBERS])
def run_length(x, n):
    longest = current = 0
    for v in x:
        if v > 0:
            current += 1
        else:
            longest = max(longest, current)
            current = 0
    return max(longest, current) + n


@program((torch.ones(4, 4), Rep(int)), [((draw(4, 4) > 0).float(), k) for k in NUMBERS])
def flood(grid, start):
    seen = torch.zeros(4, 4)
    seen[start % 4, 0] = 1
    while True:
        near = F.max_pool2d(seen[None, None], 3, 1, 1)[0, 0] * grid
        new = torch.maximum(seen, near)
        if torch.equal(new, seen):
            return seen.sum()
        seen = new


@program((torch.ones(3, 3), Rep(int)), [(draw(3, 3) * 0.3, k) for k in NUMBERS])
def matrix_power(m, n):
    r = torch.eye(3)
    while n > 0:
        if n & 1:
            r = r @ m
        m = m @ m
        n >>= 1
    return r


@program(
    (Rep(torch.float32, ("T",)), Rep(float)),
    [
        (draw(t), a)
        for t, a in zip((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.15))
    ],
)
def ewma_reset(x, a):
    s = x[0]
    out = []
    for v in x:
        s = v if (v - s).abs() > 1.5 else a * v + (1 - a) * s
        out.append(s)
    return torch.stack(out)


@program((torch.ones(2), Rep(int)), [(draw(2), k) for k in NUMBERS])
def fib_words(x, n):
    a, b = (x, x * 2)
    for k in range(n):
        a, b = (b, a + b if k % 2 else a - b)
    return (a, b)


@program(
    (torch.ones(()), Rep(float)),
    [(draw(()) * 3, e) for e in (0.1, 0.01, 0.001, 0.0001, 1e-05, 0.5, 0.3, 0.2, 0.05, 0.02)],
)
def bisect_cos(target, eps):
    lo, hi = (torch.zeros(()), torch.full((), math.pi))
    t = torch.tanh(target)
    while hi - lo > eps:
        mid = (lo + hi) / 2
        if torch.cos(mid) > t:
            lo = mid
        else:
            hi = mid
    return lo


@program(
    (Rep(torch.float32, ("N",)), Rep(int)), [(draw(n), k) for n, k in zip((2, 3, 4, 5, 6, 7, 8, 9, 2, 3), NUMBERS)]
)
def prefix_until(x, n):
    total = torch.zeros(())
    for i, v in enumerate(x):
        if i >= n:
            break
        total = total + v
        if total < -1:
            return (total, i)
    else:
        return (total * 2, -1)
    return (total, n)


@program((torch.ones(3, requires_grad=True), Rep(int)), [(draw(3).requires_grad_(), k) for k in NUMBERS])
def inner_sgd(w, n):
    target = torch.arange(3.0)
    for _ in range(n):
        loss = ((w - target) ** 2).sum()
        (g,) = torch.autograd.grad(loss, w, create_graph=True)
        w = w - 0.1 * g
    return w.sum()


@program((torch.ones(5), Rep(int)), [(draw(5), k) for k in NUMBERS])
def nucleus(logits, n):
    p = logits.softmax(0)
    s, _ = p.sort(descending=True)
    total, count = (0.0, 0)
    for v in s:
        total += v.item()
        count += 1
        if total > 0.8:
            break
    return (s[:count].sum(), count)


@program((torch.ones(2, 3), Rep(int)), [(draw(2, 3), k) for k in NUMBERS])
def residual_depth(x, depth):
    prev = x
    for k in range(depth):
        y = torch.relu(x @ x.T) @ x * 0.1
        if k > 0 and (y - prev).norm() < 0.05:
            break
        prev = y
        x = torch.tanh(x + y)
    return x


@program((torch.ones(4), Rep(int)), [(draw(4), k) for k in NUMBERS])
def adaptive_steps(y, n):
    t, h, steps = (0.0, 0.1, 0)
    while t < 1 and steps < n * 3:
        k1 = -y
        k2 = -(y + h * k1)
        err = (h * (k2 - k1) / 2).abs().max().item()
        if err < 0.01:
            y = y + h * (k1 + k2) / 2
            t += h
            h = min(h * 2, 0.5)
        else:
            h /= 2
        steps += 1
    return (y, t, steps)


@program(
    (Rep(torch.float32, ("N", 3)), Rep(int)),
    [(draw(n, 3), k) for n, k in zip((1, 2, 3, 4, 5, 6, 7, 8, 9, 10), NUMBERS)],
)
def greedy_nms(boxes, limit):
    scores = boxes.sum(1)
    alive = torch.ones(boxes.shape[0])
    kept = []
    for _ in range(limit):
        masked = scores * alive - (1 - alive) * 1000000.0
        i = masked.argmax()
        if masked[i] < -100000.0:
            break
        kept.append(i)
        alive = alive * ((boxes - boxes[i]).norm(dim=1) > 1.0).float()
    return (len(kept), alive.sum())


@program((torch.ones(3), Rep(int)), [(draw(3), k) for k in NUMBERS])
def state_machine(x, n):
    state = 0
    log = []
    for k in range(n):
        match state:
            case 0:
                x = x + 1
                state = 1 if x.sum() > 0 else 2
            case 1:
                x = x * 0.5
                state = 2
            case _:
                x = x - 1
                state = 0
        log.append(state)
    return (x, state, log)


@pytest.mark.parametrize("name", PROGRAMS)
def test_on_ten_inputs(name):
    fn, known, inputs = PROGRAMS[name]
    assert len(inputs) == 10
    agree(fn, known, *inputs)


@pytest.mark.parametrize("name", ["newton_sqrt", "power_iteration", "tree_rec", "beam", "residual_depth"])
def test_by_a_function_of_fx_graphs(name):
    fn, known, inputs = PROGRAMS[name]
    staged = torchjanus.staged(fn, backend=lambda graph, examples: graph.forward)(*known)
    for args in inputs * 2:
        torch.testing.assert_close(staged(*args), fn(*args), rtol=1e-5, atol=1e-6, equal_nan=True)
    assert any(one.by not in ("Python", "replay") for one in staged.pieces()), [*map(str, staged.pieces())]


@pytest.mark.parametrize("name", every(3, ["tree_rec", "gcd", "collatz"]))
def test_by_cpp(name):
    fn, known, inputs = PROGRAMS[name]
    staged = torchjanus.staged(fn, backend="cpp")(*known)
    for args in inputs:
        torch.testing.assert_close(staged(*args), fn(*args), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["newton_sqrt", "lstm_over_rows", "collatz", "beam"])
def test_exported(name):
    fn, known, inputs = PROGRAMS[name]
    staged = torchjanus.staged(fn, backend="export")(*known)
    for args in inputs:
        torch.testing.assert_close(staged(*args), fn(*args), rtol=1e-5, atol=1e-5)
