"""Finds ``while`` statements that count down: ``while n > 0: ...; n -= 1``.

The hooks get the variable before it is compared, so that they can describe iterations by plain numbers, as those of
``for n in range(n, 0, -1)``.
"""

from __future__ import annotations

import ast

from torchjanus.rewrite.constructs.loads import assigned
from torchjanus.rewrite.syntax.scopes import Reach
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Walk, constant

__all__ = ["counts_down"]

_ABOVE: dict[type[ast.cmpop], str] = {ast.Gt: ">", ast.GtE: ">=", ast.NotEq: "!="}
_BELOW: dict[type[ast.cmpop], str] = {ast.Lt: ">", ast.LtE: ">=", ast.NotEq: "!="}


def counts_down(walk: Walk, node: ast.While) -> bool:
    """Whether a local variable decreases by one in each iteration, and alone decides whether there is another. If so,
    the variable in the test is replaced."""
    bound: int | None
    match node.test:
        case ast.Name() as variable:
            op, bound = "!=", 0
        case ast.Compare(ast.Name() as variable, [sign], [other]) if type(sign) in _ABOVE:
            op, bound = _ABOVE[type(sign)], _integer(other)
        case ast.Compare(other, [sign], [ast.Name() as variable]) if type(sign) in _BELOW:
            op, bound = _BELOW[type(sign)], _integer(other)
        case _:
            return False
    local = walk.reach(walk.mangled(variable.id)) is Reach.LOCAL
    if bound is None or not local or not any(_goes_down(one, variable.id) for one in node.body):
        return False
    where = location_of(variable)
    asked = walk.ask("descend", variable, variable, constant(op, where), constant(bound, where))
    walk.instead[variable] = assigned(walk, variable, variable.id, asked)
    return True


def _integer(node: ast.expr) -> int | None:
    match node:
        case ast.UnaryOp(ast.USub(), ast.Constant(int() as value)) if type(value) is int:
            return -value
        case ast.Constant(int() as value) if type(value) is int:
            return value
    return None


def _goes_down(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.AugAssign(ast.Name(known), ast.Sub(), ast.Constant(1)):
            return known == name
        case ast.Assign([ast.Name(known)], ast.BinOp(ast.Name(given), ast.Sub(), ast.Constant(1))):
            return known == given == name
    return False
