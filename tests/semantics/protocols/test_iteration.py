"""Iteration, unpacking and context managers by Python's protocols: results, order of calls, errors, rewritten code."""

from __future__ import annotations

import builtins
import gc
import pickle
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

from torchjanus.rewrite import is_rewritten
from torchjanus.rewrite.hooks import rewritten, using
from torchjanus.semantics.protocols.imperative import Imperative

SEEN: list[Any] = []


def note(what: str) -> None:
    """Notes a call, and whether the caller runs rewritten."""
    SEEN.append((what, is_rewritten(sys._getframe(1).f_code)))


class Counting:
    """An iterator of its own."""

    def __init__(self, end: int) -> None:
        self.n, self.end = 0, end

    def __iter__(self) -> Counting:
        note("iter")
        return self

    def __next__(self) -> int:
        note("next")
        if self.n == self.end:
            raise StopIteration
        self.n += 1
        return self.n


class Indexed:
    """The old sequence protocol."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def __getitem__(self, index: int) -> Any:
        note("getitem")
        return self.items[index]

    def __len__(self) -> int:
        note("len")
        return len(self.items)


class Manager:
    def __init__(self, swallow: bool = False) -> None:
        self.swallow = swallow

    def __enter__(self) -> str:
        note("enter")
        return "entered"

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        note(f"exit {kind and kind.__name__}")
        return self.swallow


class Broken:
    def __iter__(self) -> int:
        return 3  # type: ignore[return-value]


def both(fn: Callable[[], Any], reached: bool = True) -> tuple[Any, Any]:
    """What a function gives or raises, as it is and rewritten, after the same calls. ``reached``: methods ran
    rewritten, too, and not as native code calls them."""
    outcomes, calls = [], []
    for run, semantics in ((fn, nullcontext()), (rewritten(fn), using(Imperative()))):
        SEEN.clear()
        try:
            with semantics:
                outcomes.append(("gave", run()))
        except Exception as error:
            outcomes.append((type(error).__name__, str(error)))
        calls.append([*SEEN])
    assert [what for what, _ in calls[0]] == [what for what, _ in calls[1]]
    assert not reached or all(ours for _, ours in calls[1])
    return outcomes[0], outcomes[1]


def loop(iterable: Any) -> list[Any]:
    return [value for value in iterable]


def unpacked(iterable: Any) -> Any:
    first, *rest, last = iterable
    return first, rest, last


def exactly_two(iterable: Any) -> Any:
    a, b = iterable
    return a, b


def delegated(iterable: Any) -> list[Any]:
    def generator() -> Iterator[Any]:
        result = yield from iterable
        yield result

    return list(generator())


def entered(manager: Manager, fails: bool) -> Any:
    with manager as value:
        if fails:
            raise KeyError("k")
    return value


def reduced_by_a_name_that_exhausts() -> Any:
    """Iterators look ``iter`` and ``reversed`` up as they are reduced: here a key of builtins that uses them up."""
    names, gave = {"iter": iter, "reversed": reversed}, []

    class Key:
        def __init__(self, name: str, iterator: Any) -> None:
            self.name, self.iterator = name, iterator

        def __hash__(self) -> int:
            return hash(self.name)

        def __eq__(self, other: object) -> bool:
            list(self.iterator)
            return other == self.name

    try:
        for name, iterator in (
            ("iter", iter(Indexed(1, 2))),
            ("reversed", reversed([1, 2])),
            ("iter", iter(lambda: 1, 1)),
        ):
            del vars(builtins)[name]
            vars(builtins)[Key(name, iterator)] = names[name]  # type: ignore[index]
            gave.append(iterator.__reduce__()[1:])
            del vars(builtins)[name]
            vars(builtins)[name] = names[name]
    finally:
        for name, value in names.items():
            vars(builtins).pop(name, None)  # a key that is equal would stay
            vars(builtins)[name] = value
    return gave


def freed(made: Callable[[Any], Iterator[Any]]) -> Any:
    """Whether an iterator that has ended still holds what it went over."""

    class Brief(Indexed):
        def __call__(self) -> int:
            return 0

    brief = Brief()
    gone, iterator = weakref.ref(brief), made(brief)
    del brief
    ended = next(iterator, "ended")
    gc.collect()
    return ended, gone() is None


CASES: dict[str, Callable[[], Any]] = {
    "for": lambda: loop(Counting(3)),
    "for over nothing": lambda: loop(Counting(0)),
    "for by index": lambda: loop(Indexed("a", "b")),
    "for by no index": lambda: loop(Indexed()),
    "for over what is no iterable": lambda: loop(3),
    "an iter that gives no iterator": lambda: loop(Broken()),
    "unpacking": lambda: unpacked(Counting(4)),
    "unpacking of just enough": lambda: unpacked(Counting(2)),
    "unpacking of too few": lambda: unpacked(Counting(1)),
    "unpacking of two": lambda: exactly_two(Counting(2)),
    "unpacking of too many": lambda: exactly_two(Counting(3)),
    "unpacking of none": lambda: exactly_two(Indexed()),
    "starred arguments": lambda: max(*Counting(3)),
    "starred in a display": lambda: [*Counting(2), *Indexed(1), *Counting(0)],
    "yield from": lambda: delegated(Counting(2)),
    "yield from an index": lambda: delegated(Indexed(1, 2)),
    "used up": lambda: (list(Counting(2)), tuple(Indexed(1)), sum(Counting(3))),
    "next": lambda: (next(Counting(1)), next(Counting(0), "none")),
    "next of none": lambda: next(Counting(0)),
    "reversed": lambda: list(reversed(Indexed(1, 2, 3))),
    "iter with an end": lambda: list(iter(Counting(9).__next__, 3)),
    "zip and enumerate": lambda: list(zip(Counting(3), enumerate(Indexed("a", "b")))),
    "freed by an index": lambda: freed(iter),
    "freed reversed": lambda: freed(reversed),  # type: ignore[arg-type]
    "freed with an end": lambda: freed(lambda brief: iter(brief, 0)),
    "with": lambda: entered(Manager(), False),
    "with an error": lambda: entered(Manager(), True),
    "with an error that is swallowed": lambda: entered(Manager(True), True),
    "with what is no manager": lambda: entered(3, False),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CASES)
def test_protocols_are_pythons_and_reach_rewritten_code(name: str) -> None:
    eager, other = both(CASES[name])
    assert eager == other


def test_a_reduction_may_exhaust_the_iterator() -> None:
    eager, other = both(reduced_by_a_name_that_exhausts, reached=False)  # native code looks the names up
    assert eager == other
    assert eager[0] == "gave"


def test_an_iterator_may_be_pickled_where_it_is() -> None:
    def half_way() -> Any:
        iterator = iter([1, 2, 3])
        next(iterator)
        return list(pickle.loads(pickle.dumps(iterator)))

    eager, other = both(half_way)
    assert eager == other == ("gave", [2, 3])
