"""``match``: patterns stay native, but are applied to a view of the subject (see ``hooks.patterns``).

They ask for lengths, attributes and equality in CPython's own order. What they compare with is hooked, and so is what
they bind, before the guard: ``case Point(x=0, y=y) if y > low`` becomes ``case Point(x=0, y=y) if bound((y :=
opened(y))) and y > low``, with the hooks of ``y > low`` and of the assignment.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from torchjanus.rewrite.constructs.loads import assigned
from torchjanus.rewrite.constructs.truth import Blame, test
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, place

__all__ = ["CONSTRUCTS"]


def match(walk: Walk, node: ast.Match) -> ast.stmt:
    """Rewrite a match statement. Patterns that need only the subject's class get the subject itself."""
    subject = walk.visit(node.subject)
    viewed = any(_asks(pattern) for case in node.cases for pattern in ast.walk(case.pattern))
    if viewed:
        subject = walk.ask("matched", node.subject, subject, kind="match")
    cases = []
    for case in node.cases:
        pattern = _pattern(walk, case.pattern) if viewed else case.pattern
        guard = _guard(walk, case, viewed)
        with walk.region(case.pattern, "match", "case"):
            cases.append(ast.match_case(pattern, guard, walk.visit_all(case.body)))
    return place(ast.Match(subject, cases), location_of(node))


def _asks(pattern: ast.AST) -> bool:
    """Whether a pattern needs a value, parts, or attributes."""
    if isinstance(pattern, ast.MatchClass):
        return bool(pattern.patterns or pattern.kwd_patterns)
    return isinstance(pattern, ast.MatchValue | ast.MatchSequence | ast.MatchMapping)


def _guard(walk: Walk, case: ast.match_case, viewed: bool) -> ast.expr | None:
    where = location_of(case.pattern)
    asked = [] if case.guard is None else [test(walk, case.guard, "guard", Blame(where))]
    names = list(dict.fromkeys(_bound(case.pattern))) if viewed else []
    if names:
        # Loaded natively, since the bound value is a view.
        loads = [place(ast.Name(name, ast.Load()), where) for name in names]
        values = [walk.hook("opened", where, load) for load in loads]
        stores = [assigned(walk, case.pattern, name, value) for name, value in zip(names, values, strict=True)]
        asked.insert(0, walk.hook("bound", where, *stores))
    return place(ast.BoolOp(ast.And(), asked), where) if len(asked) > 1 else asked[0] if asked else None


def _bound(pattern: ast.pattern) -> Iterator[str]:
    """Yield the names that a pattern binds."""
    for node in ast.walk(pattern):
        name = node.rest if isinstance(node, ast.MatchMapping) else getattr(node, "name", None)
        if name is not None:
            yield name


def _pattern(walk: Walk, pattern: Any) -> Any:
    """Return the pattern, with hooks on the attributes that it compares with: ``case limits.low``, ``case {Key.NAME:
    x}``."""
    where = location_of(pattern)
    match pattern:
        case ast.MatchValue(value=ast.Attribute() as value):
            compared = walk.ask("compared", value, walk.visit(value), kind="match")
            return place(ast.MatchValue(_carried(compared)), where)
        case ast.MatchMapping():
            keys = [_key(walk, key) for key in pattern.keys]
            return place(ast.MatchMapping(keys, _patterns(walk, pattern.patterns), pattern.rest), where)
        case ast.MatchSequence() | ast.MatchOr():
            return place(type(pattern)(_patterns(walk, pattern.patterns)), where)
        case ast.MatchClass():
            parts, named = _patterns(walk, pattern.patterns), _patterns(walk, pattern.kwd_patterns)
            return place(ast.MatchClass(pattern.cls, parts, pattern.kwd_attrs, named), where)
        case ast.MatchAs(pattern=ast.pattern() as inner):
            return place(ast.MatchAs(_pattern(walk, inner), pattern.name), where)
        case _:
            return pattern


def _patterns(walk: Walk, patterns: list[ast.pattern]) -> list[Any]:
    return [_pattern(walk, one) for one in patterns]


def _key(walk: Walk, key: ast.expr) -> ast.expr:
    if not isinstance(key, ast.Attribute):
        return key
    return _carried(walk.hook("key", location_of(key), walk.visit(key)))


def _carried(made: ast.expr) -> ast.expr:
    """Return an attribute of the value: CPython compiles only attributes and literals in patterns."""
    return place(ast.Attribute(made, "value", ast.Load()), location_of(made))


CONSTRUCTS: dict[type[ast.AST], Construct] = {ast.Match: match}
