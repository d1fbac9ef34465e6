"""Who makes the calls that no graph of the whole serves is measured: whoever is fastest by the clock, and never one
that is slower than Python."""

from __future__ import annotations

import linecache
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.runtime.parts import contest
from torchjanus.runtime.parts.contest import COEXECUTION, PARTS, PYTHON, Contest
from torchjanus.runtime.parts.region import TIMED, Timing


class Timed(Contest):
    """Each contender takes what ``costs`` say; a call that co-execution does not serve takes ``recorded`` more."""

    def __init__(self, fn: Any, costs: dict[str, float], recorded: float = 0.0, parts: Any = None) -> None:
        self.now, self.costs, self.recorded = 0.0, costs, recorded
        self.made: list[str] = []
        super().__init__(fn, parts, torchjanus.speculate(fn, executor="auto")._learning, lambda: self.now)

    def _make(self, contender: str, args: Any, kwargs: Any) -> Any:
        self.now += self.costs[contender]
        self.made.append(contender)
        before = self._log.counts.speculated
        result = super()._make(contender, args, kwargs)
        if contender == COEXECUTION and self._log.counts.speculated == before:
            self.now += self.recorded
        return result


class SomeParts:
    """Parts of a step; ``serve``: whether graphs make any."""

    is_superseded = False

    def __init__(self, fn: Any, serve: bool, learnt: bool = True) -> None:
        self.call, self.serve, self.are_learnt = fn, serve, learnt

    @property
    def progress(self) -> list[bool]:
        return [self.serve]


def trained() -> tuple[Any, torch.Tensor]:
    w = torch.ones(4, requires_grad=True)

    def step(x: torch.Tensor) -> float:
        w.grad = None
        loss = (x * w).sin().sum()
        loss.backward()
        with torch.no_grad():
            w.sub_(w.grad, alpha=0.1)  # type: ignore[arg-type]
        return loss.item()

    return step, w


def alike(calls: int, costs: dict[str, float]) -> Timed:
    """Make calls by a contest and in eager, and compare them."""
    (step, w), (other, v) = trained(), trained()
    made = Timed(other, costs)
    for _ in range(calls):
        x = torch.randn(3, 4)
        assert made.call(x) == step(x)
        assert torch.equal(w, v)
    return made


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contest, "FIRST", 3)
    monkeypatch.setattr(contest, "AGAIN", 10)
    monkeypatch.setattr(contest, "LEARNING", 4)


def test_co_execution_makes_the_calls_where_it_is_fastest() -> None:
    made = alike(36, {PYTHON: 1.0, COEXECUTION: 0.5})
    assert made.standing is not None
    assert made.standing.winner == COEXECUTION
    assert made.made[-3:] == [COEXECUTION] * 3
    assert dict(made.standing.times) == {PYTHON: 1.0, COEXECUTION: 0.5}


def test_python_makes_the_calls_where_nothing_is_faster() -> None:
    made = alike(32, {PYTHON: 1.0, COEXECUTION: 0.99})
    assert made.standing is not None
    assert made.standing.winner == PYTHON
    assert made.made[-3:] == [PYTHON] * 3


def test_what_was_measured_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = alike(60, {PYTHON: 1.0, COEXECUTION: 2.0})
    first = made.made.count(COEXECUTION)
    assert first > contest.MEASURED
    made.costs[COEXECUTION] = 0.2
    for _ in range(80):
        made.call(torch.randn(3, 4))
    assert made.standing is not None
    assert made.standing.winner == COEXECUTION


def test_co_execution_that_serves_no_call_is_left() -> None:
    def step(x: torch.Tensor) -> Any:
        return str(x.sum().requires_grad_())  # what a skeleton cannot show

    made = Timed(step, {PYTHON: 1.0, COEXECUTION: 0.1})
    for _ in range(15):
        made.call(torch.randn(3, 4))
    assert made.standing is None
    assert made.made[-3:] == [PYTHON] * 3
    assert made.made.count(COEXECUTION) <= contest.READY + 2


def test_a_winner_whose_calls_begin_to_diverge_is_measured_again() -> None:
    lengths = [3]

    def step(x: torch.Tensor) -> float:
        for _ in range(lengths[0]):
            x = x.sin()
        return x.sum().item()

    made = Timed(step, {PYTHON: 1.0, COEXECUTION: 0.5})
    for _ in range(36):
        made.call(torch.randn(3, 4))
    assert made.standing is not None
    assert made.standing.winner == COEXECUTION
    for number in range(60):
        lengths[0] = 4 + number
        x = torch.randn(3, 4)
        assert made.call(x) == step(x)
    assert made.standing.winner == PYTHON


def test_a_winner_that_diverges_rarely_but_at_great_cost_is_left() -> None:
    length = 3

    def step(x: torch.Tensor) -> float:
        for _ in range(length):
            x = x.sin()
        return x.sum().item()

    made = Timed(step, {PYTHON: 1.0, COEXECUTION: 0.5}, recorded=80.0)
    for _ in range(36):
        made.call(torch.randn(3, 4))
    assert made.standing is not None
    assert made.standing.winner == COEXECUTION
    before = len(made.made)
    for number in range(1, 120):
        length = 10 + number if number % 12 == 0 else 3  # fewer than SERVED allows
        made.call(torch.randn(3, 4))
    assert made.made[before:].count(PYTHON) > 80
    assert made.standing.winner == PYTHON


def test_what_diverging_calls_take_counts_in_a_measurement() -> None:
    length = 3

    def step(x: torch.Tensor) -> float:
        for _ in range(length):
            x = x.sin()
        return x.sum().item()

    made = Timed(step, {PYTHON: 1.0, COEXECUTION: 0.5}, recorded=80.0)
    number = 0
    while made.standing is None:
        length = 3
        if made._times and sum(map(len, made._times.values())) == 9:
            length = 10  # one of nine
        made.call(torch.randn(3, 4))
        number += 1
        assert number < 60
    assert len(made._unserved) == 1
    assert made.standing.winner == PYTHON
    assert dict(made.standing.times)[COEXECUTION] > 5.0


def test_parts_that_serve_nothing_are_left_to_python() -> None:
    step, _ = trained()
    parts = SomeParts(step, serve=False)
    made = Timed(step, {PYTHON: 1.0, PARTS: 1.3, COEXECUTION: 2.0}, parts=parts)
    for _ in range(60):
        made.call(torch.randn(3, 4))
    later = made.made[-30:]
    assert PARTS in later  # they are learnt further
    assert later.count(PARTS) < 5
    parts.are_learnt = False
    for _ in range(60):
        made.call(torch.randn(3, 4))
    assert PARTS not in made.made[-60:]


def test_parts_that_begin_to_serve_are_measured_at_once() -> None:
    step, _ = trained()
    parts = SomeParts(step, serve=False)
    made = Timed(step, {PYTHON: 1.0, PARTS: 0.5, COEXECUTION: 2.0}, parts=parts)
    for _ in range(60):
        made.call(torch.randn(3, 4))
    parts.serve = True
    for _ in range(2 * contest.RARELY):
        made.call(torch.randn(3, 4))
    assert made.standing is not None
    assert made.standing.winner == PARTS
    made.costs[PARTS] = 2.0
    for _ in range(1000):
        made.call(torch.randn(3, 4))
    assert made.standing.winner == PYTHON


def test_a_step_is_timed_only_while_a_part_asks_for_it() -> None:
    timing = Timing()
    assert [timing.begins() for _ in range(TIMED + 2)] == [True] * TIMED + [False] * 2
    timing.ask()
    assert timing.begins()


def test_auto_tries_co_execution_where_there_is_no_whole_graph() -> None:
    text = "def step(x, w):\n    h = x * w\n    return h.sum().item()\n"
    scope: dict[str, Any] = {}
    exec(compile(text, "<no file>", "exec"), scope)
    assert not linecache.getlines("<no file>")
    step = torchjanus.speculate(scope["step"], executor="auto")
    w = torch.ones(4)
    for _ in range(40):
        x = torch.randn(3, 4)
        assert step(x, w) == scope["step"](x, w)
    assert step.contest is not None
    assert step.coexecution is not None
    assert [refusal.reason for refusal in step.refusals] == ["no-source"]
    explained = torchjanus.explain(step)
    assert "by measure" in str(explained)
    assert explained.data()["contest"]["winner"] == step.contest.winner


def test_no_other_executor_is_measured() -> None:
    scope: dict[str, Any] = {}
    exec(compile("def step(x):\n    return x.sum().item()\n", "<no file>", "exec"), scope)
    step = torchjanus.speculate(scope["step"], executor="replay")
    for _ in range(40):
        step(torch.randn(3))
    assert step.contest is None
    assert step.coexecution is None
