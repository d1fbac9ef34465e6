"""Finds ``if`` statements that only count: ``if predicted == label: correct += 1``.

The hooks then get the outcome of the test as a number, where a branch would be a decision. Sites of the test and of the
addition are of the kind "counted". If a hook answers there that the test holds, the addition asks what is added.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from torchjanus.rewrite.syntax.scopes import Reach
from torchjanus.rewrite.syntax.walk import Walk

__all__ = ["counts"]


def counts(walk: Walk, node: ast.If) -> bool:
    """Whether the statement only adds a number to a local variable that has a value. If so, its sites are marked."""
    match node:
        case ast.If(
            test=ast.Compare() | ast.Call() | ast.Name(),
            body=[ast.AugAssign(ast.Name(name), ast.Add() | ast.Sub(), ast.Constant(int() as value)) as added],
            orelse=[],
        ):
            pass
        case _:
            return False
    if type(value) is bool or (isinstance(node.test, ast.Compare) and len(node.test.ops) > 1):
        return False
    function = walk.function_node
    if walk.reach(walk.mangled(name)) is not Reach.LOCAL or function is None or not _has_value(function, node, name):
        return False
    walk.counted(node.test, added)
    return True


def _has_value(function: ast.AST, at: ast.stmt, name: str) -> bool:
    """Whether the variable has a value whenever the function reaches this statement."""
    for node in ast.walk(function):
        match node:
            case ast.Name(id=known, ctx=ast.Del()) if known == name:
                return False
            case ast.ExceptHandler(name=known) if known == name:
                return False
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    arguments = function.args
    if any(one.arg == name for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)):
        return True
    return _set_before(function.body, at, name) is True


def _set_before(block: list[ast.stmt], at: ast.stmt, name: str) -> bool | None:
    """Whether earlier statements of the block, or of nested blocks around the statement, always set the variable; None
    where the statement is not in the block."""
    known = False
    for statement in block:
        if statement is at:
            return known
        for inner in _blocks(statement):
            found = _set_before(inner, at, name)
            if found is not None:
                return known or found
        known = known or _sets(statement, name)
    return None


def _sets(statement: ast.stmt, name: str) -> bool:
    if not isinstance(statement, ast.Assign):
        return False
    return any(isinstance(n, ast.Name) and n.id == name for target in statement.targets for n in ast.walk(target))


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for _, value in ast.iter_fields(statement):
        if isinstance(value, list):
            if value and all(isinstance(one, ast.stmt) for one in value):
                yield value
            else:
                yield from (one.body for one in value if isinstance(one, ast.ExceptHandler | ast.match_case))
