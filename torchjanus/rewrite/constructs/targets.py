"""Targets: the left side of ``=``, and the targets of ``for``, ``as`` and ``del``.

A hooked target becomes the attribute ``value`` of a small object made by the hook object. Python then evaluates it, and
stores to it, when and in the order in which it would have stored to the user's own target.

An unpacking target is described to the hook by a constant: ``(site, before, star, after, nested)``, where ``nested``
contains such a description or None for each target. Nested elements are unpacked when Python stores to them.
"""

from __future__ import annotations

import ast
from builtins import len  # torchjanus' own, even where a program replaces it
from typing import Any

from torchjanus.rewrite.constructs.loads import attribute_location, key
from torchjanus.rewrite.syntax.scopes import Reach
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import Walk, constant, place

__all__ = ["Unpacking", "slot", "target"]

Unpacking = tuple[int, int, bool, int, tuple[Any, ...] | None]


def slot(walk: Walk, node: ast.expr, context: ast.expr_context, suffix: str, *extra: ast.expr) -> ast.expr | None:
    """Return the hooked form of a target that is not an unpacking, or None for a local variable."""
    match node:
        case ast.Attribute():
            where = attribute_location(node)
            arguments = [walk.visit(node.value), constant(walk.mangled(node.attr), where)]
            made = walk.ask(f"attr_{suffix}", node, *arguments, *extra, location=where)
        case ast.Subscript():
            where = location_of(node)
            made = walk.ask(f"item_{suffix}", node, walk.visit(node.value), key(walk, node.slice), *extra)
        case ast.Name():
            where = location_of(node)
            mangled = walk.mangled(node.id)
            reach = walk.reach(mangled)
            if reach is Reach.LOCAL:
                return None
            kind = "global" if reach is Reach.GLOBAL else "cell"
            made = walk.ask(f"{kind}_{suffix}", node, constant(mangled, where), *extra)
        case _:
            raise AssertionError(f"{type(node).__name__} is not a target")
    return place(ast.Attribute(made, "value", context), single_line(where))


def single_line(where: Location) -> Location:
    line, column, end_line, end_column = where
    return (line, column, line, end_column if end_line == line else column)


def target(walk: Walk, node: ast.expr, hooked: bool = True) -> tuple[ast.expr, Unpacking | None]:
    """Return the target to store to, and the description of how its value is unpacked first. ``hooked``: whether
    unpacking has a hook."""
    where = location_of(node)
    if not isinstance(node, ast.Tuple | ast.List):
        return slot(walk, node, ast.Store(), "target") or node, None
    elements: list[ast.expr] = []
    nested: list[Unpacking | None] = []
    star = None
    for position, element in enumerate(node.elts):
        inner = element
        if isinstance(element, ast.Starred):
            star, inner = position, element.value
        new, further = target(walk, inner, hooked)
        if inner is not element and not hooked:
            new = place(ast.Starred(new, ast.Store()), location_of(element))
        elements.append(new)
        nested.append(further)
    unpacked = place(type(node)(elements, ast.Store()), where)
    if not hooked:
        return unpacked, None
    before = len(elements) if star is None else star
    after = 0 if star is None else len(elements) - star - 1
    inside = tuple(nested) if any(further is not None for further in nested) else None
    return unpacked, (walk.site("unpack", node), before, star is not None, after, inside)
