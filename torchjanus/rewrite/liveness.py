"""Live variables of a function's statements, from its syntax tree (the classic backward analysis over structured code).

A variable is live at a point if it may be read later before it is set. Names are over-approximated, never missed: a
name that an inner function or a comprehension mentions counts as read.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

__all__ = ["INNER", "Around", "around_body", "bound", "certain", "lets_errors_out", "live_before", "within"]

INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
# Names of context managers that suppress no exception.
_LETTING_OUT = frozenset(
    """no_grad enable_grad inference_mode set_grad_enabled autocast device fork_rng record_function open errstate
    catch_warnings redirect_stdout redirect_stderr""".split()
)
Names = frozenset[str]
NONE: Names = frozenset()


@dataclass(frozen=True, slots=True)
class Around:
    """The variables that are live where control goes from some statements: to the next one, out of the loop, to the
    loop's next iteration, or to an exception handler of the function."""

    after: Names = NONE
    on_break: Names = NONE
    on_continue: Names = NONE
    on_error: Names = NONE


def within(statements: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes in the function's own scope, comprehensions included."""
    for node in statements:
        yield node
        if not isinstance(node, INNER):
            yield from within([*ast.iter_child_nodes(node)])


def bound(statements: Sequence[ast.AST]) -> set[str]:
    """Return the variables that may be set here. Those of comprehensions are their own."""
    names: set[str] = set()
    own: set[int] = set()
    for node in within(statements):
        match node:
            case ast.Name(ctx=ast.Store() | ast.Del()) if id(node) not in own:
                names.add(node.id)
            case ast.comprehension():
                own.update(id(part) for part in ast.walk(node.target))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= _imported(node)
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name is not None:
                names.add(node.name)
            case ast.MatchMapping() if node.rest is not None:
                names.add(node.rest)
    return names


def certain(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the variables that are set for certain after these statements."""
    names: set[str] = set()
    for node in statements:
        match node:
            case ast.Assign():
                names |= {n for target in node.targets for n in _targets(target)}
            case ast.AnnAssign(value=ast.expr()) | ast.AugAssign():
                names |= _targets(node.target)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= _imported(node) - {"*"}
            case ast.With():
                names |= {n for item in node.items if item.optional_vars for n in _targets(item.optional_vars)}
                if lets_errors_out(node):
                    names |= certain(node.body)
            case ast.If():
                paths = [certain(body) for body in (node.body, node.orelse) if not _ends(body)]
                names |= set.intersection(*paths) if paths else set()
            case ast.Try(handlers=[]):
                names |= certain(node.body) | certain(node.finalbody)
            case ast.Try():
                paths = [certain([*node.body, *node.orelse])]
                paths += [certain(handler.body) for handler in node.handlers]
                names |= set.intersection(*paths) | certain(node.finalbody)
                names -= {handler.name for handler in node.handlers if handler.name}
    return names


def lets_errors_out(node: ast.With) -> bool:
    """Whether the body of a ``with`` has completed whenever the program continues after it."""
    for item in node.items:
        context = item.context_expr
        name = context.func if isinstance(context, ast.Call) else context
        if (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) not in _LETTING_OUT:
            return False
    return True


def live_before(statements: Sequence[ast.stmt], around: Around) -> Names:
    """Return the variables that are live before these statements."""
    live = around.after
    for statement in reversed(statements):
        live = _before(statement, replace(around, after=live)) | around.on_error
    return live


def around_body(statement: ast.stmt, around: Around) -> Around:
    """Return what is around the body of a compound statement, given what is around the statement."""
    match statement:
        case ast.For() | ast.While():
            head = _loop_head(statement, around)
            return Around(head, around.after, head, around.on_error)
        case ast.Try():
            caught = _read([*statement.handlers, *statement.orelse, *statement.finalbody]) | around.after
            return replace(around, after=caught, on_error=around.on_error | caught)
    return around


def _before(node: ast.stmt, around: Around) -> Names:
    match node:
        case ast.Return() | ast.Raise():
            return _read([node])
        case ast.Break():
            return around.on_break
        case ast.Continue():
            return around.on_continue
        case ast.If():
            arms = live_before(node.body, around) | live_before(node.orelse, around)
            return _read([node.test]) | (arms - _named(node.test))
        case ast.For() | ast.While():
            return _read([node.iter if isinstance(node, ast.For) else node.test]) | _loop_head(node, around)
        case ast.With() if lets_errors_out(node):
            managers = [item.context_expr for item in node.items]
            names = {n for item in node.items if item.optional_vars for n in _targets(item.optional_vars)}
            return _read(managers) | (live_before(node.body, around) - names)
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr():
            return _read([node]) | (around.after - (certain([node]) - _updated(node)))
        case ast.FunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
            return _read([node]) | (around.after - certain([node]))
    return _read([node]) | around.after | around.on_break | around.on_continue  # nothing is known to be set


def _loop_head(node: ast.For | ast.While, around: Around) -> Names:
    """Return what is live where an iteration may begin."""
    end = live_before(node.orelse, around)
    targets = _targets(node.target) if isinstance(node, ast.For) else set()
    test = NONE if isinstance(node, ast.For) else _read([node.test])
    head = end | test
    while True:
        more = head | (live_before(node.body, Around(head, around.after, head, around.on_error)) - targets)
        if more == head:
            return head
        head = more


def _read(nodes: Sequence[ast.AST]) -> Names:
    """Return the names that may be read in these nodes."""
    names = {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)
             and not isinstance(part.ctx, ast.Store)}  # fmt: skip
    return frozenset(names.union(*(_updated(node) for node in nodes)))


def _updated(node: ast.AST) -> set[str]:
    return {part.target.id for part in ast.walk(node)
            if isinstance(part, ast.AugAssign) and isinstance(part.target, ast.Name)}  # fmt: skip


def _named(node: ast.AST) -> set[str]:
    """Return the variables that an assignment expression sets whenever the node is evaluated."""
    return {node.target.id} if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name) else set()


def _imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name.partition(".")[0] for alias in node.names}


def _ends(statements: Sequence[ast.stmt]) -> bool:
    """Whether nothing of the function comes after them."""
    return bool(statements) and isinstance(statements[-1], ast.Return | ast.Raise)


def _targets(target: ast.expr) -> set[str]:
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Tuple | ast.List):
        return {name for part in target.elts for name in _targets(part)}
    return _targets(target.value) if isinstance(target, ast.Starred) else set()
