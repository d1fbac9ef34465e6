"""Compiles generated code that refers to objects by their index in a tuple.

A global name would be looked up at each use, in a dictionary that a training step has evicted from the cache. Here
every object is in one tuple, which the functions have as a local variable. Unlike constants of the code, that tuple is
seen by Python's garbage collector: a model may hold the functions made for it. This module does not know what the code
does.
"""

from __future__ import annotations

import ast
from typing import Any

__all__ = ["compile_with_constants"]

_TUPLE = "constants"


class _Embed(ast.NodeTransformer):
    """Replaces names of objects by elements of the tuple."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.numbers = {name: number for number, name in enumerate(names)}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        number = self.numbers.get(node.id)
        if number is None:
            return node
        place, at = ast.Name(_TUPLE, ast.Load()), ast.Constant(number)
        for new in (place, at, element := ast.Subscript(place, at, ast.Load())):
            ast.copy_location(new, node)
        return element

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.args.kwonlyargs.append(ast.copy_location(ast.arg(_TUPLE), node))
        node.args.kw_defaults.append(ast.copy_location(ast.Name(_TUPLE, ast.Load()), node))
        return node


def compile_with_constants(text: str, filename: str, constants: dict[str, Any], scope: dict[str, Any]) -> None:
    """Execute ``text`` in ``scope``; its functions get ``constants`` by index instead of by name.

    The text may not assign to the names of the constants, nor use the name ``constants``.
    """
    tree = _Embed(constants).visit(ast.parse(text, filename))
    scope[_TUPLE] = tuple(constants.values())
    exec(compile(tree, filename, "exec"), scope)
    del scope[_TUPLE]
