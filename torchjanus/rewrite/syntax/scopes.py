"""Resolves names to variables, by scope and by Python's own rules. This module does not know hooks.

The analysis covers one outermost function; of what encloses it only the names of its closure cells are known.
"""

from __future__ import annotations

import ast
import enum
from collections.abc import Iterable, Mapping

__all__ = ["Comprehension", "Function", "Reach", "Scope", "analyse", "mangle"]

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


class Reach(enum.Enum):
    """Where a name's variable is, seen from the scope that uses it."""

    LOCAL = "local"  # of the outermost function or something inside it: stays native
    GLOBAL = "global"  # the globals of the outermost function, or the builtins
    CELL = "cell"  # a closure cell of the outermost function


def mangle(name: str, private: str | None) -> str:
    """Return the name as the compiler stores it inside class ``private``."""
    if private is None or not name.startswith("__") or name.endswith("__") or "." in name:
        return name
    owner = private.lstrip("_")
    return f"_{owner}{name}" if owner else name


class Scope:
    """One function, class or comprehension: the names bound in it, and its parent. Names are mangled."""

    def __init__(self, kind: str, parent: Scope | None, cells: frozenset[str] = frozenset()) -> None:
        self.kind = kind  # "function", "class" or "comprehension"
        self.parent = parent
        self.bound: set[str] = set()
        self.declared_global: set[str] = set()
        self.declared_nonlocal: set[str] = set()
        self._cells = cells  # for the outermost scope: the names of its closure cells

    def resolve(self, name: str) -> Reach:
        if name == "__class__":  # the cell of the enclosing class, which needs no hook
            return Reach.LOCAL
        if self.kind == "class" and name not in self.declared_global and name not in self.declared_nonlocal:
            return Reach.LOCAL  # looked up in the class namespace first
        scope: Scope | None = self
        while scope is not None:
            if scope is self or scope.kind != "class":
                if name in scope.declared_global:
                    return Reach.GLOBAL
                if name in scope.bound and name not in scope.declared_nonlocal:
                    return Reach.LOCAL
            if scope.parent is None:
                return Reach.CELL if name in scope._cells else Reach.GLOBAL
            scope = scope.parent
        raise AssertionError("a scope chain ends in the outermost function")


def analyse(root: Function, cells: Iterable[str], private: str | None) -> Mapping[ast.AST, Scope]:
    """Return the scope of every function, class and comprehension node from ``root`` down."""
    collector = _Collector()
    outermost = Scope("function", None, frozenset(cells))
    collector.function(root, outermost, private)
    return collector.scopes


class _Collector:
    def __init__(self) -> None:
        self.scopes: dict[ast.AST, Scope] = {}

    def function(self, node: Function, scope: Scope, private: str | None) -> None:
        """Visit the inside of a function whose own scope is ``scope``."""
        self.scopes[node] = scope
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            scope.bound.add(mangle(argument.arg, private))
        for rest in (arguments.vararg, arguments.kwarg):
            if rest is not None:
                scope.bound.add(mangle(rest.arg, private))
        for statement in node.body if isinstance(node.body, list) else [node.body]:
            self.visit(statement, scope, private)

    def within_type_parameters(self, node: ast.AST, scope: Scope, private: str | None) -> Scope:
        """Return the scope of type parameters (PEP 695), which is between a definition and its enclosing scope."""
        parameters = getattr(node, "type_params", None)
        if not parameters:
            return scope
        between = Scope("function", scope)
        between.bound.update(mangle(parameter.name, private) for parameter in parameters)
        return between

    def visit(self, node: ast.AST, scope: Scope, private: str | None) -> None:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                scope.bound.add(mangle(node.name, private))
                self.each(node.decorator_list, scope, private)
                self.visit(node.args, scope, private)
                around = self.within_type_parameters(node, scope, private)
                self.function(node, Scope("function", around), private)
            case ast.Lambda():
                self.visit(node.args, scope, private)
                self.function(node, Scope("function", scope), private)
            case ast.arguments():
                self.each(
                    [*node.defaults, *(default for default in node.kw_defaults if default is not None)], scope, private
                )
            case ast.ClassDef():
                scope.bound.add(mangle(node.name, private))
                self.each([*node.decorator_list, *node.bases, *node.keywords], scope, private)
                body = Scope("class", self.within_type_parameters(node, scope, private))
                self.scopes[node] = body
                self.each(node.body, body, node.name)
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                self.comprehension(node, scope, private)
            case ast.NamedExpr():
                binder = scope
                while binder.kind == "comprehension" and binder.parent is not None:
                    binder = binder.parent
                binder.bound.add(mangle(node.target.id, private))
                self.visit(node.value, scope, private)
            case ast.Global():
                scope.declared_global.update(mangle(name, private) for name in node.names)
            case ast.Nonlocal():
                scope.declared_nonlocal.update(mangle(name, private) for name in node.names)
            case ast.Name():
                if not isinstance(node.ctx, ast.Load):
                    scope.bound.add(mangle(node.id, private))
            case ast.alias():
                scope.bound.add(mangle(node.asname or node.name.partition(".")[0], private))
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar():
                if node.name is not None:
                    scope.bound.add(mangle(node.name, private))
                self.each(ast.iter_child_nodes(node), scope, private)
            case ast.MatchMapping():
                if node.rest is not None:
                    scope.bound.add(mangle(node.rest, private))
                self.each(ast.iter_child_nodes(node), scope, private)
            case ast.AnnAssign():
                self.visit(node.target, scope, private)
                if node.value is not None:
                    self.visit(node.value, scope, private)
            case _ if type(node).__name__ == "TypeAlias":  # 3.12; its value is a lazy scope of its own, left native
                self.visit(node.name, scope, private)  # type: ignore[attr-defined]
            case _:
                self.each(ast.iter_child_nodes(node), scope, private)

    def each(self, nodes: Iterable[ast.AST], scope: Scope, private: str | None) -> None:
        for node in nodes:
            self.visit(node, scope, private)

    def comprehension(self, node: Comprehension, scope: Scope, private: str | None) -> None:
        inner = Scope("comprehension", scope)
        self.scopes[node] = inner
        first, *others = node.generators
        self.visit(first.iter, scope, private)  # the outermost iterable belongs to the enclosing scope
        self.visit(first.target, inner, private)
        self.each(first.ifs, inner, private)
        self.each(others, inner, private)
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.each(elements, inner, private)
