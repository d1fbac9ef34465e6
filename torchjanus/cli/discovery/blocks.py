"""Outlines blocks: the body of a loop, or of an ``if`` in a loop, of a module or of a function (see ``outline``)."""

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
from torchjanus.cli.discovery.outlined import (
    NotOutlined,
    Outlined,
    before,
    behind,
    call_of,
    calling,
    define,
    enclosing_variables,
    reads_of,
    require_no_late_binding,
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
    set_after,
    targets,
    unset,
    within,
)
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import place

__all__ = ["function_block", "module_block"]

BOUND = "_torchjanus_bound"
HAS, VALUE = "_torchjanus_has_", "_torchjanus_value_"  # with a variable's name: whether it is bound, and its value


def module_block(candidate: Candidate, block: Block, tree: ast.Module, callee: str, read_later: bool) -> Outlined:
    """Return a block of a module, outlined: what other code may read is declared ``global``."""
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
    where = before(body[0])
    declared: list[ast.stmt] = [place(ast.Global(shared), where)] if shared else []
    function = define(candidate, [], [*declared, *left])
    call = call_of(callee, [], where)
    if LEAVES in kinds:
        leave = place(ast.If(call, [place(ast.Break(), where)], []), where)
        return Outlined(function, [calling(leave, callee)])
    return Outlined(function, [calling(place(ast.Expr(call), where), callee)])


@dataclass(frozen=True, slots=True)
class _Variables:
    """The variables of a block of a function. ``given``: those that it is passed. ``kept``: those that it returns.
    ``unbound``: of those given, the ones that may be unbound. ``declared``: the global ones of the function."""

    given: list[str]
    kept: list[str]
    unbound: list[str]
    declared: set[str]


def function_block(candidate: Candidate, block: Block, tree: ast.Module, callee: str) -> Outlined:
    """Return a block of a function, outlined: live variables are passed and returned. Raises NotOutlined."""
    scope, body = candidate.scope, block.body
    assert isinstance(scope, ast.FunctionDef)
    variables = _variables_of(candidate, scope, block, tree)
    given, kept = variables.given, variables.kept
    left, kinds = with_returns(body, functools.partial(result_of_body, kept))
    where, end = before(body[0]), behind(body[-1])
    fresh = [name for name in kept if name not in given]
    passed = [name for name in variables.unbound if name not in kept]  # with whether they are bound
    begin: list[ast.stmt] = [_unbind(name, where) for name in passed]
    if used := sorted(variables.declared & _mentioned(body)):
        begin.append(place(ast.Global(used), where))
    if fresh:  # never read unless the body sets it: it is returned where it may be unbound
        begin.append(place(ast.Assign([name_node(n, where, ast.Store()) for n in fresh], none_node(where)), where))
    flagged = bool(kinds)
    result = result_of_body(kept, end, flagged, GOES_ON, None)
    finish: list[ast.stmt] = [place(ast.Return(result), end)] if kept or flagged else []
    function = define(candidate, [*given, *(HAS + name for name in passed)], [*begin, *left, *finish])
    sources = [VALUE + name if name in passed else name for name in given]
    call = call_of(callee, [*sources, *(HAS + name for name in passed)], where)
    aims = ([HOW, RESULT] if flagged else []) + kept
    statements = [*(_look(name, where) for name in passed), *_call_and_leave(call, callee, aims, kinds, where)]
    required = [name for name in variables.unbound if name in kept]
    return Outlined(function, _if_bound(required, statements, body, where))


def _variables_of(candidate: Candidate, scope: ast.FunctionDef, block: Block, tree: ast.Module) -> _Variables:
    """Return the block's variables. Raises NotOutlined where passing and returning them would not do."""
    body = block.body
    inside = {id(node) for statement in body for node in ast.walk(statement)}
    rest = [node for node in within(scope.body) if id(node) not in inside]
    declared = {n for node in within(scope.body) if isinstance(node, ast.Global) for n in node.names}
    if any(isinstance(node, ast.Nonlocal) for statement in scope.body for node in ast.walk(statement)):
        raise NotOutlined("functions share its variables (nonlocal)")
    if any(isinstance(node, ast.Name) and node.id in ("locals", "vars", "exec", "eval") for node in rest):
        raise NotOutlined("the function around it looks at its own variables by locals(), vars(), exec() or eval()")
    parameters = parameters_of(scope.args)
    variables = frozenset((bound(scope.body) | parameters) - declared)
    enclosing = enclosing_variables(candidate) - variables - declared
    own = bound(body) & variables
    if any(isinstance(node, INNER) and captured([node]) & own for node in rest):
        raise NotOutlined("a function made elsewhere reads a variable that it sets")
    require_no_late_binding(body, _changing(scope, block))
    found = _at(block, scope.body, Around(), parameters)
    if found is None:
        raise NotOutlined("it stands in a block that is not followed")
    around, have = found
    entry = live_before(body, around) & (variables | enclosing)
    given = sorted(entry & (reads_of(body) | own))
    kept = sorted(own & (around.after | around.on_break))
    if gone := sorted(unset(body) & {*given, *kept}):
        raise NotOutlined(f"it deletes the variable {gone[0]}, which is used outside of it")
    unbound = sorted(name for name in given if name in variables and name not in have)
    if unbound and "NameError" in bound([*tree.body, *scope.body]):
        raise NotOutlined(
            f"the variable {unbound[0]} may be unbound when an iteration begins, and NameError is another"
        )
    return _Variables(given, kept, unbound, declared)


def _call_and_leave(
    call: ast.Call, callee: str, aims: Sequence[str], kinds: set[int], where: Location
) -> list[ast.stmt]:
    """Return statements that assign what the call returns to ``aims``, and leave the loop or the function if the body
    did. ``kinds``: how the body can be left."""
    if not aims:
        return [calling(place(ast.Expr(call), where), callee)]
    target = place(ast.Tuple([name_node(name, where, ast.Store()) for name in aims], ast.Store()), where)
    statements = [calling(place(ast.Assign([target], call), where), callee)]
    leaving = {LEAVES: ast.Break(), RETURNS: ast.Return(name_node(RESULT, where, ast.Load()))}
    for kind, statement in leaving.items():
        if kind in kinds:
            number = place(ast.Constant(kind), where)
            test = place(ast.Compare(name_node(HOW, where, ast.Load()), [ast.Eq()], [number]), where)
            statements.append(place(ast.If(test, [place(statement, where)], []), where))
    return statements


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
            if (found := _at(sought, block, inside, have - unset([node]) | more)) is not None:
                return found
        have = {*set_after(have, [node])}
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


def _changing(scope: ast.FunctionDef, block: Block) -> set[str]:
    """Return the function's variables that may be set again after a first iteration of the block has begun."""
    outermost: ast.AST = block
    behind: list[ast.stmt] = []
    for number, node in enumerate(scope.body):
        if any(part is block for part in within([node])):
            outermost, behind = node, scope.body[number + 1 :]
    return bound([outermost, *behind])


def _mentioned(statements: Sequence[ast.stmt]) -> set[str]:
    """Return all names that the statements mention, inner functions included."""
    return {node.id for one in statements for node in ast.walk(one) if isinstance(node, ast.Name)} | bound(statements)


def _true(block: Block) -> ast.Constant:
    return place(ast.Constant(True), location_of(block))
