"""Under imperative semantics, a rewritten program is the program."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType, FunctionType
from typing import Any

import pytest

from torchjanus.rewrite import is_rewritten
from torchjanus.rewrite.hooks import rewritten, using
from torchjanus.semantics.protocols.imperative import Imperative
from torchjanus.semantics.protocols.virtualize import virtualize


def running() -> list[tuple[str, bool]]:
    """The functions of this file on the stack, innermost first, and whether they are rewritten; "..." for others."""
    out: list[tuple[str, bool]] = []
    frame: FrameType | None = sys._getframe(0)
    while frame is not None and not frame.f_code.co_name.startswith("test_"):
        ours = frame.f_code.co_filename == __file__
        out.append((frame.f_code.co_name, is_rewritten(frame.f_code)) if ours else ("...", True))
        frame = frame.f_back
    return out


def helper() -> Any:
    return running()


class Thing:
    @property
    def prop(self) -> Any:
        return running()

    def method(self) -> Any:
        return running()

    def __call__(self) -> Any:
        return running()

    @classmethod
    def made(cls) -> Any:
        return running()

    @staticmethod
    def plain() -> Any:
        return running()


@functools.wraps(helper)
def wrapping() -> Any:
    return helper()


def direct(thing: Thing) -> Any:
    return helper()


def method(thing: Thing) -> Any:
    return thing.method()


def called(thing: Thing) -> Any:
    return thing()


def class_method(thing: Thing) -> Any:
    return thing.made()


def static_method(thing: Thing) -> Any:
    return thing.plain()


def wrapped(thing: Thing) -> Any:
    return wrapping()


def by_native_code(thing: Thing) -> Any:
    [seen] = map(lambda _: helper(), [1])
    return seen


def sorting(thing: Thing) -> Any:
    seen: list[Any] = []
    sorted([1], key=lambda _: seen.append(running()) or 0)  # type: ignore[func-returns-value]
    return seen[0]


DIRECT = [direct, method, called, class_method, static_method, wrapped]


@pytest.mark.parametrize("program", [*DIRECT, by_native_code, sorting])
def test_everything_on_the_stack_is_rewritten(program: Callable[[Thing], Any]) -> None:
    assert isinstance(program, FunctionType)
    expected = program(Thing())
    with using(Imperative()):
        got = rewritten(program)(Thing())
    assert [name for name, _ in got if name != "..."] == [name for name, _ in expected]
    assert all(was_rewritten for _, was_rewritten in got)
    if program in DIRECT:  # nothing of ours stands between a caller and what it calls
        assert len(got) == len(expected)


def test_properties_run_rewritten() -> None:
    def read(thing: Thing) -> Any:
        return thing.prop

    assert virtualize(read, Imperative())(Thing())[:2] == [("running", True), ("prop", True)]


def test_recursion_goes_as_deep() -> None:
    def depth(n: int) -> int:
        try:
            return depth(n + 1)
        except RecursionError:
            return n

    plain = depth(0)
    assert virtualize(depth, Imperative())(0) > 0.95 * plain


def test_state_left_behind_is_the_same() -> None:
    class Meter:
        def __init__(self) -> None:
            self.total = 0.0
            self.history: list[float] = []

        def update(self, value: float) -> None:
            self.total += value
            self.history.append(value)

    def use(meter: Meter) -> float:
        for n in range(5):
            meter.update(n / 3)
        return meter.total

    one, two = Meter(), Meter()
    assert use(one) == virtualize(use, Imperative())(two)
    assert vars(one) == vars(two)
