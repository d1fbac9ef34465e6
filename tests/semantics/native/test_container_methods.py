"""Methods of containers from before the call: what they return, what they change, what they raise."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.agreement import agree
from tests.programs.harness import Program


def raised(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def sequences() -> list[Any]:
    return [1.0, 2.0, 3.0]


METHODS: dict[str, tuple[Callable[[], Any], Callable[[Any, float], Any]]] = {
    "append": (sequences, lambda c, n: c.append(n)),
    "extend": (sequences, lambda c, n: (c.extend([n, 2]), c.extend(()))),
    "insert": (sequences, lambda c, n: (c.insert(0, n), c.insert(99, n), c.insert(-1, n))),
    "pop": (sequences, lambda c, n: (c.append(n), c.pop(), c.append(n), c.pop(0))),
    "pop of an empty list": (list, lambda c, n: raised(c.pop)),
    "remove": (sequences, lambda c, n: (c.append(7.5), c.remove(7.5), raised(c.remove, "none"))),
    "index and count": (sequences, lambda c, n: (c.index(2.0), c.count(9.0), raised(c.index, -1.0), c.index(3.0, 1))),
    "clear": (sequences, lambda c, n: (c.clear(), c.append(n))),
    "reverse and sort": (sequences, lambda c, n: (c.reverse(), c.sort(), c.sort(key=lambda v: -v), c[0])),
    "item assignment": (sequences, lambda c, n: c.__setitem__(slice(0, 1), [n, n])),
    "multiplied in place": (lambda: [1.0], lambda c, n: (c.__imul__(1), c.copy())),
    "deque": (lambda: collections.deque([1.0], 3), lambda c, n: (c.appendleft(n), c.rotate(1), c.popleft())),
    "empty deque": (lambda: collections.deque(maxlen=0), lambda c, n: (c.append(n), len(c), raised(c.popleft))),
    "get": (lambda: {"a": 1.0}, lambda c, n: (c.get("a"), c.get("b"), c.get("b", n))),
    "setdefault": (lambda: {"a": 1.0}, lambda c, n: (c.setdefault("a", n), c.setdefault(n, n))),
    "dictionary's pop": (dict, lambda c, n: (c.pop("b", n), raised(c.pop, "b"), c.update(a=n), c.pop("a"))),
    "update": (lambda: {"a": 1.0}, lambda c, n: (c.update({"b": n}), c.update([("c", 1)], d=n), c.update())),
    "popitem": (dict, lambda c, n: (raised(c.popitem), c.update(k=n), c.popitem())),
    "union": (lambda: {"a": 1.0}, lambda c, n: (c | {"b": n}, c.__ior__({"a": n}), c.copy())),
    "ordered": (collections.OrderedDict, lambda c, n: (c.update(a=n, b=1), c.move_to_end("a"), c.popitem(last=False))),
    "counter": (collections.Counter, lambda c, n: (c.update("aab"), c["a"], c["z"], c.most_common(1))),
    "default": (lambda: collections.defaultdict(list), lambda c, n: (c["k"].append(n), c.get("j"), len(c))),
    "set": (lambda: {1.0}, lambda c, n: (c.add(n), c.discard(55.0), raised(c.remove, 55.0), c.add(2.0), 2.0 in c)),
    "set algebra": (lambda: {1.0, 2.0}, lambda c, n: (c | {3.0}, c & {2.0}, c - {1.0}, c ^ {1.0}, c.issubset({1.0}))),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_a_method_does_what_it_does_in_eager(name: str) -> None:
    fresh, method = METHODS[name]

    def make() -> Program:
        container = fresh()

        def step(x: torch.Tensor, n: float) -> Any:
            return x * 2, method(container, n)

        return Program(step, [(torch.ones(2), float(n)) for n in range(8)], state=container)

    (speculated,) = agree(make)
    assert speculated.statistics().calls == 8


def test_appends_of_changing_numbers_are_served() -> None:
    def make() -> Program:
        history: list[float] = []

        def step(x: torch.Tensor, n: float) -> Any:
            history.append(n * 2)
            return x * history[-1]

        return Program(step, [(torch.ones(2), float(n)) for n in range(10)], state=history)

    (speculated,) = agree(make)
    assert speculated.statistics().speculated >= 6


def test_what_is_appended_is_left_out_where_the_step_raises_afterwards() -> None:
    def make() -> Program:
        history: list[float] = []

        def step(x: torch.Tensor) -> Any:
            history.append(x.sum().item())
            if x.sum() > 5:
                raise ValueError("too much")
            return x * 2

        return Program(step, [(torch.full((2,), float(n % 4)),) for n in range(12)], state=history)

    agree(make)
