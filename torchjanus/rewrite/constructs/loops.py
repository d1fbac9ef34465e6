"""``for``, ``while``, comprehensions and ``yield from``: what they go over is given to a hook (Snek, section 3).

In: the walk and the loop. Out: the same loop over what the hook returns, with its test asked as a branch. Asynchronous
iteration stays native.
"""

from __future__ import annotations

import ast
from contextlib import ExitStack

from torchjanus.rewrite.constructs.calls import hashed
from torchjanus.rewrite.constructs.counting_down import counts_down
from torchjanus.rewrite.constructs.targets import Unpacking, target
from torchjanus.rewrite.constructs.truth import Blame, test
from torchjanus.rewrite.syntax.quirks import ITERATION_BLAMES_LOOP
from torchjanus.rewrite.syntax.scopes import Comprehension
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, constant, place

__all__ = ["CONSTRUCTS"]


def iterate(walk: Walk, loop: ast.AST, iterable: ast.expr, unpacking: Unpacking | None) -> ast.expr:
    """Return the hook on a loop's iterable. Elements that the loop unpacks are returned ready to be unpacked."""
    kind = "for" if isinstance(loop, ast.For) else "comprehension"
    if isinstance(loop, ast.GeneratorExp):
        kind = "generator"
    where = location_of(loop if ITERATION_BLAMES_LOOP else iterable)
    if unpacking is None:
        return walk.ask("iterate", iterable, walk.visit(iterable), kind=kind, location=where)
    described = constant(unpacking, where)
    return walk.ask("iterate_unpacked", iterable, described, walk.visit(iterable), kind=kind, location=where)


def for_(walk: Walk, node: ast.For) -> ast.stmt:
    new, unpacking = target(walk, node.target)
    iterable = iterate(walk, node, node.iter, unpacking)
    with walk.region(node, "for"):
        body = walk.visit_all(node.body)
    orelse = walk.visit_all(node.orelse)
    return place(ast.For(new, iterable, body, orelse), location_of(node))


def async_for(walk: Walk, node: ast.AsyncFor) -> ast.stmt:
    new, _ = target(walk, node.target, hooked=False)
    iterable, body, orelse = walk.visit(node.iter), walk.visit_all(node.body), walk.visit_all(node.orelse)
    return place(ast.AsyncFor(new, iterable, body, orelse), location_of(node))


def while_(walk: Walk, node: ast.While) -> ast.stmt:
    where = location_of(node)
    counts_down(walk, node)
    match node.test:
        case ast.BoolOp(op=ast.And(), values=parts):
            pass
        case one:
            parts = [one]
    for part in parts:
        if isinstance(part, ast.Compare):
            walk.loop_test(part)
    with walk.region(node, "while"):
        with walk.region(node, "while", "test"):
            decided = test(walk, node.test, "while", Blame(where))
        with walk.region(node, "while", "body"):
            body = walk.visit_all(node.body)
    return place(ast.While(decided, body, walk.visit_all(node.orelse)), where)


def comprehension(walk: Walk, node: Comprehension) -> ast.expr:
    where = location_of(node)
    first, *others = node.generators
    generators: list[ast.comprehension] = []
    with walk.inside(node), ExitStack() as nest:
        nest.enter_context(walk.region(node, "comprehension"))
        first_target, first_unpacking = target(walk, first.target, hooked=not first.is_async)
        generators.append(ast.comprehension(first_target, first.iter, filters(walk, node, first), first.is_async))
        for each in others:
            new, unpacking = target(walk, each.target, hooked=not each.is_async)
            iterable = walk.visit(each.iter) if each.is_async else iterate(walk, node, each.iter, unpacking)
            nest.enter_context(walk.region(node, "comprehension"))
            generators.append(ast.comprehension(new, iterable, filters(walk, node, each), each.is_async))
        names = ("key", "value") if isinstance(node, ast.DictComp) else ("elt",)
        elements = {name: walk.visit(getattr(node, name)) for name in names}
        if isinstance(node, ast.DictComp | ast.SetComp):
            elements[names[0]] = hashed(walk, getattr(node, names[0]), elements[names[0]])
        collects = not isinstance(node, ast.GeneratorExp)
        if collects:
            elements = {name: walk.ask("gathered", node, value) for name, value in elements.items()}
    # The outermost iterable is evaluated in the enclosing scope, at once.
    generators[0].iter = walk.visit(first.iter) if first.is_async else iterate(walk, node, first.iter, first_unpacking)
    made = place(type(node)(**elements, generators=generators), where)
    return walk.ask("made", node, walk.ask("making", node), made) if collects else made


def filters(walk: Walk, node: Comprehension, generator: ast.comprehension) -> list[ast.expr]:
    return [test(walk, condition, "filter", Blame(location_of(node))) for condition in generator.ifs]


def yield_from(walk: Walk, node: ast.YieldFrom) -> ast.expr:
    return place(ast.YieldFrom(walk.ask("delegate", node, walk.visit(node.value))), location_of(node))


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.YieldFrom: yield_from,
    ast.For: for_,
    ast.AsyncFor: async_for,
    ast.While: while_,
    ast.ListComp: comprehension,
    ast.SetComp: comprehension,
    ast.DictComp: comprehension,
    ast.GeneratorExp: comprehension,
}
