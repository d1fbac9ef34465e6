"""Reads of names, attributes and subscripts, and assignment expressions (``:=``), as hook calls (Snek, section 3).

In: the walk and an expression. Out: the hook call in its place. A local variable is read natively: no hook can be asked
for what only this frame sees.
"""

from __future__ import annotations

import ast
from builtins import len  # torchjanus' own, even where a program replaces it

from torchjanus.rewrite.syntax.scopes import Reach
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, constant, place

__all__ = ["CONSTRUCTS", "assigned", "attribute", "attribute_location", "key"]


def attribute_location(node: ast.Attribute) -> Location:
    """Return where CPython reports errors of an attribute access: at the attribute's name when the expression spans
    lines."""
    line, column, end_line, end_column = location_of(node)
    if line == end_line:
        return line, column, end_line, end_column
    return end_line, max(end_column - len(node.attr), 0), end_line, end_column


def name(walk: Walk, node: ast.Name) -> ast.expr:
    """Rewrite a name. The value is loaded natively, so that an unbound name raises Python's own error."""
    if node.id == "__debug__":  # a literal to the compiler
        return node
    mangled = walk.mangled(node.id)
    match walk.reach(mangled):
        case Reach.LOCAL:
            return node
        case Reach.GLOBAL:
            return walk.ask("get_global", node, constant(mangled, location_of(node)), node)
        case Reach.CELL:
            return walk.ask("get_cell", node, constant(mangled, location_of(node)), node)


def attribute(walk: Walk, node: ast.Attribute, kind: str = "attr") -> ast.expr:
    """Rewrite an attribute access. ``kind``: "method" for an attribute that is called at once."""
    where, value = attribute_location(node), walk.visit(node.value)
    return walk.ask("attr", node, value, constant(walk.mangled(node.attr), where), kind=kind, location=where)


def key(walk: Walk, node: ast.expr) -> ast.expr:
    """Return the key of a subscript; slices are built by the native ``slice``."""
    where = location_of(node)
    match node:
        case ast.Slice():
            bounds = [
                constant(None, where) if b is None else walk.visit(b) for b in (node.lower, node.upper, node.step)
            ]
            return walk.hook("slice", where, *bounds)
        case ast.Tuple() if any(isinstance(element, ast.Slice) for element in node.elts):
            return place(ast.Tuple([key(walk, element) for element in node.elts], ast.Load()), where)
        case _:
            new: ast.expr = walk.visit(node)
            return new


def subscript(walk: Walk, node: ast.Subscript) -> ast.expr:
    return walk.ask("item", node, walk.visit(node.value), key(walk, node.slice))


def walrus(walk: Walk, node: ast.NamedExpr) -> ast.expr:
    return assigned(walk, node, node.target.id, walk.visit(node.value))


def assigned(walk: Walk, node: ast.AST, name: str, value: ast.expr) -> ast.expr:
    """Return ``(name := value)`` at ``node``, for a value that is rewritten already."""
    where = location_of(node)
    return place(ast.NamedExpr(place(ast.Name(name, ast.Store()), where), with_hook(walk, node, name, value)), where)


def with_hook(walk: Walk, node: ast.AST, name: str, value: ast.expr) -> ast.expr:
    """Return the value; if the variable ``name`` is not local, its hook gets the value too."""
    mangled = walk.mangled(name)
    match walk.reach(mangled):
        case Reach.LOCAL:
            return value
        case Reach.GLOBAL:
            return walk.ask("set_global", node, constant(mangled, location_of(node)), value)
        case Reach.CELL:
            return walk.ask("set_cell", node, constant(mangled, location_of(node)), value)


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.Name: name,
    ast.Attribute: attribute,
    ast.Subscript: subscript,
    ast.NamedExpr: walrus,
}
