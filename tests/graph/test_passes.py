"""The table of passes: it says what there is, and each of them is run for some program."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchjanus
from torchjanus.graph.ir.passes import Part, Pass, Stage, is_observed, observed_by, unobserved
from torchjanus.graph.passes import PASSES, passes_table
from torchjanus.runtime.pass_log import pass_log
from torchjanus.runtime.pass_log.pass_log import PassLog

ROOT = Path(__file__).resolve().parents[2]
Step = Callable[[int], Any]


def test_the_parts_are_in_order() -> None:
    assert [passes.part for passes in PASSES] == list(Part)


def test_rows_say_what_passes_do() -> None:
    rows = [one for passes in PASSES for one in passes.passes]
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", one.name) for one in rows)
    assert all(one.line.endswith(".") and one.line[0].isupper() for one in rows)
    assert len({one.name for one in rows}) == len({id(one) for one in rows})
    for one in rows:
        assert (ROOT / (one.where.replace(".", "/") + ".py")).exists()


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "design" / "passes.md").read_text()
    shown = page.partition("<!-- passes -->\n")[2].partition("<!-- end of passes -->")[0]
    assert shown.strip() == passes_table().strip()


def recurrent() -> Step:
    weight = torch.eye(4)

    def step(xs: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(4)
        for x in xs:
            h = torch.tanh(h @ weight + x)
        return h

    jitted = torchjanus.speculate(step, executor="replay")
    return lambda n: jitted(torch.randn(4 + n % 3, 4))


def repeated() -> Step:
    weight, bias = torch.eye(4), torch.ones(4)

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            x = torch.relu(x @ weight + bias)
        return x

    jitted = torchjanus.speculate(step, executor="replay")
    return lambda n: jitted(torch.randn(4))


def deciding() -> Step:
    def step(xs: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(())
        for x in xs:
            if x.sum() > 0:
                total = total + x.sum()
            else:
                total = total - x.mean()
        return total

    jitted = torchjanus.speculate(step, executor="replay")
    return lambda n: jitted(torch.randn(6, 4))


def selecting() -> Step:
    p = torch.randn(6, 3, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        p.grad = None
        loss = F.mse_loss(p[x[:, 0] > -1], x[x[:, 0] > -1][:, :3])
        loss.backward()
        return loss.detach()

    jitted = torchjanus.speculate(step, executor="replay")
    return lambda n: jitted(torch.randn(6, 4))


def test_each_pass_is_run_for_some_program(monkeypatch: pytest.MonkeyPatch) -> None:
    met: set[str] = set()

    def passed(self: PassLog, one: Pass, made: Any) -> None:
        met.add(one.name)

    monkeypatch.setattr(pass_log, "_kept", True)
    monkeypatch.setattr(PassLog, "passed", passed)
    for program in (recurrent, repeated, deciding, selecting):
        torch.manual_seed(0)
        step = program()
        for number in range(12):
            step(number)
    assert met == {one.name for passes in PASSES for one in passes.passes}


def test_an_observer_is_given_what_a_pass_gave() -> None:
    reported: list[Any] = []

    class Observer:
        def begins(self, passes: Any, value: Any) -> None: ...

        def passed(self, one: Pass, made: Any) -> None:
            reported.append((one.name, made))

        def gave_up(self, passes: Any) -> None: ...

    double = Pass("double", Stage.TRACE, lambda value: value * 2, "Doubles.")
    plus = Pass("plus", Stage.TRACE, lambda value, context: value + context, "Adds.", contextual=True)
    with observed_by(Observer()):
        assert is_observed()
        assert plus(double(3), 1) == 7
        with unobserved():
            assert double(3) == 6
    assert reported == [("double", 6), ("plus", 7)]
    assert not is_observed()
