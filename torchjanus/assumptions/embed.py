"""Compiles generated code with objects embedded as constants.

A name that stands for an object is looked up at each use, in a dictionary that a training step has pushed out of the
cache. A constant is not: it lies in the code object. Knows nothing of what the code does.
"""

from __future__ import annotations

import ast
import types
import warnings
from typing import Any

__all__ = ["compile_with_constants"]


class _Embed(ast.NodeTransformer):
    """Puts a stand-in, an imaginary number of its own, where a name stands for an object."""

    def __init__(self, names: dict[str, Any]) -> None:
        self.numbers = {name: complex(0.0, number) for number, name in enumerate(names, 1)}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        number = self.numbers.get(node.id)
        return node if number is None else ast.copy_location(ast.Constant(number), node)


def compile_with_constants(text: str, filename: str, constants: dict[str, Any], scope: dict[str, Any]) -> None:
    """Execute ``text`` in ``scope``, with ``constants`` in its functions by reference instead of by name.

    The text may contain no imaginary literals, may not assign to the names of the constants, and may not ask for the
    truth of one: the compiler would answer for the stand-in.
    """
    embed = _Embed(constants)
    tree = ast.fix_missing_locations(embed.visit(ast.parse(text, filename)))
    objects = {number: constants[name] for name, number in embed.numbers.items()}
    with warnings.catch_warnings():
        # Calling, subscripting or comparing the identity of a number would be a mistake in anyone's own code.
        warnings.simplefilter("ignore", SyntaxWarning)
        code = compile(tree, filename, "exec")
    exec(_replaced(code, objects), scope)


def _replaced(code: types.CodeType, objects: dict[complex, Any]) -> types.CodeType:
    def real(const: Any) -> Any:
        if isinstance(const, types.CodeType):
            return _replaced(const, objects)
        if type(const) is complex:
            return objects[const]
        # The compiler folds long runs of constant arguments into one tuple.
        return tuple(map(real, const)) if type(const) is tuple else const

    return code.replace(co_consts=tuple(map(real, code.co_consts)))
