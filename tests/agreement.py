"""Runs a step eagerly and speculated, and compares all that a program could see: for tests of single modules."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torchjanus
from tests.programs import harness

__all__ = ["agree", "reported", "served"]


def agree(make: Callable[..., harness.Program], executor: str = "replay", close: float = 0.0) -> list[Any]:
    """The speculated functions of a program, after all of its calls, each of which was found to be eager's.

    ``make`` is as in the corpus: it returns a Program, whose step is speculated, or takes ``jit``.
    ``close``: how far floating-point numbers may be from eager's, relatively.
    """
    module: Any = types.SimpleNamespace(__file__=make.__code__.co_filename, make=make)
    eager = harness.run_in(module, "make", None)
    other = harness.run_in(module, "make", executor)
    assert harness.compare(eager, other, close) == []
    faults = [event.text for step in other.steps for event in step.events if event.kind == "fault"]
    assert faults == []
    return other.steps


def served(make: Callable[..., harness.Program], executor: str = "replay", close: float = 0.0) -> int:
    """How many calls ran as a graph, in a program whose calls all were eager's."""
    return sum(step.statistics().speculated for step in agree(make, executor, close))


def reported(make: Callable[..., harness.Program]) -> str:
    """What ``explain`` says of a program whose calls all were eager's."""
    return "\n".join(str(torchjanus.explain(step, detail=True)) for step in agree(make))
