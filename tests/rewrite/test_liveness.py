"""Live variables and definite assignment: what textbooks say for each construct, nothing live missed."""

from __future__ import annotations

import ast
import textwrap

import pytest

from torchjanus.rewrite.liveness import (
    Around,
    around_body,
    bound,
    captured,
    certain,
    live_before,
    read_by,
    set_after,
    unset,
)

LIVE = {  # statements, what is live behind them, what is live before them
    "straight": ("a = b\nc = a", "c", "b"),
    "a branch that does not set it": ("if t:\n    a = 1", "a", "a t"),
    "both branches set it": ("if t:\n    a = 1\nelse:\n    a = b", "a", "b t"),
    "updated": ("a += 1", "", "a"),
    "subscript": ("a[i] = v", "a", "a i v"),
    "a loop carries it": ("for x in xs:\n    a = a + x", "", "xs a"),
    "a loop may not run": ("for x in xs:\n    a = x", "a", "xs a"),
    "break keeps it": ("while t:\n    if u: break\n    a = 1", "a", "t u a"),
    "return ends it": ("if t:\n    return b\na = 1", "a", "t b"),
    "comprehensions have their own": ("a = [x + y for x in xs]", "a x", "xs y x"),
    "what a function captures": ("def f(p):\n    return p + q", "f", "q"),
    "a lambda's default": ("f = lambda p=d: p + q", "f", "d q"),
    "a handler reads it": ("try:\n    a = g()\nexcept E:\n    h(b)", "a", "g E h b a"),
    "a name that handlers bind": ("try:\n    f()\nexcept E as e:\n    g(e)", "", "f E g"),
    "finally": ("try:\n    a = 1\nfinally:\n    f(b)", "a", "f b a"),
    "finally sets it": ("try:\n    f(x)\nfinally:\n    a = 1", "a", "f x"),
    "a with that suppresses nothing": ("with torch.no_grad():\n    a = b", "a", "torch b"),
    "a with that may": ("with m():\n    a = b", "a", "m b a"),
    "match": ("match v:\n    case 1:\n        a = b\n    case _:\n        a = c", "a", "v b c a"),
    "an expression that assigns": ("if (a := f()):\n    b = a", "", "f"),
}


@pytest.mark.parametrize(("source", "after", "before"), LIVE.values(), ids=LIVE)
def test_live_variables(source: str, after: str, before: str) -> None:
    tree = ast.parse(textwrap.dedent(source)).body
    assert live_before(tree, Around(frozenset(after.split()))) == frozenset(before.split())


def test_what_is_around_a_loops_body() -> None:
    (loop,) = ast.parse("for x in xs:\n    if x: break\n    a = a + x\nelse:\n    b = 1\n").body
    inside = around_body(loop, Around(frozenset({"b", "c"})))
    assert inside.after == inside.on_continue == {"a", "b", "c"}  # b: break passes by what sets it
    assert inside.on_break == {"b", "c"}


CERTAIN = {
    "a = 1\nb, (c, *d) = x": "a b c d",
    "if t:\n    a = 1\nelse:\n    a = b = 2": "a",
    "if t:\n    raise E\nelse:\n    a = 1": "a",
    "for x in xs:\n    a = 1": "",
    "try:\n    a = 1\nexcept E:\n    b = 1": "",
    "try:\n    a = 1\nfinally:\n    b = 1": "a b",
    "with torch.no_grad() as g:\n    a = 1": "g a",
    "with m() as g:\n    a = 1": "g",
    "import a.b, c as d\ndef f(): pass": "a d f",
    "a = b = 1\ndel a": "b",
    "a = b = 1\nfor x in xs:\n    if x: del a": "b",
    "a = e = 1\nwhile t:\n    try: f()\n    except E as e: pass": "a",
    "a = e = 1\ntry: f()\nexcept* E as e: pass": "a",
    "def a():\n    del b\nb = 1": "a b",
}


@pytest.mark.parametrize(("source", "names"), CERTAIN.items())
def test_what_is_set_for_certain(source: str, names: str) -> None:
    assert certain(ast.parse(source).body) == set(names.split())


def test_what_statements_may_unset() -> None:
    body = ast.parse("del a[0], b\nif t:\n    try: f()\n    except E as e: pass\nc = 1").body
    assert unset(body) == {"b", "e"}
    assert set_after({"a", "b", "e"}, body) == {"a", "c"}


def test_names() -> None:
    tree = ast.parse("def f(a):\n    global g\n    g = a + b\n    return [c for c in d]\nx = [y for y in z]").body
    assert captured(tree) == {"g", "b", "d"}
    assert bound(tree) == {"f", "x"}
    assert read_by(tree[1]) == {"z"}
