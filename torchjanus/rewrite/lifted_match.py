"""``match`` as a hook call with functions of its guards and bodies. Patterns become plain data, with a function for
each value and class that they compare with; ``hooks.matching`` reads them.

========================================= ==========================================================================
pattern                                   data
========================================= ==========================================================================
``_``, ``name``, ``P as name``            ``("as", P or None, name or None)``
``1``, ``Color.RED``                      ``("value", function)``
``None``, ``True``                        ``("singleton", value)``
``[P, *name, Q]``                         ``("sequence", (P, Q), number of those before the star, name)``
``{key: P}``                              ``("mapping", (function, ...), (P, ...))``
``Cls(P, name=Q)``                        ``("class", function, (P,), ("name",), (Q,))``
``P | Q``                                 ``("or", (P, Q))``
========================================= ==========================================================================

Without a star, its number and name are None.
"""

from __future__ import annotations

import ast
from typing import Any

from torchjanus.rewrite.constructs.loads import assigned
from torchjanus.rewrite.lifted_expressions import LIFTED, tested
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import Walk, constant, place

__all__ = ["is_plain_match", "match_parts"]

_GIVEN = LIFTED + "bound"  # the parameter that has what a pattern binds, by name


def is_plain_match(node: ast.Match) -> bool:
    """Whether the data above has all patterns of a statement: not what is left of a mapping."""
    return not any(isinstance(one, ast.MatchMapping) and one.rest for case in node.cases for one in ast.walk(case))


def match_parts(walk: Any, node: ast.Match) -> tuple[list[ast.stmt], ast.Call]:
    """Return the definitions of the functions of a statement, and the call of the hook. What a pattern binds is set by
    the first of its functions, the guard's or else the body's, which takes it. ``walk``: one that lifts."""
    made: list[ast.stmt] = []
    cases: list[ast.expr] = []
    for number, case in enumerate(node.cases):
        where = location_of(case.pattern)
        names = list(dict.fromkeys(_names(case.pattern)))
        taken: Any = place(ast.Name(_GIVEN, ast.Load()), where)
        head = [
            place(ast.Expr(assigned(walk, case.pattern, name, _at(taken, name, where))), where) for name in names
        ]  # fmt: skip
        targets: list[ast.expr] = [place(ast.Name(name, ast.Store()), where) for name in names]
        setting = place(ast.Assign(targets, constant(None, where)), where) if names else None
        given = {"parameter": _GIVEN, "head": head, "extra": setting}
        guard: ast.expr = constant(None, where)
        if case.guard is not None:
            returned = place(ast.Return(case.guard), location_of(case.guard))
            asked = walk.part(f"guard{number}", [place(ast.Pass(), where)], **given)
            sets = [returned] if setting is None else [returned, setting]
            asked.body = [
                *walk.declarations(sets, where), *head, place(ast.Return(tested(walk, case.guard)), where)
            ]  # fmt: skip
            made.append(asked)
            guard, given = walk.named(f"guard{number}", where), {}
        made.append(walk.part(f"case{number}", case.body, **given))
        parts = [_pattern(walk, case.pattern), guard, walk.named(f"case{number}", where)]
        cases.append(place(ast.Tuple(parts, ast.Load()), where))
    where = location_of(node)
    subject = walk.visit(node.subject)
    return made, walk.ask("match", node, subject, place(ast.Tuple(cases, ast.Load()), where), kind="match")


def _at(taken: ast.expr, name: str, where: Location) -> ast.expr:
    return place(ast.Subscript(taken, constant(name, where), ast.Load()), where)


def _names(pattern: ast.pattern) -> list[str]:
    return [one.name for one in ast.walk(pattern) if isinstance(one, ast.MatchAs | ast.MatchStar) and one.name]


def _pattern(walk: Walk, pattern: Any) -> ast.expr:
    where = location_of(pattern)

    def later(value: ast.expr) -> ast.expr:
        return place(ast.Lambda(ast.arguments([], [], None, [], [], None, []), walk.visit(value)), where)

    def data(kind: str, *parts: ast.expr) -> ast.expr:
        return place(ast.Tuple([constant(kind, where), *parts], ast.Load()), where)

    def several(patterns: list[Any]) -> ast.expr:
        return place(ast.Tuple([_pattern(walk, one) for one in patterns], ast.Load()), where)

    match pattern:
        case ast.MatchValue(value=value):
            return data("value", later(value))
        case ast.MatchSingleton(value=value):
            return data("singleton", constant(value, where))
        case ast.MatchSequence(patterns=patterns):
            stars = [number for number, one in enumerate(patterns) if isinstance(one, ast.MatchStar)]
            star = constant(stars[0] if stars else None, where)
            name = constant(patterns[stars[0]].name if stars else None, where)  # type: ignore[attr-defined]
            return data(
                "sequence", several([one for one in patterns if not isinstance(one, ast.MatchStar)]), star, name
            )
        case ast.MatchMapping(keys=keys, patterns=patterns):
            return data("mapping", place(ast.Tuple([*map(later, keys)], ast.Load()), where), several(patterns))
        case ast.MatchClass(cls=cls, patterns=patterns, kwd_attrs=names, kwd_patterns=named):
            return data("class", later(cls), several(patterns), constant(tuple(names), where), several(named))
        case ast.MatchOr(patterns=patterns):
            return data("or", several(patterns))
        case ast.MatchAs(pattern=inner, name=name):
            part = constant(None, where) if inner is None else _pattern(walk, inner)
            return data("as", part, constant(name, where))
    raise AssertionError(pattern)
