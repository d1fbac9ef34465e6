"""Unary and binary operators as hook calls (Snek, section 3). What the compiler folds into a constant stays native.

In: the walk and the operation. Out: a call of ``unary`` or ``binary`` with the operator's symbol and its operands.
"""

from __future__ import annotations

import ast

from torchjanus.rewrite.constructs.truth import not_
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, constant

__all__ = ["BINARY", "CONSTRUCTS", "UNARY"]

BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.MatMult: "@",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.LShift: "<<",
    ast.RShift: ">>",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
}
UNARY: dict[type[ast.unaryop], str] = {ast.UAdd: "+", ast.USub: "-", ast.Invert: "~"}


def is_constant(node: ast.expr) -> bool:
    """Whether it contains only literals, so that no code of the program can run."""
    match node:
        case ast.Constant():
            return True
        case ast.UnaryOp():
            return is_constant(node.operand)
        case ast.BinOp():
            return is_constant(node.left) and is_constant(node.right)
        case _:
            return False


def binary(walk: Walk, node: ast.BinOp) -> ast.expr:
    if is_constant(node):
        return node
    symbol = constant(BINARY[type(node.op)], location_of(node))
    counts = isinstance(node.op, ast.Add | ast.Sub | ast.Mult)
    # Nothing else may be evaluated between the left operand and the operation.
    left = (
        walk.number(node.left) if counts and isinstance(node.right, ast.Name | ast.Constant) else walk.visit(node.left)
    )
    return walk.ask("binary", node, symbol, left, walk.number(node.right) if counts else walk.visit(node.right))


def unary(walk: Walk, node: ast.UnaryOp) -> ast.expr:
    if is_constant(node):
        return node
    if isinstance(node.op, ast.Not):
        return not_(walk, node)
    return walk.ask("unary", node, constant(UNARY[type(node.op)], location_of(node)), walk.visit(node.operand))


CONSTRUCTS: dict[type[ast.AST], Construct] = {ast.BinOp: binary, ast.UnaryOp: unary}
