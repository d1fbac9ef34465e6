"""Pass-through arguments: what a step reads only to pass it to recursive calls, such as trees of any class.

The step does not inspect these values; the host traversal checks what the calls rely on. A value whose class is only
tested (``isinstance(field, ast.AST)``) may be of any class with the same answer. Works on traces only.
"""

from __future__ import annotations

import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.graph.ir.numbers import used_expressions
from torchjanus.trace.actions import InvokeOp
from torchjanus.trace.events import ANYTHING, Trace
from torchjanus.trace.facts import HeapRead, IdentityTest, InstanceTest, KeyLookup
from torchjanus.trace.operands import paths_in
from torchjanus.trace.recipes import ExistingObject, Number
from torchjanus.trace.values import Read, is_local

__all__ = ["passed_on", "unseen"]


def unseen(trace: Trace, made: Mapping[Any, Any], inner: bool = False) -> frozenset[int]:
    """Return the positions of the facts about values that are only passed on. ``made``: by callee the usual structure
    of results; a call with another structure must be known beforehand. ``inner``: whether the trace is that of a call;
    the step then checks all that does not depend on the call's arguments."""
    if ANYTHING in trace.looked_at:
        return frozenset()
    calls = [event for event in trace.events if isinstance(event, InvokeOp)]
    roots = {access_path.token for event in calls for access_path in _passed(event)}
    roots |= {event.access_path.token for event in trace.events if isinstance(event, InstanceTest)}
    if not roots and not calls:
        return frozenset()
    for event in calls:
        if event.made != made.get(event.callee, event.made):
            roots.difference_update(access_path.token for access_path in _passed(event))
    found: dict[Any, list[int]] = {}
    for position, one in enumerate(trace.events):
        if isinstance(one, HeapRead) and one.access_path.token in roots and one.kind in ("object", "number"):
            found.setdefault(one.access_path.token, []).append(position)
        elif isinstance(one, IdentityTest) and {one.first.token, one.second.token} <= roots:
            for access_path in (one.first, one.second):
                found.setdefault(access_path.token, []).append(position)
    lookups = dict(_lookups(trace, calls))  # position of a lookup of a method in an object -> token of the object
    for token in (*trace.looked_at, *(access_path.token for access_path in _looked_at(trace, found, lookups))):
        found.pop(token, None)
    for position, token in lookups.items():
        if token in found:
            found[token].append(position)
    functions = {callee[0][1] for event in calls if type((callee := event.callee)[0]) is tuple}
    if inner and functions:
        found[_METHODS] = [n for n, event in enumerate(trace.events) if _finds_method(event, functions)]
    positions = [position for some in found.values() for position in some]
    # An identity fact can be left out only if neither object is inspected.
    return frozenset(p for p in positions if not isinstance(trace.events[p], IdentityTest) or positions.count(p) == 2)


_METHODS: Any = object()


def _lookups(trace: Trace, calls: Sequence[InvokeOp]) -> Iterator[tuple[int, Any]]:
    """Yield the facts that an object lacks an attribute with a called method's name, each with the object's token."""
    for event in calls:
        if type(event.callee[0]) is tuple:
            _, name, _ = event.callee[0]
            receiver = event.given[0][1]
            assert isinstance(receiver, ExistingObject)
            token = receiver.access_path.then(Step.DICT).token
            for position, one in enumerate(trace.events):
                if isinstance(one, KeyLookup) and one.key == name and one.base.token == token and not one.present:
                    yield position, receiver.access_path.token


def _finds_method(event: Any, names: Collection[str]) -> bool:
    """Whether it reads a method from its class or a closure; the call itself checks which function it is."""
    if (
        not isinstance(event, HeapRead)
        or is_local(event.access_path)
        or not isinstance(event.value, types.FunctionType)
    ):
        return False
    return event.value.__name__ in names


def passed_on(recipe: Any, gone: frozenset[Any]) -> Any:
    """Return a call's argument, without a fact about the number if its path is in ``gone``."""
    if isinstance(recipe, Number) and isinstance(recipe.expr, Read) and recipe.expr.access_path.token in gone:
        return ExistingObject(recipe.expr.access_path)
    return recipe


def _passed(event: InvokeOp) -> Iterator[AccessPath]:
    """Yield the access paths of pass-through arguments."""
    for _, recipe in event.given:
        if isinstance(recipe, ExistingObject):
            yield recipe.access_path
        elif isinstance(recipe, Number) and isinstance(recipe.expr, Read):
            yield recipe.expr.access_path


def _looked_at(trace: Trace, found: dict[Any, list[int]], lookups: Mapping[int, Any]) -> Iterator[AccessPath]:
    """Yield all other paths that the trace refers to, with their prefixes."""
    positions = {position for some in found.values() for position in some}
    for position, event in enumerate(trace.events):
        if position in lookups:
            continue  # it refers to nothing else
        if isinstance(event, InstanceTest):
            yield from paths_in(event.access_path.base)
            continue
        if isinstance(event, InvokeOp):
            for _, recipe in event.given:
                if not isinstance(recipe, ExistingObject | Number) or (
                    isinstance(recipe, Number) and not isinstance(recipe.expr, Read)
                ):
                    yield from paths_in(recipe)
            continue
        for name in ("access_path", "base", "first", "second"):
            access_path = getattr(event, name, None)
            if isinstance(access_path, AccessPath):
                yield from paths_in(access_path if position not in positions else access_path.base)
        for name in ("expr", "key"):
            expr = getattr(event, name, None)
            yield from paths_in(getattr(expr, "expr", expr))
    for expr in used_expressions(trace):
        yield from paths_in(expr)
    for recipe in trace.all_recipes():
        yield from paths_in(recipe)
    for access_path in trace.access_paths.values():
        yield from paths_in(access_path)
    for instance in trace.loop_instances:
        yield from paths_in(instance.count)
