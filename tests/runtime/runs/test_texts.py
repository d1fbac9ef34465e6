"""Which texts are relaxed: those that were seen with three values, each place once."""

from __future__ import annotations

import torch

import torchjanus
from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Place
from torchjanus.runtime.runs.texts import MANY, VaryingTexts
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead


def run_with(**texts: str) -> Trace:
    trace = Trace()
    trace.events += [
        HeapRead(AccessPath.kwarg(name), text, "constant", place=Place("p.py", 1)) for name, text in texts.items()
    ]
    return trace


def test_the_third_value_relaxes() -> None:
    texts = VaryingTexts()
    assert texts.learn(run_with(mode="train", name="a")) == []
    assert texts.learn(run_with(mode="eval", name="b")) == []
    assert texts.learn(run_with(mode="train", name="c")) == [(AccessPath.kwarg("name"), Place("p.py", 1))]
    assert texts.learn(run_with(mode="eval", name="d")) == [], "a place is relaxed once"
    assert texts.loose == {AccessPath.kwarg("name")}
    assert MANY == 3


def test_other_constants_are_left_alone() -> None:
    texts = VaryingTexts()
    for value in (b"a", True, None, 1j):
        trace = Trace()
        trace.events.append(HeapRead(AccessPath.kwarg("k"), value, "constant"))
        assert texts.learn(trace) == []


def test_the_report_says_what_was_relaxed() -> None:
    log: dict[str, float] = {}

    @torchjanus.speculate(executor="replay")
    def step(x: torch.Tensor, name: str) -> None:
        log[name] = x.sum().item()

    for number in range(10):
        step(torch.ones(2) * number, f"step {number}")
    assert log == {f"step {number}": 2.0 * number for number in range(10)}
    assert step.statistics().speculated == 5
    assert [event.text for event in step.events if event.kind == "relax"] == [
        "name was another text again: it is an input from now on"
    ]
