"""Python's protocols, reached: whatever Python-level code an operation triggers runs rewritten."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import pytest

from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import rewritten, using
from torchjanus.semantics.protocols.imperative import Imperative
from torchjanus.semantics.protocols.protocols import Protocols


class Entering(Protocols):
    """Notes which Python functions are entered."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: list[str] = []

    def enter(self, at: Site, fn: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.entered.append(fn.__name__)
        return super().enter(at, fn, args, kwargs)


class Number:
    def __init__(self, value: float) -> None:
        self.value = value

    def __add__(self, other: Any) -> Any:
        return Number(self.value + (other.value if isinstance(other, Number) else other))

    def __radd__(self, other: Any) -> Any:
        return Number(other + self.value)

    def __lt__(self, other: Any) -> bool:
        return self.value < other.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Number) and self.value == other.value

    def __bool__(self) -> bool:
        return self.value != 0

    def __iter__(self) -> Iterator[float]:
        yield self.value
        yield 2 * self.value

    def __len__(self) -> int:
        return 2

    def __contains__(self, other: Any) -> bool:
        return bool(other == self.value)

    def __getitem__(self, key: Any) -> Any:
        return key, self.value

    def __setitem__(self, key: Any, value: Any) -> None:
        self.value = value

    def __neg__(self) -> Number:
        return Number(-self.value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name * 2

    def __repr__(self) -> str:
        return f"Number({self.value})"

    def __format__(self, spec: str) -> str:
        return f"<{self.value:{spec}}>"

    @property
    def double(self) -> float:
        return self.value * 2

    @double.setter
    def double(self, value: float) -> None:
        self.value = value / 2


@contextlib.contextmanager
def lent(value: int) -> Iterator[int]:
    yield value


def assign_double(number: Number) -> float:
    number.double = 10
    return number.value


def store_item(number: Number) -> float:
    number[1] = 5
    return number.value


def with_lent(number: Number) -> int:
    with lent(3) as three:
        return three


def unpacked(number: Number) -> Any:
    one, two = number
    return one, two


def looped(number: Number) -> Any:
    out = []
    for each in number:
        out.append(each)
    return out


PROGRAMS: list[tuple[Callable[[Number], Any], list[str]]] = [
    (lambda n: (n + 1).value, ["__add__", "__init__"]),
    (lambda n: (1 + n).value, ["__radd__", "__init__"]),
    (lambda n: n < n, ["__lt__"]),
    (lambda n: n != n, ["__eq__"]),
    (lambda n: not n, ["__bool__"]),
    (lambda n: n and 1, ["__bool__"]),
    (lambda n: list(n), ["__iter__"]),
    (lambda n: [*n], ["__iter__"]),
    (lambda n: len(n), ["__len__"]),
    (lambda n: 3 in n, ["__contains__"]),
    (lambda n: n[1:2], ["__getitem__"]),
    (lambda n: (-n).value, ["__neg__", "__init__"]),
    (lambda n: n(1, a=2), ["__call__"]),
    (lambda n: n.abc, ["__getattr__"]),
    (lambda n: getattr(n, "abc"), ["__getattr__"]),
    (lambda n: n.double, ["double"]),
    (lambda n: repr(n), ["__repr__"]),
    (lambda n: str(n), ["__repr__"]),
    (lambda n: f"{n!r}", ["__repr__"]),
    (lambda n: f"{n:>4}", ["__format__"]),
    (lambda n: bool(n), ["__bool__"]),
    (lambda n: functools.partial(n, 1)(2), ["__call__"]),
    (assign_double, ["double"]),
    (store_item, ["__setitem__"]),
    (with_lent, ["lent", "__init__", "lent", "__enter__", "__exit__"]),
    (unpacked, ["__iter__"]),
    (looped, ["__iter__"]),
]


@pytest.mark.parametrize(("program", "entered"), PROGRAMS, ids=[str(number) for number in range(len(PROGRAMS))])
def test_python_level_code_is_entered(program: FunctionType, entered: list[str]) -> None:
    expected = program(Number(3))
    semantics = Entering()
    with using(semantics):
        assert rewritten(program)(Number(3)) == expected
    seen = semantics.entered
    assert seen[: len(entered)] == entered
    with using(Imperative()):
        assert rewritten(program)(Number(3)) == expected
