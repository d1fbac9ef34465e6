"""f-strings: the formatting of each value is hooked, the joining is native."""

from __future__ import annotations

import ast

from torchjanus.rewrite.sites import location_of
from torchjanus.rewrite.walk import Construct, Walk, constant, place

__all__ = ["CONSTRUCTS"]


def joined(walk: Walk, node: ast.JoinedStr) -> ast.expr:
    if len(node.values) == 1 and isinstance(node.values[0], ast.FormattedValue):
        return formatted(walk, node.values[0])  # nothing is joined: what __format__ returned is the result itself
    values: list[ast.expr] = []
    for value in node.values:
        if isinstance(value, ast.FormattedValue):
            values.append(place(ast.FormattedValue(formatted(walk, value), -1, None), location_of(value)))
        else:
            values.append(value)
    return place(ast.JoinedStr(values), location_of(node))


def formatted(walk: Walk, node: ast.FormattedValue) -> ast.expr:
    where = location_of(node)
    conversion = constant("" if node.conversion == -1 else chr(node.conversion), where)
    spec = constant("", where) if node.format_spec is None else walk.visit(node.format_spec)
    return walk.ask("format", node, walk.visit(node.value), conversion, spec)


CONSTRUCTS: dict[type[ast.AST], Construct] = {ast.JoinedStr: joined}
