"""f-strings: the formatting of each value is hooked, and so is the joining of the pieces."""

from __future__ import annotations

import ast
from builtins import len  # torchjanus' own, even where a program replaces it

from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, constant

__all__ = ["CONSTRUCTS"]


def joined(walk: Walk, node: ast.JoinedStr) -> ast.expr:
    if len(node.values) == 1 and isinstance(node.values[0], ast.FormattedValue):
        return formatted(walk, node.values[0])  # nothing is joined: what __format__ returned is the result itself
    pieces = [formatted(walk, v) if isinstance(v, ast.FormattedValue) else v for v in node.values]
    return walk.ask("join", node, *pieces)


def formatted(walk: Walk, node: ast.FormattedValue) -> ast.expr:
    where = location_of(node)
    conversion = constant("" if node.conversion == -1 else chr(node.conversion), where)
    spec = constant("", where) if node.format_spec is None else walk.visit(node.format_spec)
    return walk.ask("format", node, walk.visit(node.value), conversion, spec)


CONSTRUCTS: dict[type[ast.AST], Construct] = {ast.JoinedStr: joined}
