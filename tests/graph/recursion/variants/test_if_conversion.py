"""Variants merged where a tensor decides between them: what the merged trace does, and what is not merged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.graph.recursion.learnt import Learnt, Node
from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.recursion.grouping import variants as grouping
from torchjanus.graph.recursion.variants import if_conversion
from torchjanus.graph.recursion.variants.if_conversion import converted
from torchjanus.graph.recursion.variants.predicates import DECIDED, MergedVariant
from torchjanus.trace.actions import InvokeOp, Op

Arm = Callable[[torch.Tensor], torch.Tensor]
WORDS = torch.tensor([[1.0, 1.0, 1.0], [-1.0, -1.0, -1.0]])
TREES = (Node(0), Node(1), Node(0, Node(0)), Node(1, Node(1)))


@functools.cache
def learnt(positive: Arm, negative: Arm) -> tuple[Learnt, list[InvokeOp]]:
    """Return what is learnt of a function of two arms, and the calls that were to be merged first."""
    met: list[list[InvokeOp]] = []

    def noted(events: Any) -> MergedVariant:
        met.append(list(events))
        return converted(events)

    def encode(node: Any) -> torch.Tensor:
        h = WORDS[node.word] * 1.0
        for child in node.children:
            h = h + encode(child) * 0.1
        if h.sum() > 0:
            return positive(h)
        return negative(h)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "converted", noted)
        made = Learnt(encode, *TREES)
    for tree in TREES:
        torch.testing.assert_close(made.step(tree), encode(tree))
    return made, met[0]


def double(h: torch.Tensor) -> torch.Tensor:
    return h * 2


def test_both_arms_are_computed_and_selected_from() -> None:
    _, events = learnt(double, torch.tanh)
    switch = converted(events)
    names = [event.name for event in switch.event.call.events if isinstance(event, Op)]
    assert any("tanh" in name for name in names) and "masked" in names
    assert sum(isinstance(event, Op) and event.func in DECIDED for event in switch.event.call.events) >= 1
    assert len(switch.paths) == len(events) == 2
    assert switch.paths[0] != switch.paths[1]


def test_the_merged_calls_are_left_as_they_were() -> None:
    _, events = learnt(double, torch.tanh)
    before = [event.call.tokens() for event in events]
    converted(events)
    assert [event.call.tokens() for event in events] == before


@pytest.mark.parametrize(
    ("arm", "detail"),
    [
        (torch.log, "not defined or smooth for all values"),
        (lambda h: h / h.sum(), "not defined or smooth for all values"),
    ],
)
def test_what_cannot_be_computed_for_all_calls_is_not_merged(arm: Arm, detail: str) -> None:
    _, events = learnt(arm, double)
    with pytest.raises(NotMergeable, match=detail) as error:
        converted(events)
    assert error.value.reason == "recursion-branch"


def test_arms_that_return_different_kinds_of_values_are_not_merged() -> None:
    first, second = learnt(double, torch.tanh)[1]
    with pytest.raises(NotMergeable, match="different kinds of values"):
        converted([first, replace(second, made=("another", "structure"))])


def test_powers_and_divisions_by_constants_are_merged() -> None:
    _, events = learnt(lambda h: h.pow(2) / 3, double)
    assert converted(events).event.made == events[0].made


def test_only_so_many_arms_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    _, events = learnt(double, torch.tanh)
    monkeypatch.setattr(if_conversion, "MAX_LEAVES", 1)
    with pytest.raises(NotMergeable, match="more than 1"):
        converted(events)


def test_the_report_says_why() -> None:
    step, _ = learnt(torch.log, double)
    (event,) = {event.text for event in step.step.events if event.reason == "recursion-branch"}
    assert "an arm runs an operation that is not defined or smooth for all values" in event
