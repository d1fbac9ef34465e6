"""What a step finds only to pass it on to recursive calls: trees, of whatever class each of them is.

The step does not look at them, and those who follow the calls check what the calls ask of them. What a call finds only
to ask whether it is of a class (``isinstance(field, ast.AST)``) may be of any other that gives the same answer. Knows
traces only.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.graph.ir.numbers import used_expressions
from torchjanus.trace.actions import Invoked
from torchjanus.trace.events import ANYTHING, Trace
from torchjanus.trace.facts import Absent, Found, Instance, Same
from torchjanus.trace.recipes import FoundAt, Number, parts_of
from torchjanus.trace.values import Expr, Read, is_local, leaves

__all__ = ["passed_on", "unseen"]


def unseen(trace: Trace, made: Mapping[Any, Any], inner: bool = False) -> frozenset[int]:
    """The events that find what is only passed on, by position. ``made``: what calls of a function return as a rule:
    who follows them has to know beforehand which of them return something else; ``inner``: whether the run is itself a
    call, so that the step knows of all that does not depend on what it was given."""
    if ANYTHING in trace.looked_at:
        return frozenset()
    calls = [event for event in trace.events if isinstance(event, Invoked)]
    roots = {access_path.token for event in calls for access_path in _passed(event)}
    roots |= {event.access_path.token for event in trace.events if isinstance(event, Instance)}
    if not roots and not calls:
        return frozenset()
    for event in calls:
        if event.made != made.get(event.callee, event.made):
            roots.difference_update(access_path.token for access_path in _passed(event))
    found: dict[Any, list[int]] = {}
    for position, one in enumerate(trace.events):
        if isinstance(one, Found) and one.access_path.token in roots and one.kind in ("object", "number"):
            found.setdefault(one.access_path.token, []).append(position)
        elif isinstance(one, Same) and {one.first.token, one.second.token} <= roots:
            for access_path in (one.first, one.second):
                found.setdefault(access_path.token, []).append(position)
    lookups = dict(_lookups(trace, calls))  # of methods in objects, by position
    for token in (*trace.looked_at, *(access_path.token for access_path in _looked_at(trace, found, lookups))):
        found.pop(token, None)
    for position, token in lookups.items():
        if token in found:
            found[token].append(position)
    functions = {callee[0][1] for event in calls if type((callee := event.callee)[0]) is tuple}
    if inner and functions:
        found[_METHODS] = [n for n, event in enumerate(trace.events) if _finds_method(event, functions)]
    positions = [position for some in found.values() for position in some]
    # Whether two are one is of no interest only where neither is looked at.
    return frozenset(p for p in positions if not isinstance(trace.events[p], Same) or positions.count(p) == 2)


_METHODS: Any = object()


def _lookups(trace: Trace, calls: Sequence[Invoked]) -> Iterator[tuple[int, Any]]:
    """Where it is seen that an object has no attribute of a method's name: with the path of the object."""
    for event in calls:
        if type(event.callee[0]) is tuple:
            _, name, _ = event.callee[0]
            receiver = event.given[0][1]
            assert isinstance(receiver, FoundAt)
            token = receiver.access_path.then(Step.DICT).token
            for position, one in enumerate(trace.events):
                if isinstance(one, Absent) and one.key == name and one.base.token == token and not one.present:
                    yield position, receiver.access_path.token


def _finds_method(event: Any, names: Collection[str]) -> bool:
    """Whether it finds a method in its class, or its shared variables: which one is called the call itself sees."""
    if not isinstance(event, Found) or is_local(event.access_path) or not isinstance(event.value, types.FunctionType):
        return False
    return event.value.__name__ in names


def passed_on(recipe: Any, gone: frozenset[Any]) -> Any:
    """What a call is given, where nothing is said any more of what is found at these paths."""
    if isinstance(recipe, Number) and isinstance(recipe.expr, Read) and recipe.expr.access_path.token in gone:
        return FoundAt(recipe.expr.access_path)
    return recipe


def _passed(event: Invoked) -> Iterator[AccessPath]:
    for _, recipe in event.given:
        if isinstance(recipe, FoundAt):
            yield recipe.access_path
        elif isinstance(recipe, Number) and isinstance(recipe.expr, Read):
            yield recipe.expr.access_path


def _looked_at(trace: Trace, found: dict[Any, list[int]], lookups: Mapping[int, Any]) -> Iterator[AccessPath]:
    """All paths that the run speaks of otherwise, and those that lead to them."""
    positions = {position for some in found.values() for position in some}
    for position, event in enumerate(trace.events):
        if position in lookups:
            continue  # it speaks of nothing else
        if isinstance(event, Instance):
            yield from _path(event.access_path.base)
            continue
        if isinstance(event, Invoked):
            for _, recipe in event.given:
                if not isinstance(recipe, FoundAt | Number) or (
                    isinstance(recipe, Number) and not isinstance(recipe.expr, Read)
                ):
                    yield from _in_recipe(recipe)
            continue
        for name in ("access_path", "base", "first", "second"):
            access_path = getattr(event, name, None)
            if isinstance(access_path, AccessPath):
                yield from _path(access_path if position not in positions else access_path.base)
        for name in ("expr", "key"):
            expr = getattr(event, name, None)
            yield from _in_expression(getattr(expr, "expr", expr))
    for expr in used_expressions(trace):
        yield from _in_expression(expr)
    for recipe in trace.all_recipes():
        yield from _in_recipe(recipe)
    for access_path in trace.access_paths.values():
        yield from _path(access_path)
    for iterations in trace.iterations:
        yield from _in_expression(iterations.count)


def _in_recipe(recipe: Any) -> Iterator[AccessPath]:
    for part in parts_of(recipe):
        if isinstance(part, FoundAt):
            yield from _path(part.access_path)
        elif isinstance(part, Number):
            yield from _in_expression(part.expr)


def _in_expression(expr: Any) -> Iterator[AccessPath]:
    if isinstance(expr, Expr):
        for leaf in leaves(expr):
            if isinstance(leaf, Read):
                yield from _path(leaf.access_path)


def _path(at: AccessPath | None) -> Iterator[AccessPath]:
    while at is not None:
        yield at
        if isinstance(at.key, Expr):
            yield from _in_expression(at.key)
        at = at.base
