"""Expressions that may leave operands unevaluated, as hook calls with functions of those operands (Snek, section 3).

``a and b``, ``a < b < c``, ``a if t else b``, ``assert``, list comprehensions. In: the walk and a node. Out: the node
rewritten; as without lifting where an operand binds a variable or suspends.
"""

from __future__ import annotations

import ast

from torchjanus.rewrite.constructs import loops, truth
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import Walk, constant, place

__all__ = ["LIFTED", "assert_", "boolean", "compare", "conditional", "list_of", "tested"]

LIFTED = "janus_"  # how the names of the functions and parameters that are made begin
_BOUND_HERE = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)


def _thunk(value: ast.expr, where: Location) -> ast.expr:
    """Return a function without parameters of an expression that is rewritten already."""
    return place(ast.Lambda(ast.arguments([], [], None, [], [], None, []), value), where)


def _is_liftable(*parts: ast.expr) -> bool:
    return not any(isinstance(node, _BOUND_HERE) for part in parts for node in ast.walk(part))


def tested(walk: Walk, node: ast.expr) -> ast.expr:
    """Rewrite an expression of which only the truth counts."""
    match node:
        case ast.BoolOp() if _is_liftable(*node.values):
            return boolean(walk, node, "decided")
        case ast.UnaryOp(op=ast.Not()):
            return walk.ask("not_", node, tested(walk, node.operand))
    made: ast.expr = walk.visit(node)
    return made


def boolean(walk: Walk, node: ast.BoolOp, hook: str = "logical") -> ast.expr:
    if not _is_liftable(*node.values):
        return truth.boolean(walk, node)
    where = location_of(node)
    first, *others = node.values
    visit = tested if hook == "decided" else Walk.visit
    thunks = [_thunk(visit(walk, one), location_of(one)) for one in others]
    kind = "and" if isinstance(node.op, ast.And) else "or"
    return walk.ask(hook, node, visit(walk, first), *thunks, kind=kind, location=where)


def compare(walk: Walk, node: ast.Compare) -> ast.expr:
    """``a < b < c`` is ``a < m and m < c`` for the ``m`` that ``b`` is; it is looked at twice and evaluated once."""
    if len(node.ops) == 1 or not _is_liftable(*node.comparators):
        return truth.compare(walk, node)
    return _chain(walk, node, walk.visit(node.left), node.ops, node.comparators)


def _chain(walk: Walk, node: ast.Compare, left: ast.expr, ops: list[ast.cmpop], others: list[ast.expr]) -> ast.expr:
    where = location_of(node)
    right = walk.visit(others[0])
    symbol = constant(truth.OPERATORS[type(ops[0])], where)
    if len(ops) == 1:
        return walk.ask("compare", node, symbol, left, right)
    names = [f"{LIFTED}left", f"{LIFTED}right"]
    one, other = (place(ast.Name(name, ast.Load()), where) for name in names)
    first = walk.ask("compare", node, symbol, one, other)
    rest = _chain(walk, node, place(ast.Name(names[1], ast.Load()), where), ops[1:], others[1:])
    both = walk.ask("logical", node, first, _thunk(rest, where), kind="and")
    taken = [place(ast.arg(name, None, None), where) for name in names]
    held = place(ast.Lambda(ast.arguments([], taken, None, [], [], None, []), both), where)
    return place(ast.Call(held, [left, right], []), where)


def conditional(walk: Walk, node: ast.IfExp) -> ast.expr:
    if not _is_liftable(node.body, node.orelse):
        return truth.conditional(walk, node)
    test, where = tested(walk, node.test), location_of(node)
    return walk.ask(
        "choose", node, test, _thunk(walk.visit(node.body), where), _thunk(walk.visit(node.orelse), where), kind="ifexp"
    )


def assert_(walk: Walk, node: ast.Assert) -> ast.stmt:
    where = location_of(node)
    test = tested(walk, node.test)
    message = (
        _thunk(walk.visit(node.msg), where)
        if node.msg is not None and _is_liftable(node.msg)
        else constant(None, where)
    )
    asked = walk.ask("asserts", node, test, message, kind="assert")
    return place(ast.If(constant(True, where), [place(ast.Expr(asked), where)], []), where)


def list_of(walk: Walk, node: ast.ListComp) -> ast.expr:
    """Rewrite a comprehension of one loop over plain names."""
    [first, *others] = node.generators
    names = _plain_names(first.target)
    if others or first.is_async or names is None or not _is_liftable(node.elt, *first.ifs):
        return loops.comprehension(walk, node)
    where = location_of(node)
    with walk.inside(node):
        parts = [walk.visit(node.elt), *(tested(walk, one) for one in first.ifs)]
    taken = [place(ast.arg(name, None, None), where) for name in names]
    functions_ = [place(ast.Lambda(ast.arguments([], taken, None, [], [], None, []), one), where) for one in parts]
    many = constant(isinstance(first.target, ast.Tuple | ast.List), where)
    return walk.ask("collect", node, walk.visit(first.iter), many, *functions_, kind="comprehension")


def _plain_names(node: ast.expr) -> list[str] | None:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List) else [node]
    names = [one.id for one in parts if isinstance(one, ast.Name)]
    return names if len(names) == len(parts) and len({*names}) == len(names) else None
