"""The walk over one function's tree: copies what stays native and calls the construct modules for the rest.

It holds positions, scopes and site numbers while a function is rewritten. It never changes a node of the tree that it
reads, since all functions of a file share one tree.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from torchjanus.rewrite.syntax.scopes import Reach, Scope, mangle
from torchjanus.rewrite.syntax.sites import Location, Region, SiteTable, location_of

__all__ = ["HOOK", "Construct", "Walk", "constant", "place"]

HOOK = "\0@janus"  # placeholder of the hook object until the code is compiled; no source contains this string by chance

Construct = Callable[
    ["Walk", Any], Any
]  # (walk, node) -> the node's replacement; for a statement, possibly a list of them

N = TypeVar("N", bound=ast.AST)


def place(node: N, location: Location) -> N:
    """Return the node, with a position of the user's source."""
    node.lineno, node.col_offset, node.end_lineno, node.end_col_offset = location  # type: ignore[attr-defined]
    return node


def constant(value: Any, location: Location) -> ast.Constant:
    return place(ast.Constant(value), location)


class Walk:
    """The rewriting of one function."""

    def __init__(
        self,
        constructs: Mapping[type[ast.AST], Construct],
        scopes: Mapping[ast.AST, Scope],
        sites: SiteTable,
        private: str | None,
        imported: frozenset[str],
        function: str,
    ) -> None:
        self._constructs = constructs
        self._scopes = scopes
        self._sites = sites
        self.private = private  # the class whose private names are mangled here
        self.imported = imported  # the names that the file imports at module level
        self.function = function  # the qualified name of the function being walked
        self.scope: Scope | None = None
        self.function_node: ast.AST | None = None  # the innermost function, unless a class or comprehension is nearer
        self.path: tuple[Region, ...] = ()  # the constructs around what is walked, from the innermost function on
        self.regions = 0  # number of enclosing regions
        self._kinds: dict[ast.AST, str] = {}  # kinds of sites that differ from the default
        self.instead: dict[ast.AST, ast.expr] = {}  # replacements of nodes, rewritten already

    # ---- walking ----

    def visit(self, node: Any) -> Any:
        """Return the replacement of an expression (or of any single node)."""
        if node in self.instead:
            return self.instead[node]
        construct = self._constructs.get(type(node))
        return self.copy(node) if construct is None else construct(self, node)

    def number(self, node: ast.expr) -> Any:
        """Return the replacement of an operand of arithmetic, for which a truth counts as 0 or 1. Sites of comparisons
        and of calls of ``item()`` are marked so."""
        match node:
            case ast.Compare(ops=[ast.Eq() | ast.NotEq() | ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE()]):
                self.counted(node)
            case ast.Call(func=ast.Attribute(attr="item"), args=[], keywords=[]):
                self.counted(node)
        return self.visit(node)

    def counted(self, *nodes: ast.AST) -> None:
        """Mark the sites of these nodes: their values are counted."""
        self._kinds.update(dict.fromkeys(nodes, "counted"))

    def loop_test(self, node: ast.Compare) -> None:
        """Mark the site of this comparison, and of calls of ``len()`` in it: a loop ends if it does not hold."""
        self._kinds[node] = "loop_test"
        for part in (node.left, *node.comparators):
            match part:
                case ast.Call(ast.Name("len"), [_], []):
                    self._kinds[part] = "loop_test"

    def kind(self, node: ast.AST, otherwise: str) -> str:
        """Return the kind of a node's site: see ``counted`` and ``loop_test``."""
        return self._kinds.get(node, otherwise)

    def copy(self, node: N) -> N:
        """Return a copy of the node with its children replaced."""
        fields: dict[str, Any] = {}
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                fields[name] = self.visit_all(value)
            elif isinstance(value, ast.expr | ast.stmt | ast.mod | ast.excepthandler | ast.keyword | ast.match_case):
                fields[name] = self.visit(value)
            else:
                fields[name] = value
        return ast.copy_location(type(node)(**fields), node)

    def visit_all(self, nodes: Iterable[Any]) -> list[Any]:
        """Return the replacements of several nodes; a statement may become several."""
        out: list[Any] = []
        for node in nodes:
            new = self.visit(node) if isinstance(node, ast.AST) else node
            if isinstance(new, list):
                out.extend(new)
            else:
                out.append(new)
        return out

    # ---- scopes ----

    @contextmanager
    def inside(self, node: ast.AST, function: str | None = None, private: str | None = None) -> Iterator[None]:
        """Walk inside a function, class or comprehension node."""
        before = self.scope, self.function, self.private, self.function_node, self.path
        self.scope = self._scopes[node]
        if self.scope.kind == "function" or isinstance(node, ast.GeneratorExp):  # its code is suspended and resumed
            self.path = (Region("function", "", location_of(node)),)
        self.function_node = node if self.scope.kind == "function" else None
        self.function = function or self.function
        self.private = private or self.private
        try:
            yield
        finally:
            self.scope, self.function, self.private, self.function_node, self.path = before

    @contextmanager
    def region(self, node: ast.AST, kind: str, arm: str = "") -> Iterator[None]:
        """Walk inside a construct that is repeated or chosen, or inside one arm of it."""
        before = self.path
        self.path = (*before, Region(kind, arm, location_of(node)))
        try:
            yield
        finally:
            self.path = before

    def mangled(self, name: str) -> str:
        return mangle(name, self.private)

    def reach(self, name: str) -> Reach:
        """Return where the variable ``name`` (already mangled) is."""
        assert self.scope is not None, "a walk starts inside of a function"
        return self.scope.resolve(name)

    # ---- hooks ----

    def site(self, kind: str, node: ast.AST) -> int:
        return self._sites.add(kind, location_of(node), self.function, self.path)

    def hook(self, name: str, location: Location, *arguments: ast.expr) -> ast.Call:
        """Return a call of the hook object's method ``name``, which raises at ``location``."""
        line, column, _, _ = location
        receiver = constant(HOOK, location)
        # On one line: errors of a method call that spans lines would be reported on its last line.
        method = place(ast.Attribute(receiver, name, ast.Load()), (line, column, line, column))
        return place(ast.Call(method, list(arguments), []), location)

    def ask(
        self, name: str, node: ast.AST, *arguments: ast.expr, kind: str = "", location: Location | None = None
    ) -> ast.Call:
        """Return a hook call with a new site for ``node`` as its first argument."""
        where = location or location_of(node)
        return self.hook(name, where, constant(self.site(kind or name, node), where), *arguments)
