"""Expressions that may leave operands unevaluated, as hook calls with functions of those operands (Snek, section 3).

``a and b``, ``a < b < c``, ``a if t else b``, ``assert``, list comprehensions. In: the walk and a node. Out: the node
rewritten; as without lifting where an operand suspends, or binds what is no variable of the function's own.

A variable that is bound within such an operand, ``a and (m := b) > 0``, is set by a hook, which is given its cell: an
assignment expression would set a variable of the operand's function.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchjanus.rewrite.constructs import loads, loops, truth
from torchjanus.rewrite.syntax.scopes import Reach
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import Walk, constant, place

__all__ = ["LIFTED", "assert_", "boolean", "compare", "conditional", "list_of", "named", "tested"]

LIFTED = "janus_"  # how the names of the functions and parameters that are made begin
_SUSPENDING = (ast.Yield, ast.YieldFrom, ast.Await)
_SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def _thunk(value: ast.expr, where: Location) -> ast.expr:
    """Return a function without parameters of an expression that is rewritten already."""
    return place(ast.Lambda(ast.arguments([], [], None, [], [], None, []), value), where)


@contextmanager
def _deferred(walk: Any) -> Iterator[None]:
    """Rewrite what becomes the body of a function that is made here."""
    before, walk.deferred = walk.deferred, True
    try:
        yield
    finally:
        walk.deferred = before


def _later(walk: Walk, node: ast.expr, visit: Any = Walk.visit) -> ast.expr:
    """Return a function of an expression, which is rewritten."""
    with _deferred(walk):
        return _thunk(visit(walk, node), location_of(node))


def _binds(*parts: ast.expr) -> bool:
    """Whether an expression suspends or binds a variable."""
    return any(isinstance(node, (*_SUSPENDING, ast.NamedExpr)) for part in parts for node in ast.walk(part))


def _is_liftable(walk: Walk, *parts: ast.expr) -> bool:
    return not any(isinstance(node, _SUSPENDING) for part in parts for node in ast.walk(part)) and all(
        _sets_own(walk, part) for part in parts
    )


def _sets_own(walk: Walk, part: ast.AST, within: bool = False) -> bool:
    """Whether an expression binds variables of the function's own only. ``within``: it is within a scope of its own."""
    if isinstance(part, ast.NamedExpr):
        own = (
            isinstance(walk.function_node, ast.FunctionDef) and walk.reach(walk.mangled(part.target.id)) is Reach.LOCAL
        )
        if within or not own:
            return False
    within = within or isinstance(part, _SCOPES)
    return all(_sets_own(walk, one, within) for one in ast.iter_child_nodes(part))


def named(walk: Any, node: ast.NamedExpr) -> ast.expr:
    """Rewrite an assignment expression."""
    if not walk.deferred:
        return loads.walrus(walk, node)
    where = location_of(node)
    reader = _thunk(place(ast.Name(node.target.id, ast.Load()), where), where)
    return walk.ask("stores", node, reader, walk.visit(node.value), kind="walrus")  # type: ignore[no-any-return]


def tested(walk: Walk, node: ast.expr) -> ast.expr:
    """Rewrite an expression of which only the truth counts."""
    match node:
        case ast.BoolOp() if _is_liftable(walk, *node.values[1:]):
            return boolean(walk, node, "decided")
        case ast.UnaryOp(op=ast.Not()):
            return walk.ask("not_", node, tested(walk, node.operand))
    made: ast.expr = walk.visit(node)
    return made


def boolean(walk: Walk, node: ast.BoolOp, hook: str = "logical") -> ast.expr:
    if not _is_liftable(walk, *node.values[1:]):
        return truth.boolean(walk, node)
    where = location_of(node)
    first, *others = node.values
    visit = tested if hook == "decided" else Walk.visit
    begun = visit(walk, first)
    thunks = [_later(walk, one, visit) for one in others]
    kind = "and" if isinstance(node.op, ast.And) else "or"
    return walk.ask(hook, node, begun, *thunks, kind=kind, location=where)


def compare(walk: Walk, node: ast.Compare) -> ast.expr:
    """``a < b < c`` is ``a < m and m < c`` for the ``m`` that ``b`` is; it is looked at twice and evaluated once."""
    if len(node.ops) == 1 or _binds(*node.comparators):
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
    if not _is_liftable(walk, node.body, node.orelse):
        return truth.conditional(walk, node)
    test = tested(walk, node.test)
    return walk.ask("choose", node, test, _later(walk, node.body), _later(walk, node.orelse), kind="ifexp")


def assert_(walk: Walk, node: ast.Assert) -> ast.stmt:
    where = location_of(node)
    test = tested(walk, node.test)
    message: ast.expr = constant(None, where)
    if node.msg is not None and _is_liftable(walk, node.msg):
        message = _later(walk, node.msg)
    asked = walk.ask("asserts", node, test, message, kind="assert")
    return place(ast.If(constant(True, where), [place(ast.Expr(asked), where)], []), where)


def list_of(walk: Walk, node: ast.ListComp) -> ast.expr:
    """Rewrite a comprehension of one loop over plain names."""
    [first, *others] = node.generators
    names = _plain_names(first.target)
    if others or first.is_async or names is None or _binds(node.elt, *first.ifs):
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
