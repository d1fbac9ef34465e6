"""Makes the exits of an outlined loop body (``break``, ``continue``, ``return``) returns of the outlined function.

In: the statements of the body. Out: the same statements with returns, and how they may leave the loop, which the code
that calls the function looks at.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Sequence
from typing import Any

from torchjanus.rewrite.liveness import INNER
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import place

__all__ = [
    "GOES_ON", "HOW", "LEAVES", "RESULT", "RETURNS", "name_node", "none_node", "result_of_body", "whether_left",
    "with_returns",
]  # fmt: skip


GOES_ON, LEAVES, RETURNS = 0, 1, 2  # how an outlined body was left, if not by its end
HOW, RESULT = "_torchjanus_left", "_torchjanus_result"
Exit = Callable[[Location, bool, int, ast.expr | None], ast.expr | None]  # (where, flagged, how, value) -> result


class _Leaving(ast.NodeTransformer):
    """Makes the exits of a loop's body returns of a function that has that body."""

    def __init__(self, result: Exit, flagged: bool) -> None:
        self._result = result
        self._flagged = flagged
        self._loops = 0
        self.kinds: set[int] = set()

    def visit(self, node: ast.AST) -> Any:
        """Return the node's replacement."""
        if isinstance(node, INNER):
            return node
        if isinstance(node, ast.For | ast.While):
            self._loops += 1
            node.body = [self.visit(one) for one in node.body]
            self._loops -= 1
            node.orelse = [self.visit(one) for one in node.orelse]
            return node
        if isinstance(node, ast.Return):
            return self._leave(node, RETURNS, node.value)
        if isinstance(node, ast.Break) and not self._loops:
            return self._leave(node, LEAVES, None)
        if isinstance(node, ast.Continue) and not self._loops:
            return self._leave(node, GOES_ON, None)
        return super().generic_visit(node)

    def _leave(self, node: ast.stmt, how: int, value: ast.expr | None) -> ast.Return:
        self.kinds |= {how} - {GOES_ON}
        where = location_of(node)
        return place(ast.Return(self._result(where, self._flagged, how, value)), where)


def with_returns(body: Sequence[ast.stmt], result: Exit) -> tuple[list[ast.stmt], set[int]]:
    """Return the body with its exits made returns, and the kinds of exits other than going on."""
    made: list[ast.stmt] = []
    kinds: set[int] = set()
    for flagged in (False, True):
        leaving = _Leaving(result, flagged)
        made, kinds = [leaving.visit(copy.deepcopy(node)) for node in body], leaving.kinds
        if not kinds:
            break
    return made, kinds


def result_of_body(
    kept: Sequence[str], where: Location, flagged: bool, how: int, value: ast.expr | None
) -> ast.expr | None:
    """Return what the outlined body of a function's loop returns: how it was left and the function's result if there
    are several exits, then the variables."""
    values: list[ast.expr] = [name_node(name, where, ast.Load()) for name in kept]
    if flagged:
        values = [place(ast.Constant(how), where), value or none_node(where), *values]
    return place(ast.Tuple(values, ast.Load()), where) if values else None


def whether_left(where: Location, flagged: bool, how: int, value: ast.expr | None) -> ast.expr | None:
    """Return what the outlined body of a module's loop returns: True if it leaves the loop."""
    return place(ast.Constant(True), where) if how == LEAVES else None


def name_node(name: str, where: Location, context: ast.expr_context) -> ast.Name:
    return place(ast.Name(name, context), where)


def none_node(where: Location) -> ast.Constant:
    return place(ast.Constant(None), where)
