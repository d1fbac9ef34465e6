"""``for``, ``while`` and comprehensions. Asynchronous iteration stays native."""

from __future__ import annotations

import ast

from torchjanus.rewrite.scopes import Comprehension
from torchjanus.rewrite.sites import location_of
from torchjanus.rewrite.targets import Unpacking, target
from torchjanus.rewrite.truth import test
from torchjanus.rewrite.walk import Construct, Walk, constant, place

__all__ = ["CONSTRUCTS"]


def iterate(walk: Walk, iterable: ast.expr, unpacking: Unpacking | None, kind: str) -> ast.expr:
    """The hook on a loop's iterable, already rewritten. Elements that the loop unpacks come ready to be unpacked."""
    if unpacking is None:
        return walk.ask("iterate", iterable, walk.visit(iterable), kind=kind)
    described = constant(unpacking, location_of(iterable))
    return walk.ask("iterate_unpacked", iterable, described, walk.visit(iterable), kind=kind)


def for_(walk: Walk, node: ast.For) -> ast.stmt:
    new, unpacking = target(walk, node.target)
    iterable = iterate(walk, node.iter, unpacking, "for")
    body, orelse = walk.visit_all(node.body), walk.visit_all(node.orelse)
    return place(ast.For(new, iterable, body, orelse), location_of(node))


def async_for(walk: Walk, node: ast.AsyncFor) -> ast.stmt:
    new, _ = target(walk, node.target, hooked=False)
    iterable, body, orelse = walk.visit(node.iter), walk.visit_all(node.body), walk.visit_all(node.orelse)
    return place(ast.AsyncFor(new, iterable, body, orelse), location_of(node))


def while_(walk: Walk, node: ast.While) -> ast.stmt:
    decided = test(walk, node.test, "while")
    return place(ast.While(decided, walk.visit_all(node.body), walk.visit_all(node.orelse)), location_of(node))


def comprehension(walk: Walk, node: Comprehension) -> ast.expr:
    first = node.generators[0].iter
    generators: list[ast.comprehension] = []
    with walk.inside(node):
        for each in node.generators:
            new, unpacking = target(walk, each.target, hooked=not each.is_async)
            if each.is_async:
                iterable = each.iter
            elif each.iter is first:
                iterable = first
            else:
                iterable = iterate(walk, each.iter, unpacking, "comprehension")
            if each.iter is first:
                opening = unpacking
            elif each.is_async:
                iterable = walk.visit(each.iter)
            decided = [test(walk, condition, "filter") for condition in each.ifs]
            generators.append(ast.comprehension(new, iterable, decided, each.is_async))
        if isinstance(node, ast.DictComp):
            elements = [walk.visit(node.key), walk.visit(node.value)]
        else:
            elements = [walk.visit(node.elt)]
    # The outermost iterable is evaluated in the scope around, at once.
    asynchronous = node.generators[0].is_async
    generators[0].iter = walk.visit(first) if asynchronous else iterate(walk, first, opening, "comprehension")
    return place(type(node)(*elements, generators), location_of(node))


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.For: for_,
    ast.AsyncFor: async_for,
    ast.While: while_,
    ast.ListComp: comprehension,
    ast.SetComp: comprehension,
    ast.DictComp: comprehension,
    ast.GeneratorExp: comprehension,
}
