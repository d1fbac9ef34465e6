"""Finds what an ``if`` statement decides about: the region from its test to the point where its arms meet.

Only a statement that is always left at its end has such a point: one that may be left by ``return``, ``break`` or
``continue``, or suspended, has none. An exception leaves the region, too; where it goes is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable

from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Walk, place

__all__ = ["region"]

MOST = 6  # nested regions: CPython allows 20 nested blocks, and the program needs some of them

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_SUSPENDING = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)
_JUMPS = (ast.Break, ast.Continue)


def region(walk: Walk, node: ast.If, rewrite: Callable[[], ast.stmt]) -> ast.stmt:
    """Return the statement made by ``rewrite``, within a region if its arms meet again."""
    if walk.regions == MOST or _leaves([node], looping=False):
        return rewrite()
    where = location_of(node)
    asked = walk.ask("region", node, kind="if")
    walk.regions += 1
    try:
        return place(ast.With([ast.withitem(asked)], [rewrite()]), where)
    finally:
        walk.regions -= 1


def _leaves(nodes: Iterable[ast.AST], looping: bool) -> bool:
    """Whether the code may be left otherwise than at its end. ``looping``: it is within a loop of its own."""
    return any(_leaves_at(node, looping) for node in nodes)


def _leaves_at(node: ast.AST, looping: bool) -> bool:
    if isinstance(node, _SCOPES):
        return False
    if isinstance(node, (ast.Return, *_SUSPENDING)) or (isinstance(node, _JUMPS) and not looping):
        return True
    if isinstance(node, ast.For | ast.While):
        head = [node.test] if isinstance(node, ast.While) else [node.target, node.iter]
        return _leaves([*head, *node.orelse], looping) or _leaves(node.body, True)
    return _leaves(ast.iter_child_nodes(node), looping)
