"""Small training programs that co-execution serves. Each function makes a step, its calls, and what it changes."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["PROGRAMS", "Made", "Twins"]

CALLS = 14


@dataclass
class Made:
    """A step, the arguments of its calls, and all that it changes."""

    step: Callable[..., Any]
    calls: list[tuple[Any, ...]]
    state: Any


def tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of a state, with gradients."""
    found: list[torch.Tensor] = []
    match value:
        case torch.Tensor():
            found.append(value)
            if value.is_leaf and value.grad is not None:
                found.append(value.grad)
        case nn.Module():
            for one in (*value.parameters(), *value.buffers()):
                found += tensors(one)
        case torch.optim.Optimizer():
            for state in value.state.values():
                found += tensors(list(state.values()))
        case dict():
            found += tensors(list(value.values()))
        case list() | tuple():
            for one in value:
                found += tensors(one)
    return found


def plain(value: Any) -> Any:
    """A state or a result, comparable: tensors as bytes, with what they are."""
    if isinstance(value, torch.Tensor):
        bits = value.detach().clone().reshape(-1).view(torch.uint8).tolist()  # numpy() would mark its memory as shared
        return (type(value), value.dtype, tuple(value.shape), value.stride(), value.requires_grad, value.is_leaf, bits)
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        return [plain(one) for one in tensors(value)]
    return repr(value)


class Twins:
    """One program several times: eager, and with other steps; made call by call, with generators of their own."""

    def __init__(self, make: Callable[[], Made], *speculate: Callable[[Any], Any]) -> None:
        self.states: list[Any] = []
        self.made: list[Made] = []
        for _ in range(1 + len(speculate)):
            self._seed()
            self.made.append(make())
            self.states.append(self._generators())
        others = (change(made.step) for change, made in zip(speculate, self.made[1:], strict=True))
        self.steps = [self.made[0].step, *others]

    @staticmethod
    def _seed() -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)

    @staticmethod
    def _generators() -> Any:
        return torch.get_rng_state(), random.getstate(), np.random.get_state()

    def call(self, number: int) -> None:
        """Make one call of each, and compare all that can be seen."""
        self.timed(number)

    def timed(self, number: int) -> list[float]:
        """Do the same, and return the seconds that each took."""
        seen, seconds = [], []
        for k in range(len(self.steps)):
            torch.set_rng_state(self.states[k][0])
            random.setstate(self.states[k][1])
            np.random.set_state(self.states[k][2])
            begun = time.perf_counter()
            try:
                result: Any = self.steps[k](*self.made[k].calls[number])
            except Exception as error:
                result = (type(error), str(error))
            seconds.append(time.perf_counter() - begun)
            self.states[k] = self._generators()
            grads = [None if t.grad is None else t.grad for t in tensors(self.made[k].state) if t.is_leaf]
            others = self.states[k][0].tolist(), repr(self.states[k][1:])
            seen.append((plain(result), plain(self.made[k].state), plain(grads), others))
        assert all(one == seen[0] for one in seen), f"call {number}"
        return seconds

    def run(self) -> None:
        """Make all calls."""
        for number in range(len(self.made[0].calls)):
            self.call(number)


def _inputs(count: int = CALLS, *shape: int) -> list[tuple[Any, ...]]:
    return [(torch.randn(*(shape or (6, 4))),) for _ in range(count)]


def adam() -> Made:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    log: list[float] = []

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        log.append(loss.item())
        return loss

    return Made(step, _inputs(), [net, optimizer, log])


def numpy_in_the_middle() -> Made:
    net = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    history: list[Any] = []

    def step(x: torch.Tensor) -> float:
        optimizer.zero_grad()
        scores = net(x)
        best = np.argsort(scores.detach().numpy().copy(), axis=1)[:, -1]
        history.append(best.tolist())
        loss = F.cross_entropy(scores, torch.from_numpy(np.roll(best, 1)))
        loss.backward()
        optimizer.step()
        return loss.item()

    return Made(step, _inputs(), [net, optimizer, history])


def gan() -> Made:
    maker, judge = nn.Linear(2, 4), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))
    of_maker, of_judge = (torch.optim.SGD(net.parameters(), lr=0.05) for net in (maker, judge))

    def step(x: torch.Tensor) -> dict[str, Any]:
        made = maker(torch.randn(len(x), 2))
        of_judge.zero_grad()
        wrong = F.softplus(judge(made.detach())).mean() + F.softplus(-judge(x)).mean()
        wrong.backward()
        of_judge.step()
        of_maker.zero_grad(set_to_none=False)
        fooled = F.softplus(-judge(made)).mean()
        fooled.backward()
        of_maker.step()
        return {"judge": wrong.detach(), "maker": fooled.item()}

    return Made(step, _inputs(), [maker, judge, of_maker, of_judge])


def generator_and_handlers() -> Made:
    w = torch.randn(4, requires_grad=True)
    seen: dict[str, list[Any]] = {"losses": [], "missed": []}

    def halves(x: torch.Tensor) -> Any:
        half = len(x) // 2
        yield x[:half]
        yield x[half:]

    def step(x: torch.Tensor) -> str:
        w.grad = None
        for number, part in enumerate(halves(x)):
            try:
                seen["missed"].append(seen["names"])
            except KeyError:
                seen["missed"].append(number)
            (part * w).sin().sum().backward()
        with torch.no_grad():
            assert w.grad is not None
            w.sub_(w.grad, alpha=0.1)
        seen["losses"].append(f"{w.detach().norm():.3f}")
        return seen["losses"][-1]

    return Made(step, _inputs(), [w, seen])


def branch() -> Made:
    w = torch.randn(4, requires_grad=True)
    count = [0, 0]

    def step(x: torch.Tensor) -> torch.Tensor:
        h = x * w
        if h.sum() > 0:
            count[0] += 1
            h = h.tanh()
        else:
            count[1] += 1
            h = h.exp() * torch.rand(4)
        loss = h.mean()
        w.grad = None
        loss.backward()
        with torch.no_grad():
            w.add_(w.grad, alpha=-0.1)  # type: ignore[arg-type]
        return loss.detach()

    return Made(step, _inputs(24), [w, count])


def feedback() -> Made:
    net = nn.Linear(4, 4)
    scale = [1.0]

    def step(x: torch.Tensor) -> float:
        h = net(x * scale[0])
        norm = h.norm().item()
        loss = (h / max(norm, 0.5)).pow(2).sum()
        net.zero_grad()
        loss.backward()
        scale[0] = 0.9 * scale[0] + 0.1 / (1.0 + loss.item())
        with torch.no_grad():
            for p in net.parameters():
                p -= 0.1 * p.grad  # type: ignore[operator]
        return scale[0]

    return Made(step, _inputs(), [net, scale])


def accumulation() -> Made:
    net = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    turn = [0]

    def step(x: torch.Tensor) -> float:
        (net(x).pow(2).mean() / 2).backward()
        turn[0] += 1
        if turn[0] % 2 == 0:
            norm = nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            return float(norm)
        return 0.0

    return Made(step, _inputs(24), [net, optimizer, turn])


def sentences() -> Made:
    cell, words = nn.LSTMCell(4, 4), nn.Embedding(20, 4)
    parameters = [*cell.parameters(), *words.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def step(sentence: torch.Tensor) -> torch.Tensor:
        h = c = torch.zeros(1, 4)
        for k in range(len(sentence)):
            h, c = cell(words(sentence[k : k + 1]), (h, c))
        loss = h.pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return h.detach()

    lengths = [3, 5, 3, 5, 3, 5, 3, 3, 5, 5, 3, 5]
    return Made(step, [(torch.randint(20, (n,)),) for n in lengths], [cell, words, optimizer])


def views_and_results() -> Made:
    memory = torch.zeros(5, 4)

    def step(x: torch.Tensor) -> Any:
        h = (x @ x.T).softmax(-1)
        memory[1:3] = h[:2, :4]
        top = h.max(dim=1)
        values, places = h.topk(2)
        return {"h": h, "row": h[0], "turned": h.t(), "top": top.values, "at": top.indices, "two": (values, places)}

    return Made(step, _inputs(), [memory])


def two_gradients() -> Made:
    w = torch.randn(4, 4, requires_grad=True)

    def step(x: torch.Tensor) -> Any:
        y = (x @ w).tanh()
        (first,) = torch.autograd.grad(y.sum(), w, create_graph=True)
        loss = first.pow(2).sum() + y.pow(2).mean()
        w.grad = None
        loss.backward()
        kept = w.grad
        with torch.no_grad():
            w.sub_(kept * 0.01)
        return kept, loss.detach().item()

    return Made(step, _inputs(), [w])


def meters() -> Made:
    """A running mean over a growing count of examples, and a size that is passed on as a torch.Size."""
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = [0]
    total = torch.zeros(())

    def step(x: torch.Tensor) -> float:
        out = net(x)
        seen[0] += len(x)
        out = out.reshape(out.shape[:1] + torch.Size([-1]))
        loss = out.reshape(torch.Size([12])).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total.add_(loss.detach() * len(x))
        return float(total / seen[0])

    return Made(step, _inputs(), [net, seen, total])


def complex_results() -> Made:
    """Results that are views of others: parts of complex numbers, and conjugates."""

    def step(x: torch.Tensor) -> Any:
        z = torch.complex(x, x + 1)
        z.mul_(2j)
        return torch.view_as_real(z), z.conj(), z.imag, complex(z[0, 0])

    return Made(step, _inputs(), [])


def sometimes_kept() -> Made:
    """A result lives on in every other call; the calls of torch are the same."""
    kept: list[torch.Tensor] = []
    calls = [0]

    def step(x: torch.Tensor) -> float:
        calls[0] += 1
        h = x.exp()
        kept[:] = [h] if calls[0] % 2 else []
        return float(h.sum())

    return Made(step, _inputs(), [kept, calls])


def numbers_of_numpy() -> Made:
    """A running mean of NumPy's is a factor, and so is a constant; an empty list of rows is extended."""
    w = torch.ones(4, requires_grad=True)
    losses: list[float] = []
    zero = np.float64(-0.0)

    def step(x: torch.Tensor) -> Any:
        w.grad = None
        loss = ((x * w).pow(2).mean() * np.float64(0.5)).clamp(max=np.float64(3))
        loss.backward()
        losses.append(loss.item())
        with torch.no_grad():
            w.sub_(w.grad * np.mean(losses[-3:]))  # type: ignore[operator]
        rows = [*x[:0].unbind()]
        none = list(torch.unbind(x[:, :0], 1))
        none.append(x * zero)
        return rows, none, loss.detach() * zero

    return Made(step, _inputs(), [w, losses])


PROGRAMS = {
    make.__name__: make
    for make in (
        adam, numpy_in_the_middle, gan, generator_and_handlers, branch, feedback, accumulation, sentences,
        views_and_results, two_gradients, meters, complex_results, sometimes_kept,
        numbers_of_numpy,
    )
}  # fmt: skip
