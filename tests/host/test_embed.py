"""Objects lie in generated code by reference, however many there are and however deep the function is."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from torchjanus.host.embed import compile_with_constants


def made(text: str, constants: dict[str, Any], **scope: Any) -> Any:
    compile_with_constants(text, "<test>", constants, scope)
    return scope["f"]


def test_the_very_object_is_embedded() -> None:
    held = [1]
    f = made("def f(): return C", {"C": held})
    assert f() is held
    assert "C" not in f.__globals__
    assert f.__code__.co_names == ()


@pytest.mark.parametrize("count", [1, 2, 29, 30, 31, 32, 300, 3000])
def test_many_arguments(count: int) -> None:
    """Long displays are compiled in other variants than short ones."""
    objects = [object() for _ in range(count)]
    names = {f"C{i}": value for i, value in enumerate(objects)}
    texts = ", ".join(names)
    assert all(a is b for a, b in zip(made(f"def f(): return ({texts},)", names)(), objects, strict=True))
    assert all(a is b for a, b in zip(made(f"def f(): return [{texts}]", names)(), objects, strict=True))
    take = lambda *given: given
    called = made(f"def f(): return take({texts})", names, take=take)()
    assert all(a is b for a, b in zip(called, objects, strict=True))


def test_objects_that_are_equal_or_alike_stay_apart() -> None:
    objects = {"A": 1.0, "B": True, "C": 1, "D": float("nan"), "E": -0.0, "F": 0.0, "G": 1j, "H": "s"}
    f = made("def f(): return (A, B, C, D, E, F, G, H)", objects)
    assert all(a is b for a, b in zip(f(), objects.values(), strict=True))


def test_literals_beside_them_are_left_alone() -> None:
    assert made("def f(): return (C, 1, 2.5, 'C', None, True, -0.0)", {"C": "c"})() == (
        "c", 1, 2.5, "C", None, True, 0.0,
    )  # fmt: skip


def test_nested_functions_comprehensions_and_lambdas() -> None:
    held = object()
    text = """
def f():
    def g():
        return (lambda: [C for _ in range(2)])()
    return [g(), *({C} for _ in range(1)), {1: C}]
"""
    first, second, third = made(text, {"C": held})()
    assert first == [held, held] and second == {held} and third == {1: held}


def test_calls_subscripts_and_identity() -> None:
    f = made("def f(x): return x is C, C is not x, D(x), E['k'], E['k'] is C", {"C": None, "D": repr, "E": {"k": 3}})
    assert f(None) == (True, False, "None", 3, False)


def test_no_warning_is_shown() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert made("def f(): return C()[0] if C is not D else None", {"C": lambda: [4], "D": 1})() == 4


def test_names_of_the_scope_are_looked_up_at_each_call() -> None:
    f = made("def f(): return run(C)", {"C": 3}, run=lambda x: x + 1)
    assert f() == 4
    f.__globals__["run"] = lambda x: x - 1
    assert f() == 2
