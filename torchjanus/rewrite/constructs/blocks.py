"""``with``, ``try`` and ``raise``: context managers, handlers and raised exceptions ask hooks (Snek, section 3).

In: the walk and a statement. Out: the same statement with the manager entered through a hook, a note of the exception
at the head of each handler, and the raised value given to a hook. ``async with`` stays native.
"""

from __future__ import annotations

import ast

from torchjanus.rewrite.constructs.calls import call
from torchjanus.rewrite.constructs.targets import target
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, constant, place

__all__ = ["CONSTRUCTS"]


def with_(walk: Walk, node: ast.With) -> ast.stmt:
    items: list[ast.withitem] = []
    for item in node.items:
        new, unpacking = (None, None) if item.optional_vars is None else target(walk, item.optional_vars)
        described = constant(unpacking, location_of(item.context_expr))
        manager = item.context_expr
        # The site of the call says that its result is entered, and so closed.
        visited = call(walk, manager, "entered") if isinstance(manager, ast.Call) else walk.visit(manager)
        entered = walk.ask("context", manager, described, visited, kind="with")
        items.append(ast.withitem(entered, new))
    return place(ast.With(items, walk.visit_all(node.body)), location_of(node))


def async_with(walk: Walk, node: ast.AsyncWith) -> ast.stmt:
    items = [
        ast.withitem(
            walk.visit(item.context_expr),
            None if item.optional_vars is None else target(walk, item.optional_vars, hooked=False)[0],
        )
        for item in node.items
    ]
    return place(ast.AsyncWith(items, walk.visit_all(node.body)), location_of(node))


def caught(walk: Walk, node: ast.AST) -> ast.stmt:
    """Tell the hook object that the program is about to see an exception, so that it removes torchjanus' own frames."""
    where = location_of(node)
    return place(ast.Expr(walk.ask("caught", node)), where)


def try_(walk: Walk, node: ast.Try | ast.TryStar) -> ast.stmt:
    handlers = [
        place(
            ast.ExceptHandler(
                None if handler.type is None else walk.visit(handler.type),
                handler.name,
                [caught(walk, handler), *walk.visit_all(handler.body)],
            ),
            location_of(handler),
        )
        for handler in node.handlers
    ]
    body, orelse = walk.visit_all(node.body), walk.visit_all(node.orelse)
    last = walk.visit_all(node.finalbody)
    if last:
        last.insert(0, caught(walk, node.finalbody[0]))
    return place(type(node)(body, handlers, orelse, last), location_of(node))


def raise_(walk: Walk, node: ast.Raise) -> ast.stmt:
    if node.exc is None:
        return node
    exception = walk.ask("raised", node.exc, walk.visit(node.exc), kind="raise")
    return place(ast.Raise(exception, None if node.cause is None else walk.visit(node.cause)), location_of(node))


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.With: with_,
    ast.AsyncWith: async_with,
    ast.Try: try_,
    ast.TryStar: try_,
    ast.Raise: raise_,
}
