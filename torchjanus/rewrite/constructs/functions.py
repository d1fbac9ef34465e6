"""Definitions inside the function: ``def``, ``lambda``, ``class``; and ``return``.

Inner definitions are rewritten in place, with the same hook object. Annotations, type parameters and type aliases stay
native: they may be kept as text or evaluated lazily.
"""

from __future__ import annotations

import ast

from torchjanus.rewrite.syntax.scopes import Function
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import Construct, Walk, place

__all__ = ["CONSTRUCTS", "function_body"]


def arguments(walk: Walk, node: ast.arguments) -> ast.arguments:
    return ast.arguments(
        node.posonlyargs,
        node.args,
        node.vararg,
        node.kwonlyargs,
        [None if default is None else walk.visit(default) for default in node.kw_defaults],
        node.kwarg,
        walk.visit_all(node.defaults),
    )


def decorators(walk: Walk, nodes: list[ast.expr]) -> list[ast.expr]:
    return [walk.ask("callee", node, walk.visit(node), kind="decorator") for node in nodes]


def with_type_parameters(new: ast.stmt, node: ast.stmt) -> ast.stmt:
    if hasattr(node, "type_params"):
        new.type_params = node.type_params  # type: ignore[attr-defined]
    return new


def define(walk: Walk, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    called = decorators(walk, node.decorator_list)
    defaults = arguments(walk, node.args)
    qualname = inner_qualname(walk, node.name)
    with walk.inside(node, qualname):
        body = walk.visit_all(node.body)
    new = type(node)(node.name, defaults, body, called, node.returns, node.type_comment)
    return with_type_parameters(place(new, location_of(node)), node)


def lambda_(walk: Walk, node: ast.Lambda) -> ast.expr:
    defaults = arguments(walk, node.args)
    with walk.inside(node, inner_qualname(walk, "<lambda>")):
        body = walk.ask("returned", node.body, walk.visit(node.body), kind="return")
    return place(ast.Lambda(defaults, body), location_of(node))


def class_(walk: Walk, node: ast.ClassDef) -> ast.stmt:
    called = decorators(walk, node.decorator_list)
    # The hook sees the class first: native code may have called code of the program while the class was made.
    made = walk.hook("made_class", location_of(node))
    called.append(walk.ask("callee", node, made, kind="class"))
    bases = walk.visit_all(node.bases)
    keywords = [keyword(walk, each) for each in node.keywords]
    with walk.inside(node, inner_qualname(walk, node.name), node.name):
        body = walk.visit_all(node.body)
    new = ast.ClassDef(node.name, bases, keywords, body, called)
    return with_type_parameters(place(new, location_of(node)), node)


def keyword(walk: Walk, node: ast.keyword) -> ast.keyword:
    """Rewrite a keyword of a class statement. The metaclass may be a function."""
    value = walk.visit(node.value)
    if node.arg is not None:
        name = "metaclass" if node.arg == "metaclass" else "class_keyword"
        value = walk.ask(name, node.value, value)
    return place(ast.keyword(node.arg, value), location_of(node))


def inner_qualname(walk: Walk, name: str) -> str:
    assert walk.scope is not None
    return f"{walk.function}.{name}" if walk.scope.kind == "class" else f"{walk.function}.<locals>.{name}"


def return_(walk: Walk, node: ast.Return) -> ast.stmt:
    if node.value is None:
        return node
    value = walk.ask("returned", node.value, walk.visit(node.value), kind="return")
    return place(ast.Return(value), location_of(node))


def function_body(walk: Walk, node: Function, qualname: str) -> Function:
    """Return the outermost function with a rewritten body. Its defaults and decorators are left alone."""
    with walk.inside(node, qualname):
        if isinstance(node, ast.Lambda):
            body = walk.ask("returned", node.body, walk.visit(node.body), kind="return")
            return place(ast.Lambda(node.args, body), location_of(node))
        new = type(node)(node.name, node.args, walk.visit_all(node.body), node.decorator_list, None, None)
        return place(new, location_of(node))


CONSTRUCTS: dict[type[ast.AST], Construct] = {
    ast.FunctionDef: define,
    ast.AsyncFunctionDef: define,
    ast.Lambda: lambda_,
    ast.ClassDef: class_,
    ast.Return: return_,
}
