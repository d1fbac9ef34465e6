"""Outlines steps: the body of a loop, of an ``if`` in a loop, or of a function, becomes a function of the variables
that it reads, which returns those that are read afterwards. What calls it keeps its name, its signature and its lines.

In a module, variables are the module's, so the outlined function declares them ``global`` where anybody else may read
them. In a function, live variables are passed and returned. One that may be unbound is passed with whether it is bound;
where it is returned, too, an iteration that begins with it unbound is Python's. A body is left as it is, with a reason,
where that would differ: variables that functions share, frames that are looked at, suspended code.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torchjanus.cli.discovery.candidates import Block, Candidate
from torchjanus.cli.discovery.exits import (
    GOES_ON,
    HOW,
    LEAVES,
    RESULT,
    RETURNS,
    name_node,
    none_node,
    result_of_body,
    whether_left,
    with_returns,
)
from torchjanus.rewrite.liveness import (
    INNER,
    Around,
    around_body,
    bound,
    captured,
    certain,
    live_before,
    parameters_of,
    read_by,
    targets,
    within,
)
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import place

__all__ = ["NotOutlined", "Outlined", "outline"]

_FRAMES = frozenset(
    "locals vars dir eval exec globals super __class__ breakpoint set_trace _getframe currentframe".split()
)
BOUND = "_torchjanus_bound"
HAS, VALUE = "_torchjanus_has_", "_torchjanus_value_"  # with a variable's name: whether it is bound, and its value
_FRAME_METHODS = frozenset({"_getframe", "currentframe", "set_trace"})


class NotOutlined(Exception):
    """Why a step cannot be outlined, in a sentence."""


@dataclass(frozen=True, slots=True)
class Outlined:
    """A step as a function. ``body``: what stands in the place of the candidate's statements.

    ``function``: its definition, named after the function around it.
    """

    function: ast.FunctionDef
    body: list[ast.stmt]


def outline(candidate: Candidate, tree: ast.Module, callee: str, *, read_later: bool = False) -> Outlined:
    """Return the candidate outlined. ``callee``: the constant that stands for the outlined function where it is called;
    ``read_later``: whether code that is not in the tree may read any variable of the module.

    Raises NotOutlined.
    """
    _require_plain(candidate)
    if candidate.block is None:
        return _function(candidate, callee)
    if isinstance(candidate.scope, ast.Module):
        return _of_module(candidate, candidate.block, tree, callee, read_later)
    return _of_function(candidate, candidate.block, tree, callee)


def _require_plain(candidate: Candidate) -> None:
    """Raise NotOutlined for bodies that no other function can hold."""
    nodes = [*within(candidate.body)]
    every = [node for statement in candidate.body for node in ast.walk(statement)]
    if any(isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.AsyncFor | ast.AsyncWith) for node in nodes):
        raise NotOutlined("it is suspended in the middle (yield or await)")
    if any(isinstance(node, ast.comprehension) and node.is_async for node in nodes):
        raise NotOutlined("it is suspended in the middle (yield or await)")
    named = {node.id for node in every if isinstance(node, ast.Name)}
    named |= {node.attr for node in every if isinstance(node, ast.Attribute)} & _FRAME_METHODS
    if looked := sorted(named & _FRAMES):
        raise NotOutlined(f"{looked[0]} looks at the function that it stands in")
    if any(isinstance(node, ast.ClassDef) for node in nodes):
        raise NotOutlined("it defines a class")
    if any(isinstance(node, ast.Import | ast.ImportFrom) and node.names[0].name == "*" for node in nodes):
        raise NotOutlined("it imports *")
    if any(isinstance(node, ast.Nonlocal) for node in every):
        raise NotOutlined("an inner function sets its variables (nonlocal)")


# ---- blocks of a module ----


def _of_module(candidate: Candidate, block: Block, tree: ast.Module, callee: str, read_later: bool) -> Outlined:
    body = block.body
    inside = {id(node) for statement in body for node in ast.walk(statement)}
    elsewhere = {
        name
        for node in ast.walk(tree)
        if id(node) not in inside
        for name in (*([node.id] if isinstance(node, ast.Name) else []), *getattr(node, "names", []))
        if isinstance(name, str)
    }
    if read_later or "globals" in elsewhere or "vars" in elsewhere or "exec" in elsewhere or "eval" in elsewhere:
        elsewhere |= bound(body)
    own = bound(body)
    entry = live_before([place(ast.While(_true(block), body, []), location_of(block))], Around())
    shared = sorted(own & (elsewhere | entry | captured(body)))
    left, kinds = with_returns(body, whether_left)
    where = _before(body[0])
    declared: list[ast.stmt] = [place(ast.Global(shared), where)] if shared else []
    function = _define(candidate, [], [*declared, *left])
    call = _call(callee, [], where)
    if LEAVES in kinds:
        return Outlined(function, [place(ast.If(call, [place(ast.Break(), where)], []), where)])
    return Outlined(function, [place(ast.Expr(call), where)])


# ---- blocks of a function ----


def _of_function(candidate: Candidate, block: Block, tree: ast.Module, callee: str) -> Outlined:
    scope, body = candidate.scope, block.body
    assert isinstance(scope, ast.FunctionDef)
    inside = {id(node) for statement in body for node in ast.walk(statement)}
    rest = [node for node in within(scope.body) if id(node) not in inside]
    declared = {n for node in within(scope.body) if isinstance(node, ast.Global) for n in node.names}
    if any(isinstance(node, ast.Nonlocal) for statement in scope.body for node in ast.walk(statement)):
        raise NotOutlined("functions share its variables (nonlocal)")
    if any(isinstance(node, ast.Name) and node.id in ("locals", "vars", "exec", "eval") for node in rest):
        raise NotOutlined("the function around it looks at its own variables by locals(), vars(), exec() or eval()")
    parameters = parameters_of(scope.args)
    variables = frozenset((bound(scope.body) | parameters) - declared)
    enclosing = _enclosing(candidate) - variables - declared
    own = bound(body) & variables
    outer = NotOutlined("a function made elsewhere reads a variable that it sets")
    for node in rest:
        if isinstance(node, INNER) and captured([node]) & own:
            raise outer
    _require_no_late_binding(body, _changing(scope, block))
    found = _at(block, scope.body, Around(), parameters)
    if found is None:
        raise NotOutlined("it stands in a block that is not followed")
    around, have = found
    entry = live_before(body, around) & (variables | enclosing)
    given = sorted(entry & (reads_of(body) | own))
    kept = sorted(own & (around.after | around.on_break))
    if gone := sorted({name for node in body for name in _deleted(node)} & {*given, *kept}):
        raise NotOutlined(f"it deletes the variable {gone[0]}, which is used outside of it")
    unbound = sorted(name for name in given if name in variables and name not in have)
    if unbound and "NameError" in bound([*tree.body, *scope.body]):
        raise NotOutlined(
            f"the variable {unbound[0]} may be unbound when an iteration begins, and NameError is another"
        )
    left, kinds = with_returns(body, functools.partial(result_of_body, kept))
    where, end = _before(body[0]), _behind(body[-1])
    fresh = [name for name in kept if name not in given]
    passed = [name for name in unbound if name not in kept]  # with whether they are bound
    unbound = [name for name in unbound if name in kept]
    begin: list[ast.stmt] = [_unbind(name, where) for name in passed]
    if used := sorted(declared & (own_names(body))):
        begin.append(place(ast.Global(used), where))
    if fresh:  # never read unless the body sets it: it is returned where it may be unbound
        begin.append(place(ast.Assign([name_node(n, where, ast.Store()) for n in fresh], none_node(where)), where))
    flagged = bool(kinds)
    result = result_of_body(kept, end, flagged, GOES_ON, None)
    finish: list[ast.stmt] = [place(ast.Return(result), end)] if kept or flagged else []
    function = _define(candidate, [*given, *(HAS + name for name in passed)], [*begin, *left, *finish])
    sources = [VALUE + name if name in passed else name for name in given]
    call = _call(callee, [*sources, *(HAS + name for name in passed)], where)
    look = [_look(name, where) for name in passed]
    aims = ([HOW, RESULT] if flagged else []) + kept
    if not aims:
        return Outlined(function, _if_bound(unbound, [*look, place(ast.Expr(call), where)], body, where))
    target = place(ast.Tuple([name_node(name, where, ast.Store()) for name in aims], ast.Store()), where)
    after: list[ast.stmt] = [*look, place(ast.Assign([target], call), where)]
    for kind, statement in (
        (LEAVES, ast.Break()),
        (RETURNS, ast.Return(name_node(RESULT, where, ast.Load()))),
    ):
        if kind in kinds:
            number = place(ast.Constant(kind), where)
            test = place(ast.Compare(name_node(HOW, where, ast.Load()), [ast.Eq()], [number]), where)
            after.append(place(ast.If(test, [place(statement, where)], []), where))
    return Outlined(function, _if_bound(unbound, after, body, where))


def _if_bound(
    names: Sequence[str], statements: list[ast.stmt], otherwise: list[ast.stmt], where: Location
) -> list[ast.stmt]:
    """Return ``statements``, to be run if all the variables are bound; ``otherwise`` runs if one is not: in most
    programs in the first iteration only."""
    if not names:
        return statements

    def says(bound_: bool) -> ast.stmt:
        value = place(ast.Constant(bound_), where)
        return place(ast.Assign([name_node(BOUND, where, ast.Store())], value), where)

    reads = [place(ast.Expr(name_node(name, where, ast.Load())), where) for name in names]
    return [
        _caught([*reads, says(True)], says(False), where),
        place(ast.If(name_node(BOUND, where, ast.Load()), statements, otherwise), where),
    ]


def _caught(statements: list[ast.stmt], otherwise: ast.stmt, where: Location) -> ast.stmt:
    """Return ``statements``, and ``otherwise`` if a variable in them is unbound."""
    error = name_node("NameError", where, ast.Load())
    handler = place(ast.ExceptHandler(error, None, [otherwise]), where)
    return place(ast.Try(statements, [handler], [], []), where)


def _look(name: str, where: Location) -> ast.stmt:
    """Return a statement that sets ``HAS`` and ``VALUE`` of a variable; the value is None if it is unbound."""

    def says(bound_: bool, value: ast.expr) -> ast.stmt:
        names: list[ast.expr] = [name_node(prefix + name, where, ast.Store()) for prefix in (HAS, VALUE)]
        values = place(ast.Tuple([place(ast.Constant(bound_), where), value], ast.Load()), where)
        return place(ast.Assign([place(ast.Tuple(names, ast.Store()), where)], values), where)

    return _caught([says(True, name_node(name, where, ast.Load()))], says(False, none_node(where)), where)


def _unbind(name: str, where: Location) -> ast.stmt:
    """Return a statement that makes a parameter unbound where ``HAS`` says that the variable is."""
    is_unbound = place(ast.UnaryOp(place(ast.Not(), where), name_node(HAS + name, where, ast.Load())), where)
    return place(ast.If(is_unbound, [place(ast.Delete([name_node(name, where, ast.Del())]), where)], []), where)


def _at(
    sought: Block, statements: Sequence[ast.stmt], around: Around, have: set[str]
) -> tuple[Around, set[str]] | None:
    """Return what is live around the body of ``sought``, and which variables are set for certain where it begins; None
    if it is not among ``statements``. ``have``: the variables that are set for certain before them."""
    for number, node in enumerate(statements):
        outer = replace(around, after=live_before(statements[number + 1 :], around))
        if node is sought:
            return around_body(sought, outer), have | (targets(node.target) if isinstance(node, ast.For) else set())
        for block, more in _blocks(node):
            inside = around_body(node, outer) if block is getattr(node, "body", None) else outer
            if (found := _at(sought, block, inside, have | more)) is not None:
                return found
        have = (have | certain([node])) - _deleted(node)
    return None


def _blocks(node: ast.stmt) -> Iterator[tuple[Sequence[ast.stmt], set[str]]]:
    """Yield the blocks of a statement, each with the variables that are set for certain at its beginning."""
    match node:
        case ast.For():
            yield node.body, targets(node.target)
            yield node.orelse, set()
        case ast.While() | ast.If():
            yield node.body, set()
            yield node.orelse, set()
        case ast.With():
            yield node.body, {name for item in node.items if item.optional_vars for name in targets(item.optional_vars)}
        case ast.Try() | ast.TryStar() if not node.finalbody:
            yield node.body, set()
            for handler in node.handlers:
                yield handler.body, {handler.name} if handler.name else set()
            yield node.orelse, certain(node.body)
        case ast.Try() | ast.TryStar():
            yield node.body, set()


def _deleted(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Del)}


def _enclosing(candidate: Candidate) -> frozenset[str]:
    """Return the variables of the functions around the scope."""
    names: set[str] = set()
    for function in candidate.around:
        names |= bound(function.body) | parameters_of(function.args)
    return frozenset(names)


def _changing(scope: ast.FunctionDef, block: Block) -> set[str]:
    """Return the function's variables that may be set again after a first iteration of the block has begun."""
    outermost: ast.AST = block
    behind: list[ast.stmt] = []
    for number, node in enumerate(scope.body):
        if any(part is block for part in within([node])):
            outermost, behind = node, scope.body[number + 1 :]
    return bound([outermost, *behind])


def own_names(statements: Sequence[ast.stmt]) -> set[str]:
    """Return all names that the statements mention, inner functions included."""
    return {node.id for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)} | bound(statements)


def reads_of(statements: Sequence[ast.stmt]) -> frozenset[str]:
    """Return the variables that the statements may read."""
    return frozenset().union(*(read_by(node) for node in statements))


def _require_no_late_binding(body: Sequence[ast.stmt], changing: set[str]) -> None:
    """Raise NotOutlined if a function made in the body may outlive the iteration and reads a variable that changes."""
    passed: set[int] = set()  # functions that are gone when the statement is over
    for node in within(body):
        if isinstance(node, ast.Call) and _ends_at_once(node):
            passed |= {id(part) for part in node.args} | {id(part.value) for part in node.keywords}
    for node in within(body):
        if isinstance(node, INNER) and captured([node]) & changing and id(node) not in passed:
            if not (isinstance(node, ast.FunctionDef) and _only_called(node.name, body)):
                raise NotOutlined(
                    f"a function made in it (line {node.lineno}) reads variables of later iterations, if it is kept"
                )


def _ends_at_once(node: ast.Call) -> bool:
    """Whether a call keeps none of the functions that it is given: an optimizer's ``step(closure)``, ``sorted``."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr in ("step", "sort")
    return isinstance(node.func, ast.Name) and node.func.id in ("sorted", "min", "max", "sum", "any", "all")


def _only_called(name: str, body: Sequence[ast.stmt]) -> bool:
    """Whether a function made in the body is only called, or given to calls that do not keep it."""
    nodes = [*within(body)]
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    given = {id(part) for node in nodes if isinstance(node, ast.Call) and _ends_at_once(node) for part in node.args}
    uses = [node for node in nodes if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)]
    return all(id(node) in called | given for node in uses)


# ---- whole functions ----


def _function(candidate: Candidate, callee: str) -> Outlined:
    scope = candidate.scope
    assert isinstance(scope, ast.FunctionDef)
    arguments = scope.args
    where = location_of(scope.body[0])
    parameters = [*arguments.posonlyargs, *arguments.args]
    names = [part.arg for part in parameters]
    variables = bound(scope.body) | parameters_of(arguments)
    declared = {n for node in within(scope.body) if isinstance(node, ast.Global) for n in node.names}
    free = sorted((reads_of(scope.body) & _enclosing(candidate)) - variables - declared)
    if free:
        _require_no_late_binding(scope.body, set(free))
    taken = ast.arguments(
        [place(ast.arg(name, None, None), where) for name in (*free, *names)],
        [],
        None if arguments.vararg is None else place(ast.arg(arguments.vararg.arg, None, None), where),
        [place(ast.arg(part.arg, None, None), where) for part in arguments.kwonlyargs],
        [None] * len(arguments.kwonlyargs),
        None if arguments.kwarg is None else place(ast.arg(arguments.kwarg.arg, None, None), where),
        [],
    )
    function = place(ast.FunctionDef(scope.name, taken, scope.body, [], None, None), where)
    call = _call(callee, [*free, *names], where)
    if arguments.vararg is not None:
        call.args.append(place(ast.Starred(name_node(arguments.vararg.arg, where, ast.Load()), ast.Load()), where))
    for part in arguments.kwonlyargs:
        call.keywords.append(place(ast.keyword(part.arg, name_node(part.arg, where, ast.Load())), where))
    if arguments.kwarg is not None:
        call.keywords.append(place(ast.keyword(None, name_node(arguments.kwarg.arg, where, ast.Load())), where))
    text = scope.body[:1] if ast.get_docstring(scope, clean=False) is not None else []
    return Outlined(function, [*text, place(ast.Return(call), where)])


# ---- pieces of syntax ----


# Statements that are added have locations that no statement of the source has: locations are keys.
def _before(node: ast.stmt) -> Location:
    line, column, _, _ = location_of(node)
    return line, column, line, column


def _behind(node: ast.stmt) -> Location:
    _, _, line, column = location_of(node)
    return line, column, line, column


def _define(candidate: Candidate, given: Sequence[str], body: list[ast.stmt]) -> ast.FunctionDef:
    where = location_of(candidate.body[0])
    taken = [place(ast.arg(name, None, None), where) for name in given]
    name = candidate.scope.name if isinstance(candidate.scope, ast.FunctionDef) else "module"
    return place(ast.FunctionDef(name, ast.arguments([], taken, None, [], [], None, []), body, [], None, None), where)


def _call(callee: str, given: Sequence[str], where: Location) -> ast.Call:
    return place(
        ast.Call(place(ast.Constant(callee), where), [name_node(name, where, ast.Load()) for name in given], []), where
    )


def _true(block: Block) -> ast.Constant:
    return place(ast.Constant(True), location_of(block))
