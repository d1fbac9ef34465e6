"""Builtins that run Python-level methods behind the scenes: the same calls, results and errors, in rewritten code."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any

import pytest

from tests.semantics.protocols.test_iteration import Counting, Indexed, both, note


class Number:
    """A number whose methods are Python functions."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        note("len")
        return self.n

    def __abs__(self) -> int:
        note("abs")
        return abs(self.n)

    def __repr__(self) -> str:
        note("repr")
        return f"Number({self.n})"

    def __format__(self, spec: str) -> str:
        note("format")
        return f"{self.n:{spec}}"

    def __bool__(self) -> bool:
        note("bool")
        return self.n > 0

    def __hash__(self) -> int:
        note("hash")
        return hash(self.n)

    def __eq__(self, other: object) -> bool:
        note("eq")
        return isinstance(other, Number) and self.n == other.n

    def __lt__(self, other: Number) -> bool:
        note("lt")
        return self.n < other.n

    def __add__(self, other: Any) -> Any:
        note("add")
        return Number(self.n + getattr(other, "n", other))

    def __radd__(self, other: Any) -> Any:
        note("radd")
        return Number(self.n + other)

    def __iadd__(self, other: Any) -> Any:
        note("iadd")
        self.n += other
        return self

    def __call__(self, *args: Any) -> int:
        note("call")
        return self.n + sum(args)


class Attributes:
    def __init__(self) -> None:
        object.__setattr__(self, "held", {"x": 1})

    def __getattr__(self, name: str) -> Any:
        note("getattr")
        try:
            return self.held[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        note("setattr")
        self.held[name] = value

    def __delattr__(self, name: str) -> None:
        note("delattr")
        del self.held[name]


class Kind(type):
    def __instancecheck__(cls, value: Any) -> bool:
        note("instancecheck")
        return hasattr(value, "n")

    def __subclasscheck__(cls, other: type) -> bool:
        note("subclasscheck")
        return other is Number


class Numbered(metaclass=Kind):
    pass


class Mapping:
    def keys(self) -> list[str]:
        note("keys")
        return ["a", "b"]

    def __getitem__(self, key: str) -> str:
        note("getitem")
        return key * 2


class Reversible:
    def __reversed__(self) -> Any:
        note("reversed")
        return iter([3, 2])


def key(value: Any) -> Any:
    note("key")
    return -value


def changed(target: Any, *steps: Callable[[Any], Any]) -> Any:
    return [step(target) for step in steps]


def negative() -> Any:
    return len(Number(-1))


def added() -> Any:
    number = Number(1)
    number += 2
    return number.n


CASES: dict[str, Callable[[], Any]] = {
    "len": lambda: (len(Number(3)), len(Indexed()), bool(Number(0))),
    "a negative length": negative,
    "abs": lambda: abs(Number(-4)),
    "abs of what has none": lambda: abs(Indexed(1)),  # type: ignore[arg-type]
    "texts": lambda: (repr(Number(1)), str(Number(2)), f"{Number(3):>4}", format(Number(4), "x")),
    "calls": lambda: (Number(1)(2, 3), callable(Number(1)), callable(Counting(1))),
    "equality": lambda: (Number(1) == Number(1), Number(1) == 1, Number(1) < Number(2)),
    "iter and next": lambda: (next(iter(Counting(2))), next(iter(Counting(0)), None), next(iter(Indexed(5)))),
    "iter of what is no iterable": lambda: iter(Number(1)),  # type: ignore[call-overload]
    "reversed": lambda: (list(reversed(Reversible())), list(reversed(Indexed(1, 2)))),
    "reversed of what has no order": lambda: reversed(Counting(1)),  # type: ignore[call-overload]
    "getattr": lambda: changed(Attributes(), lambda o: o.x, lambda o: getattr(o, "x"), lambda o: getattr(o, "y", 9)),
    "hasattr": lambda: changed(Attributes(), lambda o: hasattr(o, "x"), lambda o: hasattr(o, "y")),
    "getattr of what there is not": lambda: Attributes().y,
    "setattr": lambda: changed(Attributes(), lambda o: setattr(o, "y", 2), lambda o: o.y, lambda o: delattr(o, "y")),
    "delattr of what there is not": lambda: delattr(Attributes(), "z"),
    "past the class's own access": lambda: changed(Attributes(), lambda o: object.__setattr__(o, "y", 3)),
    "instance checks": lambda: (isinstance(Number(1), Numbered), isinstance(3, (str, Numbered))),
    "subclass checks": lambda: (issubclass(Number, Numbered), issubclass(int, Numbered)),
    "instance of what is no class": lambda: isinstance(3, 4),  # type: ignore[arg-type]
    "sorted": lambda: sorted([2, 1, 3], key=key),
    "least and largest": lambda: (min(Counting(3)), max([1, 2], key=key), min([], default=None)),
    "least of nothing": lambda: min(Counting(0)),
    "sums": lambda: (sum(Counting(3), 4), sum(Counting(0))),
    "map and filter": lambda: (list(map(key, Counting(2))), list(filter(key, Counting(2))), list(map(key, []))),
    "any and all": lambda: (any(Counting(0)), all(Counting(0)), any(Counting(2))),
    "reduce": lambda: (functools.reduce(operator.add, Counting(3)), functools.reduce(operator.add, [], 5)),
    "itertools": lambda: list(itertools.chain(Counting(2), itertools.islice(Indexed(1, 2, 3), 2))),
    "dictionaries of mappings": lambda: (dict(Mapping()), {**Mapping()}, dict(**Mapping()), dict(Mapping(), c=1)),
    "containers": lambda: (list(Counting(2)), tuple(Counting(0)), set(Counting(2)), dict(zip(Counting(2), "ab"))),
    "in place": added,
}  # fmt: skip
# What native code asks of elements, it asks by itself.
NATIVE: dict[str, Callable[[], Any]] = {
    "ascii": lambda: ascii(Number(5)),
    "keys": lambda: len({Number(1), Number(1), Number(2)}),
    "sorted": lambda: [n.n for n in sorted([Number(2), Number(1)])],
    "sum": lambda: (sum([Number(1), Number(2)]).n, any([Number(0), Number(1)]), all([Number(0), Number(1)])),
    "membership": lambda: (Number(2) in [Number(1), Number(2)], [Number(1)].index(Number(1)), [Number(1)].count(2)),
    "index of what there is not": lambda: [Number(1)].index(Number(3)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_builtin_makes_pythons_calls_and_reaches_rewritten_code(name: str) -> None:
    eager, other = both(CASES[name])
    assert eager == other


@pytest.mark.parametrize("name", NATIVE)
def test_native_code_makes_the_same_calls_of_elements(name: str) -> None:
    eager, other = both(NATIVE[name], reached=False)
    assert eager == other
