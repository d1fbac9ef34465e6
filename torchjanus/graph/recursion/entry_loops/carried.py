"""Whether the iterations of a loop carry values to each other, from the loop's source.

Traces show loop-carried tensors, but not a flag that one iteration sets and the next one reads. Works without traces.
"""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Iterator

from torchjanus.core.errors import Place

__all__ = ["REACHING", "Comprehension", "carries_nothing", "loop_at", "tree_of"]


def carries_nothing(place: Place) -> bool:
    """Whether nothing but sums is loop-carried in the loop whose iterable is at ``place``."""
    loop = loop_at(place)
    if loop is None:
        return False
    if not isinstance(loop, ast.For):
        return not any(isinstance(node, ast.NamedExpr) for node in ast.walk(loop))
    if any(isinstance(node, REACHING) for statement in loop.body for node in ast.walk(statement)):
        return False
    targets = set(_stored(loop.target))
    return all(_is_fresh(loop.body, name) or _is_sum(loop.body, name) for name in set(_names(loop.body)) - targets)


REACHING = (ast.Global, ast.Nonlocal, ast.NamedExpr, ast.FunctionDef, ast.ClassDef, ast.Lambda, ast.Delete, ast.With)
Comprehension = ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp


def loop_at(place: Place) -> ast.For | Comprehension | None:
    """Return the loop whose iterable is at the place, or None if there is not exactly one."""
    found = [node for node in _loops(place.file) if _stands_at(_over(node), place)]
    return found[0] if len(found) == 1 else None


def _stands_at(node: ast.expr, place: Place) -> bool:
    return node.lineno == place.line and node.col_offset == place.column


@functools.lru_cache(maxsize=32)
def tree_of(file: str) -> ast.Module | None:
    """Return the file's syntax tree, or None."""
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return None


@functools.lru_cache(maxsize=32)
def _loops(file: str) -> tuple[ast.For | Comprehension, ...]:
    tree = tree_of(file)
    nodes = () if tree is None else ast.walk(tree)
    return tuple(node for node in nodes if isinstance(node, ast.For | Comprehension))


def _over(node: ast.For | Comprehension) -> ast.expr:
    """Return the loop's iterable."""
    return node.iter if isinstance(node, ast.For) else node.generators[0].iter


def _stored(node: ast.AST) -> Iterator[str]:
    """Yield the variables that the code sets."""
    yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the variables that an iteration sets, and "." for each attribute or item that it sets."""
    for statement in body:
        yield from _stored(statement)
        for node in ast.walk(statement):
            if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store):
                yield "."


def _mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(node))


def _is_fresh(body: list[ast.stmt], name: str) -> bool:
    """Whether an iteration sets the variable before it reads it."""
    first = next((statement for statement in body if _mentions(statement, name)), None)
    if not isinstance(first, ast.Assign) or _mentions(first.value, name):
        return False
    return any(name in _stored(target) for target in first.targets)


def _is_sum(body: list[ast.stmt], name: str) -> bool:
    """Whether an iteration only adds to the variable: the trace shows what it adds, if that is a tensor."""
    mentions = sum(isinstance(n, ast.Name) and n.id == name for statement in body for n in ast.walk(statement))
    if not mentions:
        return False
    for node in (node for statement in body for node in ast.walk(statement)):
        match node:
            case ast.AugAssign(target=ast.Name(id=known), op=ast.Add()) if known == name:
                mentions -= 1
            case ast.Assign(targets=[ast.Name(id=known)], value=value) if known == name:
                while isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
                    if isinstance(value.right, ast.Name) and value.right.id == name:
                        mentions -= 2
                        break
                    value = value.left
                else:
                    mentions -= 2 if isinstance(value, ast.Name) and value.id == name else 0
    return mentions == 0
