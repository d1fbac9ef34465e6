"""Assignment statements: plain, chained, annotated, augmented; and ``del``."""

from __future__ import annotations

import ast
from builtins import len  # torchjanus' own, even where a program replaces it

from torchjanus.rewrite.constructs.loads import with_hook
from torchjanus.rewrite.constructs.operators import BINARY
from torchjanus.rewrite.constructs.targets import Unpacking, slot, target
from torchjanus.rewrite.syntax.scopes import Reach
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, constant, place

__all__ = ["CONSTRUCTS"]


def assign(walk: Walk, node: ast.Assign) -> ast.stmt:
    where = location_of(node)
    value: ast.expr = walk.visit(node.value)
    pairs = [target(walk, each) for each in node.targets]
    if len(pairs) == 1:
        new, unpacking = pairs[0]
        if unpacking is not None and not displays(node.value, unpacking):
            value = walk.hook("unpack", location_of(node.targets[0]), constant(unpacking, location_of(new)), value)
        return place(ast.Assign([new], value), where)
    unpackings = tuple(unpacking for _, unpacking in pairs)
    if all(unpacking is None for unpacking in unpackings):
        return place(ast.Assign([new for new, _ in pairs], value), where)
    # x = (a, b) = v: a native tuple with v once for each target stores from left to right, as Python does.
    fan = walk.hook("fan", where, constant(unpackings, where), value)
    return place(ast.Assign([place(ast.Tuple([new for new, _ in pairs], ast.Store()), where)], fan), where)


def displays(value: ast.expr, unpacking: Unpacking) -> bool:
    """Whether it is ``a, b = x, y``: nothing is iterated over, so there is nothing to hook."""
    _, before, star, _, nested = unpacking
    return (
        isinstance(value, ast.Tuple | ast.List)
        and not star
        and nested is None
        and len(value.elts) == before
        and not any(isinstance(element, ast.Starred) for element in value.elts)
    )


def annotated(walk: Walk, node: ast.AnnAssign) -> ast.stmt:
    """Rewrite an annotated assignment. The annotation stays native: it may never be evaluated, or be kept as text."""
    if node.value is None:
        return node
    value = walk.visit(node.value)
    new, _ = target(walk, node.target)
    assert isinstance(new, ast.Name | ast.Attribute | ast.Subscript)
    return place(ast.AnnAssign(new, node.annotation, value, node.simple), location_of(node))


def augmented(walk: Walk, node: ast.AugAssign) -> ast.stmt:
    where = location_of(node)
    symbol = constant(BINARY[type(node.op)], where)
    visit = walk.number if isinstance(node.op, ast.Add | ast.Sub | ast.Mult) else walk.visit
    held = slot(walk, node.target, ast.Store(), "update", symbol) if not isinstance(node.target, ast.Name) else None
    if held is not None:
        # The value loaded from the slot implements += by the hook; Python stores the result back to the slot.
        assert isinstance(held, ast.Attribute)
        return place(ast.AugAssign(held, ast.Add(), visit(node.value)), where)
    assert isinstance(node.target, ast.Name)
    loaded = walk.visit(place(ast.Name(node.target.id, ast.Load()), location_of(node.target)))
    value = walk.ask("inplace", node, symbol, loaded, visit(node.value), kind=walk.kind(node, "inplace"))
    return place(ast.Assign([node.target], with_hook(walk, node, node.target.id, value)), where)


def delete(walk: Walk, node: ast.Delete) -> list[ast.stmt]:
    return [one for each in node.targets for one in deleted(walk, each, node)]


def deleted(walk: Walk, node: ast.expr, statement: ast.Delete) -> list[ast.stmt]:
    where = location_of(statement)
    if isinstance(node, ast.Tuple | ast.List):
        return [one for element in node.elts for one in deleted(walk, element, statement)]
    if not isinstance(node, ast.Name):
        return [place(ast.Delete([slot(walk, node, ast.Del(), "target") or node]), where)]
    # Natively first: for an unbound variable Python raises its own error, before the hook is asked.
    native = place(ast.Delete([node]), where)
    mangled = walk.mangled(node.id)
    reach = walk.reach(mangled)
    if reach is Reach.LOCAL:
        return [native]
    hooked = walk.ask("del_global" if reach is Reach.GLOBAL else "del_cell", node, constant(mangled, where))
    return [native, place(ast.Expr(hooked), where)]


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.Assign: assign,
    ast.AnnAssign: annotated,
    ast.AugAssign: augmented,
    ast.Delete: delete,
}
