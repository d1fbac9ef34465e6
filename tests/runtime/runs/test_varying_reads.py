"""Which texts and looked up objects are relaxed: texts seen with three values, objects with two, each place once."""

from __future__ import annotations

import gc
import weakref

import torch

import torchjanus
from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Place
from torchjanus.runtime.runs.varying_reads import MANY_OBJECTS, MANY_TEXTS, VaryingReads
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, IdentityTest, KeyLookup


def run_with(**texts: str) -> Trace:
    trace = Trace()
    trace.events += [
        HeapRead(AccessPath.kwarg(name), text, "constant", place=Place("p.py", 1)) for name, text in texts.items()
    ]
    return trace


def test_the_third_value_relaxes() -> None:
    reads = VaryingReads()
    assert reads.learn(run_with(mode="train", name="a")) == []
    assert reads.learn(run_with(mode="eval", name="b")) == []
    assert reads.learn(run_with(mode="train", name="c")) == [(AccessPath.kwarg("name"), "text", Place("p.py", 1))]
    assert reads.learn(run_with(mode="eval", name="d")) == [], "a place is relaxed once"
    assert reads.loose == {AccessPath.kwarg("name")}
    assert MANY_TEXTS == 3


def test_other_constants_are_left_alone() -> None:
    reads = VaryingReads()
    for value in (b"a", True, None, 1j):
        trace = Trace()
        trace.events.append(HeapRead(AccessPath.kwarg("k"), value, "constant"))
        assert reads.learn(trace) == []


def run_that_looks_up(key: object, *, looked_up: bool = True) -> Trace:
    trace = Trace()
    trace.alive.append(key)
    trace.events.append(IdentityTest(AccessPath.kwarg("key"), AccessPath.const(key), True, Place("p.py", 2)))
    if looked_up:
        trace.events.append(KeyLookup(AccessPath.kwarg("table"), key, True))
    return trace


def test_the_second_object_that_is_looked_up_relaxes() -> None:
    reads = VaryingReads()
    first, second = object(), object()
    assert reads.learn(run_that_looks_up(first)) == []
    assert reads.learn(run_that_looks_up(first)) == []
    assert reads.learn(run_that_looks_up(second)) == [(AccessPath.kwarg("key"), "object", Place("p.py", 2))]
    assert reads.loose == {AccessPath.kwarg("key")}
    assert MANY_OBJECTS == 2


def test_an_object_that_is_only_compared_stays_constant() -> None:
    reads = VaryingReads()
    runs = [run_that_looks_up(object(), looked_up=False) for _ in range(4)]
    assert [reads.learn(run) for run in runs] == [[], [], [], []]


def test_models_one_after_the_other_share_a_graph_and_are_let_go() -> None:
    @torchjanus.speculate(executor="replay")
    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    alive = []
    for number in range(10):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        before = step.statistics().watched
        for _ in range(5):
            step(model, optimizer, torch.randn(4, 3))
        if number > 3:
            assert step.statistics().watched == before, "graphs for the models before serve this one"
        alive.append(weakref.ref(model))
        del model, optimizer
        gc.collect()
    assert sum(one() is not None for one in alive) <= 4
    assert len(step.entries) <= 2


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
