"""Lists to which recursive calls append, and what is only passed on to calls: runs over other trees are one path."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.core.access_path import AccessPath
from torchjanus.runtime.runs.paths import Paths
from torchjanus.trace.actions import InvokeOp
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead


class Leaf:
    def __init__(self, x: float) -> None:
        self.x = x


class Inner:
    def __init__(self, *parts: Any) -> None:
        self.parts = parts


def encode(tree: Any, found: list[torch.Tensor]) -> torch.Tensor:
    if isinstance(tree, Leaf):
        h = torch.ones(2) * tree.x
    else:
        h = torch.zeros(2)
        for part in tree.parts:
            h = h + encode(part, found)
    found.append(h * 2)
    return h


def step(trees: list[Any]) -> torch.Tensor:
    found: list[torch.Tensor] = []
    for tree in trees:
        encode(tree, found)
    return torch.stack(found).sum(1).cumsum(0) / len(found)


SMALL = [Inner(Leaf(1.0), Leaf(2.0)), Leaf(3.0)]
LARGE = [Leaf(1.0), Inner(Leaf(2.0), Inner(Leaf(3.0), Leaf(4.0)))]


@pytest.fixture
def paths(monkeypatch: pytest.MonkeyPatch) -> list[Trace]:
    """The runs that entries are made from."""
    met: list[Trace] = []
    group_of = Paths.group_of

    def noted(self: Paths, trace: Trace, shape: Any) -> Any:
        met.append(trace)
        return group_of(self, trace, shape)

    monkeypatch.setattr(Paths, "group_of", noted)
    return met


def test_runs_over_other_trees_take_one_path(paths: list[Trace]) -> None:
    jitted = torchjanus.speculate(step, executor="replay")
    for trees in (SMALL, LARGE, SMALL, LARGE, SMALL, LARGE, SMALL):
        assert torch.equal(jitted(trees), step(trees))
    assert jitted.statistics().entries == 1
    assert jitted.statistics().speculated >= 2
    small, large = (path for path in paths[-2:])
    assert small.tokens() == large.tokens()
    lengths = {
        e.value.size(0)
        for p in paths
        for e in p.events
        if isinstance(e, HeapRead) and e.access_path == AccessPath.grown(0)
    }
    assert lengths == {4, 6}


def test_roots_are_of_no_class(paths: list[Trace]) -> None:
    jitted = torchjanus.speculate(step, executor="replay")
    for trees in (SMALL, LARGE, SMALL, LARGE, SMALL):
        jitted(trees)
    called = [path for path in paths if any(isinstance(event, InvokeOp) for event in path.events)]
    assert called
    assert not any(
        isinstance(e, HeapRead) and isinstance(e.value, Leaf | Inner) for path in called for e in path.events
    )


def test_the_list_is_that_of_each_run() -> None:
    jitted = torchjanus.speculate(step, executor="replay")
    results = [jitted(trees) for trees in (SMALL, LARGE) * 4]
    assert [len(result) for result in results] == [4, 6] * 4
