"""Control flow as functions (Snek, section 3): a hook gets the arms of an ``if``, the body of a loop, and the
statements after one that may leave, as functions. Other constructs are rewritten as always.

Ordinary rewriting keeps control flow native, so a hook decides one way only. A run that *stages* the program has to
take both ways. In lifted code a hook gets each part as a function, and calls it any number of times; the variables that
a part sets are cells of the function around it. A lifted function returns None if it reaches its end, else an ``Exit``
that describes how the program leaves it.

Functions that can be suspended (generators, coroutines) are not lifted.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any

from torchjanus.core.caches import Identities
from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite.build import CONSTRUCTS, Bind, Template, bound_code, code_of, is_rewritten, with_code
from torchjanus.rewrite.constructs import blocks, calls, functions
from torchjanus.rewrite.constructs.targets import target
from torchjanus.rewrite.lifted_expressions import LIFTED, assert_, boolean, compare, conditional, list_of, named, tested
from torchjanus.rewrite.lifted_match import is_plain_match, match_parts
from torchjanus.rewrite.liveness import bound, parameters_of, within
from torchjanus.rewrite.source import compile_alone, find
from torchjanus.rewrite.syntax.scopes import Function, Reach, analyse
from torchjanus.rewrite.syntax.sites import Location, SiteTable, location_of
from torchjanus.rewrite.syntax.walk import Walk, constant, place

__all__ = ["lifted"]

_LOOPS = (ast.For, ast.While)
_BLOCKS = (ast.With, ast.Try, ast.TryStar, ast.Match)
_templates: Identities[Template | str] = Identities()  # by code; a text says why there is none


def lifted(fn: FunctionType, bind: Bind) -> FunctionType:
    """Return the form of ``fn`` in which control flow goes through hooks. Raises SourceUnavailable."""
    if is_rewritten(fn.__code__):
        return fn
    made = _template(fn)
    return with_code(fn, bound_code(made.code, bind(fn, made.sites)))


def _template(fn: FunctionType) -> Template:
    outcome = _templates.get(fn.__code__, lambda: _lift(fn))
    if isinstance(outcome, str):
        raise SourceUnavailable(outcome)
    return outcome


def _lift(fn: FunctionType) -> Template | str:
    code = code_of(fn)
    try:
        found = find(fn)
        table = SiteTable(code.co_filename)
        scopes = analyse(found.node, code.co_freevars, found.private)
        walk = _Lifting(CONSTRUCTS | _TABLE, scopes, table, found.private, found.imported, code.co_qualname)
        with walk.within_function(found.node):
            node = functions.function_body(walk, found.node, code.co_qualname)
        walk.declare(node, found.node)
        made = compile_alone(node, code, found)
    except SourceUnavailable as error:
        return str(error)
    except (SyntaxError, RecursionError) as error:
        return f"{code.co_filename}:{code.co_firstlineno}: {code.co_qualname}() cannot be lifted: {error}."
    return Template(made, table.freeze())


class _Lifting(Walk):
    """The walk that lifts. ``depth``: how many functions that were made here are around what is walked, in the
    program's innermost function."""

    depth = 0
    lifts = True
    in_loop = False
    deferred = False  # whether what is walked becomes the body of a lambda that is made here
    receiver: str | None = None

    @contextmanager
    def within_function(self, node: Function) -> Iterator[None]:
        """Walk the body of one of the program's functions."""
        before = self.depth, self.lifts, self.in_loop, self.receiver, self.deferred
        body = node.body if isinstance(node.body, list) else [node.body]
        suspended = isinstance(node, ast.AsyncFunctionDef) or any(
            isinstance(part, ast.Yield | ast.YieldFrom | ast.Await) for part in within(body)
        )
        named = [*node.args.posonlyargs, *node.args.args]
        self.depth, self.lifts, self.in_loop, self.deferred = 0, not suspended, False, False
        self.receiver = named[0].arg if named else None
        try:
            yield
        finally:
            self.depth, self.lifts, self.in_loop, self.receiver, self.deferred = before

    def declare(self, made: Function, node: Function) -> None:
        """Let the function's own variables be variables of the function, not of the parts that set them."""
        if isinstance(node, ast.Lambda) or isinstance(made, ast.Lambda):
            return
        names = sorted(self.own(node.body, node) - parameters_of(node.args))
        if names:
            where = location_of(node.body[0])
            targets: list[ast.expr] = [place(ast.Name(name, ast.Store()), where) for name in names]
            never = place(ast.Assign(targets, constant(None, where)), where)
            made.body.insert(0, place(ast.If(constant(False, where), [never], []), where))

    def share(self, made: ast.FunctionDef | ast.AsyncFunctionDef, node: Function) -> None:
        """Let the function begin with the question of a hook, which is given the variables of functions around it that
        it may set."""
        names = sorted(self._scopes[node].declared_nonlocal)
        if names:
            where = location_of(node)
            read = ast.Tuple([place(ast.Name(name, ast.Load()), where) for name in names], ast.Load())
            nothing = ast.arguments([], [], None, [], [], None, [])
            reader = place(ast.Lambda(nothing, place(read, where)), where)
            made.body.insert(0, place(ast.Expr(self.hook("shares", where, reader)), where))

    def own(self, body: list[ast.stmt], node: Function | None = None) -> set[str]:
        """Return the function's own variables that these statements may set."""
        scope = self.scope if node is None else self._scopes[node]
        assert scope is not None
        elsewhere = scope.declared_nonlocal | scope.declared_global
        names = {name for name in bound(body) if self.mangled(name) not in elsewhere}
        return {name for name in names if scope.resolve(self.mangled(name)) is Reach.LOCAL}

    def visit_all(self, nodes: Any) -> list[Any]:
        nodes = list(nodes)
        if self.lifts and nodes and isinstance(nodes[0], ast.stmt) and self.function_node is not None:
            return self.block(nodes)
        return super().visit_all(nodes)

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        out: list[ast.stmt] = []
        for number, statement in enumerate(statements):
            if isinstance(statement, (ast.If, *_LOOPS, *_BLOCKS)) and leaves(statement):
                return [*out, *self.leaving(statement, statements[number + 1 :])]
            new = self.visit(statement)
            out += new if isinstance(new, list) else [new]
        return out

    def leaving(self, statement: ast.stmt, rest: list[ast.stmt]) -> list[ast.stmt]:
        """Rewrite a statement that may leave the block, with the rest of the block as a function."""
        where = location_of(statement)
        if isinstance(statement, _BLOCKS) and not (isinstance(statement, ast.Match) and is_plain_match(statement)):
            made: list[ast.stmt] = [self.part("part", [statement], plain=True)]
            call = self.ask("part", statement, self.named("part", where), kind=type(statement).__name__.lower())
        else:
            made, call = _construct(self, statement)
        if rest:
            made.append(self.part("rest", rest))
            call.args.append(self.named("rest", where))
        value = call if self.depth else self.hook("result", where, call)
        return [*made, place(ast.Return(value), where)]

    def part(
        self, name: str, body: list[ast.stmt], *, plain: bool = False, loop: bool | None = None,
        head: list[ast.stmt] | None = None, parameter: str | None = None, extra: ast.stmt | None = None,
    ) -> ast.FunctionDef:  # fmt: skip
        """Return the definition of a function of these statements. ``plain``: they are rewritten one by one; ``head``:
        statements that come before them, which are rewritten already; ``extra``: sets what these set."""
        where = location_of(body[0])
        before = self.depth, self.in_loop
        self.depth += 1
        if loop is not None:
            self.in_loop = loop
        inside = Walk.visit_all(self, body) if plain else self.block(body)
        self.depth, self.in_loop = before
        declared = self.declarations([*body, *([] if extra is None else [extra])], where)
        arguments = [] if parameter is None else [place(ast.arg(parameter, None, None), where)]
        signature = ast.arguments([], arguments, None, [], [], None, [])
        made = ast.FunctionDef(LIFTED + name, signature, [*declared, *(head or []), *inside], [], None, None)
        made.type_params = []  # type: ignore[attr-defined]
        placed: ast.FunctionDef = place(made, where)
        return placed

    def declarations(self, body: list[ast.stmt], where: Location) -> list[ast.stmt]:
        names = bound(body)
        reached = {name: self.reach(self.mangled(name)) for name in names}
        outer = sorted(name for name, reach in reached.items() if reach is not Reach.GLOBAL)
        world = sorted(name for name, reach in reached.items() if reach is Reach.GLOBAL)
        made: list[ast.stmt] = []
        if outer:
            made.append(place(ast.Nonlocal(outer), where))
        if world:
            made.append(place(ast.Global(world), where))
        return made

    def named(self, name: str, where: Location) -> ast.expr:
        return place(ast.Name(LIFTED + name, ast.Load()), where)

    def names_of(self, body: list[ast.stmt], where: Location) -> ast.expr:
        """Return the variables that these statements may set, as a constant."""
        return constant(tuple(sorted(map(self.mangled, self.own(body)))), where)


def leaves(statement: ast.AST, in_loop: bool = False) -> bool:
    """Whether control may leave the statement by ``return``, or by a jump of a loop around it."""
    match statement:
        case ast.Return():
            return True
        case ast.Break() | ast.Continue():
            return not in_loop
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
            return False
        case ast.For() | ast.While():
            return any(leaves(one, True) for one in statement.body) or any(
                leaves(one, in_loop) for one in statement.orelse
            )
    return any(leaves(one, in_loop) for one in ast.iter_child_nodes(statement) if not isinstance(one, ast.expr))


def _targets(node: ast.For) -> ast.stmt:
    return place(ast.Assign([node.target], ast.Constant(None)), location_of(node))


def _construct(walk: _Lifting, node: ast.stmt) -> tuple[list[ast.stmt], ast.Call]:
    """Return the definitions of a statement's parts, and the call of the hook."""
    where = location_of(node)
    made: list[ast.stmt] = []
    match node:
        case ast.If():
            test = tested(walk, node.test)
            made = [walk.part("then", node.body), walk.part("else", node.orelse or [place(ast.Pass(), where)])]
            names = walk.names_of([*node.body, *node.orelse], where)
            arms = [walk.named("then", where), walk.named("else", where)]
            return made, walk.ask("switch", node, names, test, *arms, kind="if")
        case ast.While(orelse=[]) if any(isinstance(one, ast.NamedExpr) for one in ast.walk(node.test)):
            # What the test sets, the body sets: only that is carried from one iteration to the next.
            never = place(ast.UnaryOp(ast.Not(), node.test), location_of(node.test))
            ends = place(ast.If(never, [place(ast.Break(), where)], []), location_of(node.test))
            return _construct(walk, place(ast.While(constant(True, where), [ends, *node.body], []), where))
        case ast.While():
            returned = place(ast.Return(node.test), location_of(node.test))
            asked = walk.part("test", [place(ast.Pass(), where)])
            asked.body = [*walk.declarations([returned], where), place(ast.Return(tested(walk, node.test)), where)]
            made = [asked, walk.part("body", node.body, loop=True)]
            given: list[ast.expr] = [walk.named("test", where), walk.named("body", where)]
            names, kind = walk.names_of([*node.body, returned], where), "while"
        case ast.For():
            new, unpacking = target(walk, node.target)
            item: ast.expr = place(ast.Name(LIFTED + "item", ast.Load()), where)
            if unpacking is not None:
                item = walk.hook("unpack", where, constant(unpacking, where), item)
            head: list[ast.stmt] = [place(ast.Assign([new], item), where)]
            iterable = walk.visit(node.iter)
            made = [walk.part("body", node.body, loop=True, head=head, parameter=LIFTED + "item", extra=_targets(node))]
            given = [iterable, walk.named("body", where)]
            names, kind = walk.names_of([*node.body, _targets(node)], where), "for"
        case ast.Match():
            return match_parts(walk, node)
        case _:
            raise AssertionError(node)
    if node.orelse:
        made.append(walk.part("else", node.orelse))
        given.append(walk.named("else", where))
    else:
        given.append(constant(None, where))
    return made, walk.ask("each" if kind == "for" else "loop", node, names, *given, kind=kind)


def statement(walk: _Lifting, node: ast.If | ast.For | ast.While | ast.Match) -> Any:
    """Rewrite a statement that does not leave the block."""
    is_native = isinstance(node, ast.Match) and not is_plain_match(node)
    if not walk.lifts or walk.function_node is None or is_native:
        return CONSTRUCTS[type(node)](walk, node)
    made, call = _construct(walk, node)
    return [*made, place(ast.Expr(call), location_of(node))]


def return_(walk: _Lifting, node: ast.Return) -> ast.stmt:
    if not walk.depth:
        return functions.return_(walk, node)
    where = location_of(node)
    value = constant(None, where) if node.value is None else walk.visit(node.value)
    return place(ast.Return(walk.ask("leaves", node, value, kind="return")), where)


def jump(walk: _Lifting, node: ast.Break | ast.Continue) -> ast.stmt:
    if not walk.in_loop or not walk.lifts or walk.function_node is None:
        return node
    where = location_of(node)
    return place(ast.Return(walk.hook("breaks" if isinstance(node, ast.Break) else "continues", where)), where)


def define(walk: _Lifting, node: ast.FunctionDef | ast.AsyncFunctionDef) -> ast.stmt:
    with walk.within_function(node):
        made = functions.define(walk, node)
    assert isinstance(made, ast.FunctionDef | ast.AsyncFunctionDef)
    if walk.lifts or not isinstance(node, ast.AsyncFunctionDef):
        walk.declare(made, node)
    walk.share(made, node)
    return made


def lambda_(walk: _Lifting, node: ast.Lambda) -> ast.expr:
    with walk.within_function(node):
        return functions.lambda_(walk, node)


def try_(walk: _Lifting, node: ast.Try | ast.TryStar) -> ast.stmt:
    """Tell the hook object that handlers of the program are around what runs. A body that may leave is a function: the
    ``else`` clause comes after it."""
    if not walk.lifts or walk.function_node is None:
        return blocks.try_(walk, node)
    where = location_of(node)
    leaving = any(leaves(one) for one in node.body)
    if leaving:
        bare = type(node)([place(ast.Pass(), where)], node.handlers, [], node.finalbody)
        made = blocks.try_(walk, place(bare, where))
        assert isinstance(made, ast.Try | ast.TryStar)
        left = walk.named("left", where)
        defined, body = walk.part("body", node.body), place(ast.Call(walk.named("body", where), [], []), where)
        store = place(ast.Name(LIFTED + "left", ast.Store()), where)
        made.body = [defined, place(ast.Assign([store], body), where)]
        orelse: list[ast.stmt] = []
        rest: ast.expr = constant(None, where)
        if node.orelse:
            orelse, rest = [walk.part("else", node.orelse)], walk.named("else", where)
        follows = place(ast.Return(walk.ask("follows", node, left, rest, kind="try")), where)
        if node.handlers:
            made.orelse = [*orelse, follows]
        else:
            made.body.append(follows)
    else:
        made = blocks.try_(walk, node)
        assert isinstance(made, ast.Try | ast.TryStar)
    if node.handlers:
        made.body = [place(ast.With([ast.withitem(walk.hook("attempt", where))], made.body), where)]
    return made


def call(walk: _Lifting, node: ast.Call) -> ast.expr:
    if walk.depth and calls.is_super(walk, node.func) and not node.args and walk.receiver is not None:
        where = location_of(node)
        given: list[ast.expr] = [place(ast.Name(name, ast.Load()), where) for name in ("__class__", walk.receiver)]
        return place(ast.Call(node.func, given, []), where)
    return calls.call(walk, node)


_TABLE: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.If: statement,
    ast.For: statement,
    ast.While: statement,
    ast.Match: statement,
    ast.Return: return_,
    ast.Break: jump,
    ast.Continue: jump,
    ast.BoolOp: boolean,
    ast.Compare: compare,
    ast.IfExp: conditional,
    ast.Assert: assert_,
    ast.NamedExpr: named,
    ast.ListComp: list_of,
    ast.FunctionDef: define,
    ast.AsyncFunctionDef: define,
    ast.Lambda: lambda_,
    ast.Call: call,
    ast.Try: try_,
    ast.TryStar: try_,
}
