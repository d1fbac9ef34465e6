"""Reads and writes of attributes, globals and variables: what a watch records of objects from before the call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.agreement import agree
from tests.programs.harness import Program
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import HeapWrite
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, KeyLookup

RATE = 2.0


def watched(fn: Any, *args: Any) -> tuple[Any, Trace]:
    return watch_call(fn, (), args, {})


def reads(trace: Trace) -> list[str]:
    return [str(event.access_path) for event in trace.events if isinstance(event, HeapRead)]


def writes(trace: Trace) -> list[str]:
    return [str(event) for event in trace.events if isinstance(event, HeapWrite)]


class Slotted:
    __slots__ = ("a", "b")


class Described:
    scale = 3.0

    def __init__(self) -> None:
        self._n = 1

    @property
    def n(self) -> int:
        return self._n

    @n.setter
    def n(self, value: int) -> None:
        self._n = value * 2


def test_where_attributes_are_found() -> None:
    state = SimpleNamespace(inner=SimpleNamespace(n=2))
    result, trace = watched(lambda: state.inner.n)
    assert result == 2
    assert "state.inner.n" in reads(trace)
    assert trace.refusals == []


def test_a_missing_attribute_is_noted_and_raises() -> None:
    state = SimpleNamespace()

    def step() -> str:
        try:
            return state.n
        except AttributeError as error:
            return str(error)

    result, trace = watched(step)
    assert result == "'types.SimpleNamespace' object has no attribute 'n'"
    absent = [(event.key, event.present) for event in trace.events if isinstance(event, KeyLookup)]
    assert ("n", False) in absent


def test_a_global_is_found_and_written() -> None:
    def step() -> float:
        global RATE
        RATE = RATE + 1
        return RATE

    global RATE
    before = RATE
    try:
        result, trace = watched(step)
        assert result == RATE == before + 1
        assert any("RATE" in text for text in reads(trace))
        assert any("RATE" in text for text in writes(trace))
    finally:
        RATE = before


def test_an_enclosing_variable_is_found_and_written() -> None:
    count = 5

    def step() -> int:
        nonlocal count
        count += 1
        return count

    result, trace = watched(step)
    assert result == count == 6
    assert any("count" in text for text in reads(trace))
    assert any("count" in text for text in writes(trace))


def test_properties_and_class_attributes() -> None:
    thing = Described()

    def step() -> Any:
        thing.n = 5
        return thing.n, thing.scale

    result, trace = watched(step)
    assert result == (10, 3.0)
    assert len(writes(trace)) == 1


def test_a_parameter_of_a_module_is_found_in_its_registry() -> None:
    model = nn.Linear(2, 1)
    _, trace = watched(lambda x: model.weight * x, torch.ones(2))
    assert any("weight" in text for text in reads(trace))


def test_new_objects_are_private() -> None:
    def step(x: torch.Tensor) -> Any:
        made = SimpleNamespace(n=1)
        made.n += 1
        made.x = x
        return made.n

    result, trace = watched(step, torch.ones(1))
    assert result == 2
    assert writes(trace) == []


STEPS: dict[str, Any] = {
    "counter": lambda o, x: (setattr(o, "n", o.n + 1), x * o.n),
    "deleted and set": lambda o, x: (delattr(o, "n"), setattr(o, "n", 7), x * o.n),
    "a new attribute": lambda o, x: (setattr(o, "more", x.sum().item()), x),
    "hasattr": lambda o, x: (hasattr(o, "n"), hasattr(o, "none"), getattr(o, "none", 3), x * 2),
    "a tensor": lambda o, x: (setattr(o, "t", o.t + x), o.t.sum()),
    "vars": lambda o, x: (sorted(vars(o)), vars(o).get("n"), x * 2),
    "swapped": lambda o, x: (setattr(o, "n", o.m), setattr(o, "m", o.n + 1), x * o.m),
}


@pytest.mark.parametrize("name", STEPS)
def test_attributes_are_as_in_eager(name: str) -> None:
    work = STEPS[name]

    def make() -> Program:
        state = SimpleNamespace(n=1, m=2, t=torch.zeros(3))

        def step(x: torch.Tensor) -> Any:
            return work(state, x)

        return Program(step, [(torch.full((3,), float(n)),) for n in range(10)], state=state)

    (speculated,) = agree(make)
    assert speculated.statistics().speculated >= 5


def test_slots_are_as_in_eager() -> None:
    def make() -> Program:
        state = Slotted()
        state.a = 1

        def step(x: torch.Tensor) -> Any:
            state.a += 1
            before = hasattr(state, "b")
            state.b = x.sum().item()
            return x * state.a, before

        return Program(step, [(torch.ones(2),)] * 10, state=state)

    (speculated,) = agree(make)
    assert speculated.statistics().speculated >= 5
