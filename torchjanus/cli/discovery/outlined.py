"""An outlined step; what the outlining of blocks and of functions shares: free variables, late binding, new syntax."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from torchjanus.cli.discovery.candidates import Candidate
from torchjanus.cli.discovery.exits import name_node
from torchjanus.rewrite.liveness import INNER, bound, captured, parameters_of, read_by, within
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import place

__all__ = [
    "NotOutlined", "Outlined", "before", "behind", "call_of", "calling", "define", "enclosing_variables", "reads_of",
    "require_no_late_binding",
]  # fmt: skip


class NotOutlined(Exception):
    """Why a step cannot be outlined, in a sentence."""


@dataclass(frozen=True, slots=True)
class Outlined:
    """A step as a function. ``body``: what stands in place of the candidate's statements.

    ``function``: its definition, named after the function around it.
    """

    function: ast.FunctionDef
    body: list[ast.stmt]


def enclosing_variables(candidate: Candidate) -> frozenset[str]:
    """Return the variables of the functions around the scope."""
    names: set[str] = set()
    for function in candidate.around:
        names |= bound(function.body) | parameters_of(function.args)
    return frozenset(names)


def reads_of(statements: Sequence[ast.stmt]) -> frozenset[str]:
    """Return the variables that the statements may read."""
    return frozenset().union(*(read_by(node) for node in statements))


def require_no_late_binding(body: Sequence[ast.stmt], changing: set[str]) -> None:
    """Raise NotOutlined if a function made in the body may outlive the iteration and reads a variable that changes."""
    passed: set[int] = set()  # functions that are gone when the statement is over
    for node in within(body):
        if isinstance(node, ast.Call) and _ends_at_once(node):
            passed |= {id(part) for part in node.args} | {id(part.value) for part in node.keywords}
    for node in within(body):
        if isinstance(node, INNER) and captured([node]) & changing and id(node) not in passed:
            if not (isinstance(node, ast.FunctionDef) and _only_called(node.name, body)):
                raise NotOutlined(
                    f"a function made in it (line {node.lineno}) reads variables of later iterations, if it is kept"
                )


def _ends_at_once(node: ast.Call) -> bool:
    """Whether a call keeps none of the functions that it is given: an optimizer's ``step(closure)``, ``sorted``."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in ("step", "sort")
    return isinstance(node.func, ast.Name) and node.func.id in ("sorted", "min", "max", "sum", "any", "all")


def _only_called(name: str, body: Sequence[ast.stmt]) -> bool:
    """Whether a function made in the body is only called, or given to calls that do not keep it."""
    nodes = [*within(body)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    given = {id(part) for node in nodes if isinstance(node, ast.Call) and _ends_at_once(node) for part in node.args}
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)]
    return all(id(node) in called | given for node in uses)


# ---- new syntax: locations are keys, so an added statement gets one that no statement of the source has ----


def before(node: ast.stmt) -> Location:
    """Return the location of length 0 where a statement begins."""
    line, column, _, _ = location_of(node)
    return line, column, line, column


def behind(node: ast.stmt) -> Location:
    """Return the location of length 0 where a statement ends."""
    _, _, line, column = location_of(node)
    return line, column, line, column


def define(candidate: Candidate, given: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    """Return the definition of the outlined function. ``given``: its parameters."""
    where = location_of(candidate.body[0])
    taken = [place(ast.arg(name, None, None), where) for name in given]
    name = candidate.scope.name if isinstance(candidate.scope, ast.FunctionDef) else "module"
    return place(ast.FunctionDef(name, ast.arguments([], taken, None, [], [], None, []), body, [], None, None), where)


def call_of(callee: str, given: Sequence[str], where: Location) -> ast.Call:
    """Return a call of the constant ``callee`` with the variables ``given``."""
    return place(
        ast.Call(place(ast.Constant(callee), where), [name_node(name, where, ast.Load()) for name in given], []), where
    )


def calling(statement: ast.stmt, callee: str) -> ast.stmt:
    """Return ``statement``, which calls ``callee``. If the call raises, ``callee`` learns of it, before a handler of
    the program's runs."""
    where = location_of(statement)
    method = place(ast.Attribute(place(ast.Constant(callee), where), "has_raised", ast.Load()), where)
    notify = place(ast.Expr(place(ast.Call(method, [], []), where)), where)
    handler = place(ast.ExceptHandler(None, None, [notify, place(ast.Raise(None, None), where)]), where)
    return place(ast.Try([statement], [handler], [], []), where)
