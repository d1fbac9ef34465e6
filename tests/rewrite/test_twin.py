"""A twin is the same function over the same variables."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite import CENSUS, code_of, is_rewritten, sites_of, twin
from torchjanus.rewrite.hooks import Bound, rewritten


def documented(a: int, /, b: str = "b", *c: Any, d: int = 1, **e: Any) -> tuple[Any, ...]:
    """Has a docstring."""
    return a, b, c, d, e


def counting() -> tuple[Callable[[], int], Callable[[], int]]:
    count = 0

    def up() -> int:
        nonlocal count
        count += 1
        return count

    def read() -> int:
        return count

    return up, read


def as_function(fn: Any) -> FunctionType:
    assert isinstance(fn, FunctionType)
    return fn


def test_what_a_function_is_asked_for() -> None:
    made = rewritten(as_function(documented))
    for name in (
        "__name__",
        "__qualname__",
        "__module__",
        "__doc__",
        "__defaults__",
        "__kwdefaults__",
        "__annotations__",
    ):
        assert getattr(made, name) == getattr(documented, name), name
    assert made.__globals__ is documented.__globals__
    assert made.__dict__ is documented.__dict__
    assert inspect.signature(made) == inspect.signature(documented)
    for name in ("co_name", "co_qualname", "co_filename", "co_firstlineno", "co_flags", "co_freevars", "co_argcount"):
        assert getattr(made.__code__, name) == getattr(documented.__code__, name), name
    assert made(1, 2, 3, d=4, e=5) == documented(1, 2, 3, d=4, e=5)  # type: ignore[arg-type]


def test_cells_are_shared() -> None:
    up, read = counting()
    twin_up = rewritten(as_function(up))
    assert twin_up.__closure__ == as_function(up).__closure__
    assert (up(), twin_up(), read(), rewritten(as_function(read))()) == (1, 2, 2, 2)


def test_attributes_are_shared() -> None:
    def f() -> Any:
        return f.tag  # type: ignore[attr-defined]

    made = rewritten(as_function(f))
    made.tag = "set on the twin"  # type: ignore[attr-defined]
    assert f() == made() == "set on the twin"


def test_a_twin_is_its_own_twin() -> None:
    made = rewritten(as_function(documented))
    assert is_rewritten(made.__code__)
    assert not is_rewritten(documented.__code__)
    assert rewritten(made) is made


def test_inner_functions_are_rewritten_already() -> None:
    def outer() -> Any:
        def inner() -> Any:
            class C:
                def method(self) -> None:
                    pass

            return C.method

        return inner

    inner = rewritten(as_function(outer))()
    assert rewritten(inner) is inner
    method = inner()
    assert rewritten(method) is method
    assert method.__qualname__.endswith("outer.<locals>.inner.<locals>.C.method")


def test_a_module_function_has_one_twin_until_it_changes() -> None:
    first = rewritten(as_function(documented))
    assert rewritten(as_function(documented)) is first
    defaults = documented.__defaults__
    try:
        documented.__defaults__ = ("changed",)
        assert rewritten(as_function(documented))(1)[1] == "changed"
    finally:
        documented.__defaults__ = defaults
    code = documented.__code__
    try:
        documented.__code__ = test_cells_are_shared.__code__.replace(co_name="other")
    finally:
        documented.__code__ = code
    assert rewritten(as_function(documented))(1)[1] == "b"


def test_closures_are_given_back() -> None:
    class Big:
        pass

    def closing() -> Any:
        big = Big()

        def f() -> Any:
            return big

        return f, weakref.ref(big)

    f, alive = closing()
    rewritten(f)()
    del f
    gc.collect()
    assert alive() is None


def test_sites() -> None:
    def f(x: Any) -> Any:
        return x.name if x[0] else None

    sites = sites_of(as_function(f))
    assert [site.number for site in sites] == list(range(len(sites)))
    assert {site.kind for site in sites} == {"attr", "item", "ifexp", "return"}
    [attr] = [site for site in sites if site.kind == "attr"]
    lines = inspect.getsource(f).splitlines()
    assert attr.line == f.__code__.co_firstlineno + 1
    assert lines[1][attr.column : attr.end_column] == "x.name"
    assert attr.function.endswith("test_sites.<locals>.f")
    assert str(attr) == f"{__file__}:{attr.line}"


def test_binding_gets_the_function_and_its_sites() -> None:
    seen: list[Any] = []

    def bind(fn: FunctionType, sites: Any) -> Bound:
        seen.append((fn, sites))
        return Bound(fn, sites)

    def f(x: Any) -> Any:
        return x.a

    twin(as_function(f), bind)
    assert seen == [(f, sites_of(as_function(f)))]


def test_threads_rewrite_the_same_function_once_each() -> None:
    def f(x: int) -> int:
        return x + 1

    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(rewritten(as_function(f))(1))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [2] * 8


def test_a_function_first_met_deep_in_a_recursion_runs_as_it_is() -> None:
    def met_late(x: int) -> int:
        return x + 1

    reported: list[str] = []

    def deep() -> None:
        """Rewrites where the stack ends: rewriting itself needs more of it than is left."""
        try:
            deep()
        except RecursionError:
            if not reported:
                try:
                    rewritten(met_late)
                except SourceUnavailable as error:
                    reported.append(str(error))

    deep()
    assert "cannot be rewritten: maximum recursion depth exceeded" in reported[0]
    [entry] = [each for each in CENSUS.native if each.function.endswith("met_late")]
    assert entry.native == "met too deep in a recursion"


def test_what_is_made_inside_of_a_function_has_one_code_however_often_that_is_rewritten() -> None:
    def maker(n: int) -> Callable[[], int]:
        def up() -> int:
            return n + 1

        def down() -> int:
            return n - 1

        return up if n > 0 else down

    first, second = (rewritten(as_function(maker)) for _ in range(2))
    assert first is not second  # a closure's twin is not kept
    assert first(1).__code__ is not second(1).__code__
    assert code_of(first(1)) is code_of(second(2))
    assert code_of(first(1)) is not code_of(first(-1))
    assert not is_rewritten(code_of(first(1)))
    assert code_of(documented) is documented.__code__
