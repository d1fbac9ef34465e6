"""A program that an earlier run has lowered is not lowered again, and gives eager's results."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchjanus
from torchjanus.execute.compiled.store import VARIABLE
from torchjanus.graph.operators import loop_op
from torchjanus.graph.recursion.cells import invoke_op
from torchjanus.graph.regions import partition
from torchjanus.runtime.runs import lowering_cache


class Training:
    def __init__(self, rate: float = 0.1) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=rate, momentum=0.9)

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, step: Any) -> list[float]:
        draw = torch.Generator().manual_seed(1)
        return [step(torch.randn(3, 4, generator=draw)).item() for _ in range(8)]


@pytest.fixture
def lowerings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[object]:
    """The programs that are lowered; with a store."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    made: list[object] = []
    real = lowering_cache.lower_whole

    def lower_rolled(program: Any) -> Any:
        made.append(program)
        return real(program)

    monkeypatch.setattr(lowering_cache, "lower_whole", lower_rolled)
    return made


def train(rate: float = 0.1) -> Any:
    eager = Training(rate)
    expected = eager.run(eager.step)
    ours = Training(rate)
    step = torchjanus.speculate(ours.step, executor="replay")
    assert ours.run(step) == expected
    assert step.statistics().speculated == 5
    for one, other in zip(eager.net.parameters(), ours.net.parameters(), strict=True):
        assert torch.equal(one, other)
    return step


def test_a_second_run_lowers_nothing(lowerings: list[object]) -> None:
    train()
    assert len(lowerings) == 1
    train()
    assert len(lowerings) == 1
    train(rate=0.2)  # a constant of the graph
    assert len(lowerings) == 2


def iterations(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for row in x.unbind(0):
        w = torch.tanh(w @ row) + row
    return w


def test_loops_are_found_again_unless_their_keys_are_taken(
    lowerings: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        step = torchjanus.speculate(iterations, executor="replay")
        for length in (5, 7, 4, 6, 8):
            x = torch.randn(length, 3, 3)
            assert torch.equal(step(x, torch.ones(3, 3)), iterations(x, torch.ones(3, 3)))
        assert step.statistics().speculated >= 2

    first = loop_op._next + 2  # keys below it belong to loops of other tests
    monkeypatch.setattr(loop_op, "_next", first)
    run()
    assert len(lowerings) == 1
    run()  # in this process the loop's keys are somebody's
    assert len(lowerings) == 2
    monkeypatch.setattr(loop_op, "_next", first)  # as in a new one
    run()
    assert len(lowerings) == 2


class Tree:
    def __init__(self, depth: int, word: int) -> None:
        self.word = word
        self.children = [Tree(depth - 1, word + n) for n in range(2)] if depth else []


class Trees:
    """Recursive calls: their cells are kept with the step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.words = nn.Embedding(9, 4)
        self.join = nn.Linear(8, 4)
        self.parameters = [*self.words.parameters(), *self.join.parameters()]

    def encode(self, tree: Tree) -> torch.Tensor:
        if not tree.children:
            return self.words.weight[tree.word]
        return torch.tanh(self.join(torch.cat([self.encode(child) for child in tree.children])))

    def given(self, number: int) -> Tree:
        return Tree(1 + number % 3, number % 5)

    def step(self, tree: Tree) -> torch.Tensor:
        loss = self.encode(tree).pow(2).sum()
        loss.backward()
        return loss.detach()


class Choosing:
    """A loop in whose iterations a tensor decides."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.rare = nn.Parameter(torch.ones(4))
        self.parameters = [*self.layer.parameters(), self.rare]

    def given(self, number: int) -> torch.Tensor:
        return torch.randn(4 + number % 4, 2, 4, generator=torch.Generator().manual_seed(number))

    def step(self, xs: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(2, 4)
        for x in xs:
            h = torch.tanh(self.layer(h) + x)
            if h.norm() > 1.7:
                h = h / h.norm() + self.rare
        loss = h.sum()
        loss.backward()
        return loss.detach()


class Ended:
    """A loop that a tensor ends, or its own limit."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.parameters = [*self.layer.parameters()]

    def given(self, number: int) -> torch.Tensor:
        return torch.full((1, 4), 1.0 + number % 5)

    def step(self, h: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            h = 0.7 * torch.tanh(self.layer(h)) + 0.2 * h
            if h.norm() < 0.4:
                break
        h.sum().backward()
        return h.detach()


@pytest.mark.parametrize("made", [Trees, Choosing, Ended])
def test_recursion_and_iterations_in_which_tensors_decide_are_found_again(
    made: Any, lowerings: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run() -> None:
        monkeypatch.setattr(loop_op, "_next", 0)  # as in a new process
        for module, name in ((partition, "_MADE"), (loop_op, "_KEYED"), (invoke_op, "_KEYED")):
            monkeypatch.setattr(module, name, weakref.WeakValueDictionary())
        eager, ours = made(), made()
        step = torchjanus.speculate(ours.step, executor="replay")
        for number in range(14):
            given = ours.given(number)
            torch.testing.assert_close(step(given), eager.step(given), rtol=1e-5, atol=1e-6)
            for one, other in zip(ours.parameters, eager.parameters, strict=True):
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)
        assert step.statistics().speculated >= 5

    run()
    first = len(lowerings)
    assert first >= 1
    run()
    assert len(lowerings) == first


def test_without_a_store_everything_is_lowered(lowerings: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    train()
    train()
    assert len(lowerings) == 2


def test_what_cannot_be_used_is_lowered_again(
    lowerings: list[object], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    train()

    def broken(*args: Any, **reserved: bool) -> Any:
        raise EOFError("it ends early")

    with monkeypatch.context() as patch:
        patch.setattr(lowering_cache, "unpack_made", broken)
        train()
    assert len(lowerings) == 2
    assert "EOFError: it ends early" in caplog.text


def test_other_source_of_ours_finds_nothing(lowerings: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    train()
    monkeypatch.setattr(lowering_cache, "own_source", lambda: "of another version")
    train()
    assert len(lowerings) == 2
