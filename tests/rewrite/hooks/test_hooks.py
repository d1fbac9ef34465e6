"""Each hook is asked where it should be, with what it should be asked."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from types import CellType
from typing import Any

import pytest

from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import Bound, Semantics, current, rewritten, using

TOTAL = 5


class Asking(Semantics):
    """Notes every hook and what it is asked, then does what Python does."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []


def noting(name: str) -> Callable[..., Any]:
    plain = getattr(Semantics, name)

    def hook(self: Asking, at: Site, *args: Any) -> Any:
        assert isinstance(at, Site)
        self.asked.append((name, at.kind, *args))
        return plain(self, at, *args)

    return hook


HOOKS = [name for name in vars(Semantics) if not name.startswith("_") and name not in ("callee", "frame_reader")]
for _name in HOOKS:
    setattr(Asking, _name, noting(_name))


def asked(fn: Any, *args: Any) -> list[tuple[Any, ...]]:
    semantics = Asking()
    with using(semantics):
        rewritten(fn)(*args)
    return [event for event in semantics.asked if event[0] not in ("returned", "region")]


class Box:
    x = 1


def test_attributes_and_items() -> None:
    box, d = Box(), {"k": 1}

    def f(box: Any, d: Any) -> None:
        box.x
        box.x = 2
        box.x += 3
        del box.x
        d["k"]
        d["j"] = 2
        d["j"] += 3
        del d["j"]
        d["k":1] if False else None

    assert asked(f, box, d) == [
        ("attr", "attr", box, "x"),
        ("set_attr", "attr_target", box, "x", 2),
        ("attr", "attr_update", box, "x"),
        ("inplace", "attr_update", "+", 2, 3),
        ("set_attr", "attr_update", box, "x", 5),
        ("del_attr", "attr_target", box, "x"),
        ("item", "item", d, "k"),
        ("set_item", "item_target", d, "j", 2),
        ("item", "item_update", d, "j"),
        ("inplace", "item_update", "+", 2, 3),
        ("set_item", "item_update", d, "j", 5),
        ("del_item", "item_target", d, "j"),
    ]


def test_globals() -> None:
    def f() -> None:
        global TOTAL, ANOTHER
        TOTAL += 1
        (ANOTHER, TOTAL) = 1, TOTAL - 1
        del ANOTHER

    assert asked(f) == [
        ("get_global", "get_global", globals(), "TOTAL", 5),
        ("inplace", "inplace", "+", 5, 1),
        ("set_global", "set_global", globals(), "TOTAL", 6),
        ("get_global", "get_global", globals(), "TOTAL", 6),
        ("binary", "binary", "-", 6, 1),
        ("set_global", "global_target", globals(), "ANOTHER", 1),
        ("set_global", "global_target", globals(), "TOTAL", 5),
        ("del_global", "del_global", globals(), "ANOTHER"),
    ]
    assert TOTAL == 5


def test_imports() -> None:
    def f() -> None:
        global TOTAL
        from math import e, tau
        from math import pi as TOTAL

        class Inner:
            from math import inf

        assert (e, tau, Inner.inf) == (math.e, math.tau, math.inf)

    names = vars(math)
    before = TOTAL
    try:
        assert [event for event in asked(f) if event[0] in ("get_global", "set_global") and event[3] != "math"] == [
            ("get_global", "imported", names, "e", math.e),
            ("get_global", "imported", names, "tau", math.tau),
            ("get_global", "imported", names, "pi", math.pi),
            ("set_global", "global_target", globals(), "TOTAL", math.pi),
        ]
    finally:
        globals()["TOTAL"] = before


def test_cells_of_the_outermost_function() -> None:
    shared, other = 1, 2

    def f() -> None:
        nonlocal shared, other
        local = shared
        shared = local + 1
        shared, _ = 5, 6
        del other

        def inner() -> int:
            nonlocal local
            local = 9
            return shared

        inner()

    cells: dict[str, CellType] = dict(zip(f.__code__.co_freevars, f.__closure__ or (), strict=True))
    shared_cell, other_cell = cells["shared"], cells["other"]
    assert [event for event in asked(f) if "cell" in event[0]] == [
        ("get_cell", "get_cell", shared_cell, "shared", 1),
        ("set_cell", "cell_target", shared_cell, "shared", 2),
        ("set_cell", "cell_target", shared_cell, "shared", 5),
        ("del_cell", "del_cell", other_cell, "other"),
        ("get_cell", "get_cell", shared_cell, "shared", 5),
    ]
    assert shared == 5


def test_calls() -> None:
    def g(*args: Any, **kwargs: Any) -> None:
        pass

    def f(g: Any) -> None:
        g(1, *[2], k=3, **{"l": 4})

    assert asked(f, g) == [
        ("star", "star", [2]),
        ("double_star", "double_star", {"l": 4}),
        ("call", "procedure", g, (1, 2), {"k": 3, "l": 4}),
    ]


def test_decorators_are_calls() -> None:
    def decorate(fn: Any) -> Any:
        return fn

    def f(decorate: Any) -> None:
        @decorate
        def inner() -> None:
            pass

    [event] = asked(f, decorate)
    assert event[:3] == ("call", "decorator", decorate)


def test_truth() -> None:
    def f(a: Any, b: Any) -> Any:
        if a and b:
            pass
        while b:
            pass
        a or b
        not a
        1 if a else 2
        [x for x in () if x]
        assert a
        match a:
            case 1 if a:
                pass

    kinds = [(event[0], event[1]) for event in asked(f, 1, 0)]
    assert kinds == [
        ("branch", "if"),
        ("branch", "if"),
        ("branch", "while"),
        ("branch", "or"),
        ("not_", "not_"),
        ("branch", "ifexp"),
        ("making", "making"),
        ("iterate", "comprehension"),
        ("made", "made"),
        ("branch", "assert"),
        ("compare", "match"),
        ("branch", "match"),
        ("branch", "guard"),
    ]


def test_operators() -> None:
    def f(a: Any) -> None:
        a + 1
        a < 5 < 7
        -a
        a in (1,)
        1 + 2

    assert asked(f, 3) == [
        ("binary", "binary", "+", 3, 1),
        ("compare", "compare", "<", 3, 5),
        ("branch", "compare", True),
        ("compare", "compare", "<", 5, 7),
        ("unary", "unary", "-", 3),
        ("compare", "compare", "in", 3, (1,)),
    ]


def test_iteration() -> None:
    def f(pairs: Any) -> None:
        for _a, (_b, *_c) in pairs:
            pass
        _a, _b = pairs[0]

    pair = (1, (2, 3))
    assert asked(f, [pair]) == [
        ("iterate", "for", [pair]),
        ("unpack", "unpack", pair, 2, False, 0),
        ("unpack", "unpack", (2, 3), 1, True, 0),
        ("item", "item", [pair], 0),
        ("unpack", "unpack", pair, 2, False, 0),
    ]


def test_blocks_and_strings() -> None:
    class Manager:
        def __enter__(self) -> None:
            pass

        def __exit__(self, *error: object) -> None:
            pass

    error, manager = ValueError("x"), Manager()

    def f(error: Any, manager: Any) -> None:
        with manager:
            pass
        try:
            raise error
        except ValueError:
            pass
        f"{error!r:20}"
        f"{1}!"

    # What asks for ValueError itself is a read of a global.
    assert [event for event in asked(f, error, manager) if event[0] != "get_global"] == [
        ("context", "with", manager),
        ("raised", "raise", error),
        ("caught", "caught", error),
        ("join", "join", ("20",)),
        ("format", "format", error, "r", "20"),
        ("format", "format", 1, "", ""),
        ("join", "join", ("1", "!")),
    ]


def test_returned() -> None:
    semantics = Asking()

    def f() -> Any:
        return (lambda: 3)()

    with using(semantics):
        rewritten(f)()  # type: ignore[arg-type]
    assert [event for event in semantics.asked if event[0] == "returned"] == [("returned", "return", 3)] * 2


def test_the_semantics_in_force() -> None:
    outer, inner = Semantics(), Semantics()
    assert current() is None
    with using(outer):
        assert current() is outer
        with using(inner):
            assert current() is inner
        with using(None):
            assert current() is None
        assert current() is outer
    assert current() is None


def test_a_semantics_decides() -> None:
    class Otherwise(Semantics):
        def branch(self, at: Site, value: Any) -> bool:
            return not value

        def binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
            return op

    def f(x: Any) -> Any:
        return ("yes" if x else "no"), x + 1

    with using(Otherwise()):
        assert rewritten(f)(1) == ("no", "+")  # type: ignore[arg-type]


def test_no_frame_of_ours_in_a_users_handler() -> None:
    def f(x: Any) -> Any:
        try:
            return x.missing
        except AttributeError as error:
            traceback: Any = error.__traceback__
            return traceback.tb_next, traceback.tb_frame.f_code.co_name

    with using(Semantics()):
        assert rewritten(f)(1) == (None, "f")  # type: ignore[arg-type]


def test_a_bound_knows_its_function() -> None:
    value = 3

    def f() -> int:
        return value

    twin = rewritten(f)  # type: ignore[arg-type]
    [bound] = {id(c): c for c in twin.__code__.co_consts if isinstance(c, Bound)}.values()
    assert bound.function is f
    assert bound.globals is globals()
    assert bound.cells["value"].cell_contents == 3


def test_what_yield_from_passes_on() -> None:
    def passing(xs: Any) -> Any:
        yield from xs

    assert [event for event in asked(passing, [1, 2]) if event[0] == "delegate"] == []  # it has not run yet
    semantics = Asking()
    with using(semantics):
        assert list(rewritten(passing)([1, 2])) == [1, 2]  # type: ignore[arg-type]
    assert ("delegate", "delegate", [1, 2]) in semantics.asked


@pytest.mark.parametrize("hook", [*HOOKS, "callee"])
def test_every_hook_takes_its_site_first(hook: str) -> None:
    parameters = list(inspect.signature(getattr(Semantics, hook)).parameters)
    assert parameters[:2] == ["self", "at"]


def test_callables_that_look_at_their_callers_frame() -> None:
    asked_for: list[Any] = []

    class Watching(Semantics):
        def frame_reader(self, at: Site, owner: dict[str, Any], fn: Any) -> Any:
            asked_for.append((owner is globals(), fn))
            return fn

    def f(x: int) -> Any:
        return locals(), vars(), eval("x"), vars(Box)["x"]

    with using(Watching()):
        assert rewritten(f)(3) == ({"x": 3}, {"x": 3}, 3, 1)  # type: ignore[arg-type]
    assert asked_for == [(True, locals), (True, vars), (True, eval)]
