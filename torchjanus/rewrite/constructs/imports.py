"""Import statements inside functions. Python imports; what ``from`` has found is then a read of a module's variable.

A module is its own constant, so for ``import`` only a store outside local variables is hooked.
"""

from __future__ import annotations

import ast

from torchjanus.rewrite.constructs.targets import target
from torchjanus.rewrite.syntax.scopes import Reach
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, constant, place

__all__ = ["CONSTRUCTS"]


def imported(walk: Walk, node: ast.Import) -> list[ast.stmt]:
    made: list[ast.stmt] = [node]
    if _is_native(walk):
        return made
    for alias in node.names:
        name = alias.asname or alias.name.partition(".")[0]
        if walk.reach(walk.mangled(name)) is not Reach.LOCAL:
            made.append(_stored(walk, node, name, place(ast.Name(name, ast.Load()), location_of(node))))
    return made


def imported_from(walk: Walk, node: ast.ImportFrom) -> list[ast.stmt]:
    made: list[ast.stmt] = [node]
    if _is_native(walk):
        return made
    where = location_of(node)
    for alias in node.names:
        name = alias.asname or alias.name
        given = (constant(node.module or "", where), constant(node.level, where), constant(alias.name, where))
        value = walk.ask("imported", node, *given, place(ast.Name(name, ast.Load()), where))
        made.append(_stored(walk, node, name, value))
    return made


def _is_native(walk: Walk) -> bool:
    """Whether the names stay native, as those of a class body do."""
    assert walk.scope is not None, "a walk starts inside of a function"
    return walk.scope.kind != "function"


def _stored(walk: Walk, node: ast.stmt, name: str, value: ast.expr) -> ast.stmt:
    where = location_of(node)
    store, _ = target(walk, place(ast.Name(name, ast.Store()), where))
    return place(ast.Assign([store], value), where)


CONSTRUCTS: dict[type[ast.AST], Construct] = {ast.Import: imported, ast.ImportFrom: imported_from}
