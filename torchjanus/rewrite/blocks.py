"""``with``, ``try``, ``raise`` and ``match``."""

from __future__ import annotations

import ast
from typing import Any

from torchjanus.rewrite.sites import location_of
from torchjanus.rewrite.targets import target
from torchjanus.rewrite.truth import Blame, test
from torchjanus.rewrite.walk import Construct, Walk, constant, place

__all__ = ["CONSTRUCTS"]


def with_(walk: Walk, node: ast.With) -> ast.stmt:
    items: list[ast.withitem] = []
    for item in node.items:
        new, unpacking = (None, None) if item.optional_vars is None else target(walk, item.optional_vars)
        described = constant(unpacking, location_of(item.context_expr))
        entered = walk.ask("context", item.context_expr, described, walk.visit(item.context_expr), kind="with")
        items.append(ast.withitem(entered, new))
    return place(ast.With(items, walk.visit_all(node.body)), location_of(node))


def async_with(walk: Walk, node: ast.AsyncWith) -> ast.stmt:
    items = [
        ast.withitem(
            walk.visit(item.context_expr),
            None if item.optional_vars is None else target(walk, item.optional_vars, hooked=False)[0],
        )
        for item in node.items
    ]
    return place(ast.AsyncWith(items, walk.visit_all(node.body)), location_of(node))


def caught(walk: Walk, node: ast.AST) -> ast.stmt:
    """Tells the hook object that user code is about to see an exception, so that its own frames can go from it."""
    where = location_of(node)
    return place(ast.Expr(walk.ask("caught", node)), where)


def try_(walk: Walk, node: ast.Try | ast.TryStar) -> ast.stmt:
    handlers = [
        place(
            ast.ExceptHandler(
                None if handler.type is None else walk.visit(handler.type),
                handler.name,
                [caught(walk, handler), *walk.visit_all(handler.body)],
            ),
            location_of(handler),
        )
        for handler in node.handlers
    ]
    body, orelse = walk.visit_all(node.body), walk.visit_all(node.orelse)
    last = walk.visit_all(node.finalbody)
    if last:
        last.insert(0, caught(walk, node.finalbody[0]))
    return place(type(node)(body, handlers, orelse, last), location_of(node))


def raise_(walk: Walk, node: ast.Raise) -> ast.stmt:
    if node.exc is None:
        return node
    exception = walk.ask("raised", node.exc, walk.visit(node.exc), kind="raise")
    return place(ast.Raise(exception, None if node.cause is None else walk.visit(node.cause)), location_of(node))


def match(walk: Walk, node: ast.Match) -> ast.stmt:
    """Patterns stay native: they ask for lengths, attributes and equality in an order that is CPython's own. Where they
    look at more than the subject's class, it goes through a hook before; so does what they compare it with."""
    subject = walk.visit(node.subject)
    asking = {type(pattern) for case in node.cases for pattern in ast.walk(case.pattern) if _asks(pattern)}
    if asking:
        kind = "match attributes" if ast.MatchClass in asking else "match"
        subject = walk.ask("matched", node.subject, subject, kind=kind)
    cases = [
        ast.match_case(_pattern(walk, case.pattern), guard(walk, case), walk.visit_all(case.body))
        for case in node.cases
    ]
    return place(ast.Match(subject, cases), location_of(node))


def _pattern(walk: Walk, pattern: Any) -> Any:
    """The pattern, with hooks where it reads attributes of variables: ``case limits.low``, ``case {Key.NAME: x}``."""
    match pattern:
        case ast.MatchValue():
            return place(ast.MatchValue(_compared(walk, pattern.value)), location_of(pattern))
        case ast.MatchMapping():
            keys = [_compared(walk, key) for key in pattern.keys]
            parts = [_pattern(walk, one) for one in pattern.patterns]
            return place(ast.MatchMapping(keys, parts, pattern.rest), location_of(pattern))
        case ast.MatchSequence() | ast.MatchOr():
            return place(type(pattern)([_pattern(walk, one) for one in pattern.patterns]), location_of(pattern))
        case ast.MatchClass():
            positional, named = ([_pattern(walk, p) for p in ps] for ps in (pattern.patterns, pattern.kwd_patterns))
            return place(ast.MatchClass(pattern.cls, positional, pattern.kwd_attrs, named), location_of(pattern))
        case ast.MatchAs() if pattern.pattern is not None:
            return place(ast.MatchAs(_pattern(walk, pattern.pattern), pattern.name), location_of(pattern))
        case _:
            return pattern


def _compared(walk: Walk, value: ast.expr) -> ast.expr:
    """A literal as it is; of an attribute what the hook gives. CPython compiles nothing but attributes here: the value
    is carried in an object."""
    if not isinstance(value, ast.Attribute):
        return value
    where = location_of(value)
    carried = walk.ask("pattern", value, walk.visit(value), kind="match value")
    return place(ast.Attribute(carried, "value", ast.Load()), where)


def _asks(pattern: ast.AST) -> bool:
    """Whether a pattern looks at a value, at parts, or at attributes."""
    if isinstance(pattern, ast.MatchClass):
        return bool(pattern.patterns or pattern.kwd_patterns)
    return isinstance(pattern, ast.MatchValue | ast.MatchSequence | ast.MatchMapping)


def guard(walk: Walk, case: ast.match_case) -> ast.expr | None:
    return None if case.guard is None else test(walk, case.guard, "guard", Blame(location_of(case.pattern)))


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.With: with_,
    ast.AsyncWith: async_with,
    ast.Try: try_,
    ast.TryStar: try_,
    ast.Raise: raise_,
    ast.Match: match,
}
