"""Calls, their starred arguments, starred and double-starred elements of displays.

The hook returns what to call; the call itself is made natively, in the user's own frame. So a callee that inspects its
caller's frame (``locals``, ``super``, ``warnings.warn``) sees the user's, and argument errors are Python's own.
"""

from __future__ import annotations

import ast
from builtins import len  # torchjanus' own, even where a program replaces it

from torchjanus.rewrite.constructs.loads import attribute, attribute_location
from torchjanus.rewrite.syntax.scopes import Reach
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, place

__all__ = ["CONSTRUCTS", "hashed"]


def call_location(walk: Walk, node: ast.Call) -> Location:
    """Return where CPython reports errors of the call: for a method call that spans lines, the line of the method's
    name."""
    where = location_of(node)
    func = node.func
    if not isinstance(func, ast.Attribute) or func.lineno == func.end_lineno:
        return where
    if is_starred(node):
        return where
    if len(node.args) + len(node.keywords) + bool(node.keywords) >= 15:  # too many for CPython's method call
        return where
    # compiled as the call of a module's function
    if isinstance(func.value, ast.Name) and func.value.id in walk.imported:
        return where
    line, column, _, _ = attribute_location(func)
    return line, column, where[2], where[3]


def is_starred(node: ast.Call) -> bool:
    """Whether a call has arguments or keywords with stars."""
    return any(isinstance(argument, ast.Starred) for argument in node.args) or any(k.arg is None for k in node.keywords)


def statement(walk: Walk, node: ast.Expr) -> ast.stmt:
    """Rewrite an expression statement. The site of a call tells that its result is not used."""
    value = call(walk, node.value, "procedure") if isinstance(node.value, ast.Call) else walk.visit(node.value)
    return place(ast.Expr(value), location_of(node))


def call(walk: Walk, node: ast.Call, kind: str = "call") -> ast.expr:
    where = call_location(walk, node)
    match node:
        case ast.Call(func=ast.Name("int" | "float"), args=[one], keywords=[]):
            arguments = [walk.number(one)]
        case _:
            arguments = walk.visit_all(node.args)
    keywords = [keyword(walk, each) for each in node.keywords]
    if is_super(walk, node.func):
        callee: ast.expr = node.func  # the compiler adds a __class__ cell to a function that contains this name
    else:
        bare = not node.args and not node.keywords
        func = attribute(walk, node.func, "method") if isinstance(node.func, ast.Attribute) else walk.visit(node.func)
        how = "bare_callee" if bare else "starred_callee" if is_starred(node) else "callee"
        callee = walk.ask(how, node, func, kind=walk.kind(node, kind), location=where)
    return place(ast.Call(callee, arguments, keywords), where)


def is_super(walk: Walk, func: ast.expr) -> bool:
    return isinstance(func, ast.Name) and func.id == "super" and walk.reach("super") is Reach.GLOBAL


def keyword(walk: Walk, node: ast.keyword) -> ast.keyword:
    value = walk.visit(node.value)
    if node.arg is None:
        value = walk.ask("double_star", node.value, value)
    return place(ast.keyword(node.arg, value), location_of(node))


def starred(walk: Walk, node: ast.Starred) -> ast.expr:
    """Rewrite ``*iterable`` in a call or a display; starred targets are rewritten with the other targets."""
    return place(ast.Starred(walk.ask("star", node.value, walk.visit(node.value)), node.ctx), location_of(node))


def hashed(walk: Walk, node: ast.expr, visited: ast.expr) -> ast.expr:
    """Return the hooked form of what is hashed in a dictionary or set display. Hashing constants and strings needs no
    hook."""
    return visited if isinstance(node, ast.Constant | ast.JoinedStr) else walk.ask("hashed", node, visited)


def set_(walk: Walk, node: ast.Set) -> ast.expr:
    return place(ast.Set([_element(walk, each) for each in node.elts]), location_of(node))


def _element(walk: Walk, node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Starred):
        return hashed(walk, node, walk.visit(node))
    several = walk.ask("star", node.value, walk.visit(node.value), kind="elements")  # the elements are hashed
    return place(ast.Starred(several, node.ctx), location_of(node))


def dictionary(walk: Walk, node: ast.Dict) -> ast.expr:
    keys = [None if each is None else hashed(walk, each, walk.visit(each)) for each in node.keys]
    values = [
        walk.ask("double_star", value, walk.visit(value)) if each is None else walk.visit(value)
        for each, value in zip(node.keys, node.values, strict=True)
    ]
    return place(ast.Dict(keys, values), location_of(node))


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.Call: call,
    ast.Expr: statement,
    ast.Starred: starred,
    ast.Dict: dictionary,
    ast.Set: set_,
}
