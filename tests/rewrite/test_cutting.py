"""A function cut between two of its statements does what it did, wherever it can be cut."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import FunctionType
from typing import Any

import pytest
from torch import no_grad

from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite import cut, is_rewritten, sites_of, spans_of

FACTOR = 3
COUNT = 0


def plain(a: int, b: int = 2, *rest: int, scale: int = 1, **named: int) -> Any:
    """It has a text, too."""
    total = a + b
    first, (second, *others) = total, (a, *rest)
    total *= scale
    return total, first, second, others, named


def branches(a: int, b: int = 2, *rest: int, scale: int = 1, **named: int) -> Any:
    if a > 1:
        word = "large"
    else:
        word = "small"
    try:
        value = 10 // (a - 1)
    finally:
        done = True
    for number in rest:
        value += number
    return word, value, done


def comprehensions(a: int, b: int = 2, *rest: int, scale: int = 1, **named: int) -> Any:
    s = [s * scale for s in (a, b, *rest)]
    total = sum(n * FACTOR for n in s if n > scale)
    table = {n: n * total for n in s}
    n = len(table)
    return s, total, table, n


def functions(a: int, b: int = 2, *rest: int, scale: int = 1, **named: int) -> Any:
    def double(n: int) -> int:
        return n * b if n < 10 else double(n // 2)

    from math import floor as down

    class Point:
        x = a

    later = lambda n=b: n + a
    return double(a), down(a + 0.5), Point.x, later(), later(5), double.__qualname__, Point.__qualname__


def globals_and_with(a: int, b: int = 2, *rest: int, scale: int = 1, **named: int) -> Any:
    global COUNT
    COUNT = a
    with open(__file__) as file, no_grad():
        value = file.readline()
    COUNT += b
    return value, file.closed, COUNT


def an_error(a: int, b: int = 2, *rest: int, scale: int = 1, **named: int) -> Any:
    quotient = b / (a - 1)
    other = quotient / (a - 2)
    return other / (a - 3)


def returns_early(a: int, b: int = 2, *rest: int, scale: int = 1, **named: int) -> Any:
    if a == 1:
        return
    if b > 4:
        c = [(lambda: 5)(), b]
        return c[0], c[1:]
    else:
        c = [b]
    try:
        with no_grad():
            for number in rest:
                if number > 6:
                    return number, c
    finally:
        c.append(scale)
    return (a, c), named


CALLS: list[tuple[tuple[int, ...], dict[str, int]]] = [
    ((1,), {}), ((2, 5), {}), ((3, 4, 6, 7), {"scale": 4}), ((4,), {"scale": 2, "more": 9})
]  # fmt: skip
FUNCTIONS = [plain, branches, comprehensions, functions, globals_and_with, an_error, returns_early]


def outcome(fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    try:
        return fn(*args, **kwargs)
    except Exception as error:
        frames = [(f.name, f.lineno, f.filename) for f in traceback.extract_tb(error.__traceback__)]
        return type(error), str(error), [frame for frame in frames if frame[0] == getattr(fn, "__name__", "")]


def joined(first: Callable[..., Any], rest: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **kwargs: Any) -> Any:
        given = first(*args, **kwargs)
        return given[0] if type(given) is list else rest(*given[: rest.__code__.co_argcount])  # type: ignore[attr-defined]

    both.__name__ = first.__name__
    return both


def places_of(fn: FunctionType) -> list[int]:
    return list(range(1, len(spans_of(fn))))


@pytest.mark.parametrize(
    ("fn", "count"),
    [(fn, count) for fn in FUNCTIONS for count in places_of(fn)],
    ids=lambda v: getattr(v, "__name__", v),
)
def test_both_parts_do_what_the_function_does(fn: FunctionType, count: int) -> None:
    parts = cut(fn, count)
    assert parts is not None
    for args, kwargs in CALLS:
        assert outcome(joined(*parts), args, kwargs) == outcome(fn, args, kwargs)


def test_the_parts_are_found_and_rewritten_as_functions_of_the_file() -> None:
    parts = cut(plain, 2)
    assert parts is not None
    first, rest = parts
    assert [first.__name__, rest.__qualname__, rest.__module__] == ["plain", "plain", __name__]
    assert inspect.signature(first).parameters.keys() == inspect.signature(plain).parameters.keys()
    assert first.__code__.co_filename == rest.__code__.co_filename == plain.__code__.co_filename
    lines = {site.line for site in sites_of(rest)}
    assert lines and min(lines) > spans_of(plain)[1][0][0]
    assert not is_rewritten(rest.__code__)


def test_a_cell_of_the_function_is_one_of_both() -> None:
    count = 0

    def counts(a: int) -> int:
        nonlocal count
        count += a
        count += 10 * a
        return count

    for place in (1, 2, 3):
        count, parts = 0, cut(counts, place)
        assert parts is not None
        assert joined(*parts)(2) == 22 and count == 22


def test_what_is_the_same_in_each_call_is_not_carried() -> None:
    class Owner:
        def method(self, a: int) -> tuple[Any, int]:
            b = a + 1
            return self, b * a

    parts = cut(Owner.method, 1, leading=1)  # type: ignore[arg-type]
    assert parts is not None
    owner = Owner()
    assert parts[0](owner, 3) == (3, 4)
    assert parts[1](owner, 3, 4) == owner.method(3)


def test_what_the_rest_does_not_mention_lives_on_and_is_not_taken() -> None:
    def owner(a: int, b: int) -> int:
        c = a + b
        d = c * 2
        return d

    parts = cut(owner, 1)  # type: ignore[arg-type]
    assert parts is not None
    assert parts[0](1, 2) == (3, 1, 2)
    assert parts[1](3) == 6
    parts = cut(owner, 1, only_used=True)  # type: ignore[arg-type]
    assert parts is not None
    assert parts[0](1, 2) == (3,)


def may_not_be_set(a: int) -> Any:
    with suppress(ZeroDivisionError):
        value = 1 // (a - 1)
    b = 2
    return b if a == 1 else value


def looks_at_its_frame(a: int) -> Any:
    b = a
    return locals()


def only_some_iterations_set_it(a: int) -> Any:
    for b in range(a):
        c = b
    d = 1
    return c + d


def deletes(a: int) -> Any:
    b = a
    del a
    return b


def a_handler_deletes(a: int) -> Any:
    error = a
    try:
        int("a")
    except ValueError as error:
        pass
    return error


def a_handler_in_a_loop_deletes(a: int) -> Any:
    for _ in range(a):
        try:
            int("a")
        except ValueError as a:
            pass
    return a


def lets_go(a: int) -> Any:
    b = [a]
    del b
    return a


def a_function_sees_it_change(a: int) -> Any:
    b = a
    look = lambda: b
    b = 2
    return look()


def a_function_changes_it(a: int) -> Any:
    b = a

    def more() -> None:
        nonlocal b
        b += 1

    more()
    return b


def a_generator_looks_later(a: int) -> Any:
    found = (n + a for n in range(3))
    a = 5
    return list(found)


def yields(a: int) -> Any:
    b = a
    yield b


@pytest.mark.parametrize(
    ("fn", "count"),
    [
        (may_not_be_set, 1), (may_not_be_set, 2), (looks_at_its_frame, 1),
        (only_some_iterations_set_it, 1), (only_some_iterations_set_it, 2),
        (deletes, 2), (a_handler_deletes, 2), (a_handler_in_a_loop_deletes, 1),
        (lets_go, 1), (a_function_sees_it_change, 2),
        (a_function_changes_it, 1), (a_generator_looks_later, 1),
        (yields, 1), (plain, 0), (plain, 5),
    ],
    ids=lambda v: getattr(v, "__name__", v),
)  # fmt: skip
def test_it_is_not_cut_where_that_would_tell(fn: FunctionType, count: int) -> None:
    assert cut(fn, count) is None


def test_without_source_there_is_no_cut() -> None:
    scope: dict[str, Any] = {}
    exec("def made(a):\n    b = a\n    return b", scope)
    assert spans_of(scope["made"]) == []
    assert cut(scope["made"], 1) is None
    with pytest.raises(SourceUnavailable):
        sites_of(scope["made"])
    assert cut(lambda a: a, 1) is None  # type: ignore[arg-type]
