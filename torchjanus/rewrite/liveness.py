"""Live variables and definite assignment of a function's statements, from its syntax tree (the classic analyses over
structured code, which are the same for all versions of Python).

A variable is live at a point if it may be read later before it is set. Live variables are over-approximated, never
missed: what an inner function captures counts as read where the function is made. What is set for certain is
under-approximated.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

__all__ = [
    "INNER", "Around", "around_body", "bound", "captured", "certain", "lets_errors_out", "live_before", "parameters_of",
    "read_by", "set_after", "targets", "unset", "within",
]  # fmt: skip

INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
# Names of context managers that suppress no exception.
_LETTING_OUT = frozenset(
    """no_grad enable_grad inference_mode set_grad_enabled autocast device fork_rng record_function open errstate
    catch_warnings redirect_stdout redirect_stderr detect_anomaly set_detect_anomaly stream profile tqdm accumulate
    no_sync""".split()
)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
Names = frozenset[str]
NONE: Names = frozenset()


@dataclass(frozen=True, slots=True)
class Around:
    """The variables that are live where control goes from some statements: to the next one, out of the loop, to the
    loop's next iteration, to an exception handler of the function, or out of it through ``finally``."""

    after: Names = NONE
    on_break: Names = NONE
    on_continue: Names = NONE
    on_error: Names = NONE
    on_return: Names = NONE


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


def unset(statements: Sequence[ast.AST]) -> set[str]:
    """Return the variables that may be bound to nothing after these statements, having been bound before: deleted ones,
    and those of exception handlers, which Python deletes."""
    names: set[str] = set()
    for node in within(statements):
        match node:
            case ast.Name(ctx=ast.Del()):
                names.add(node.id)
            case ast.ExceptHandler() if node.name is not None:
                names.add(node.name)
    return names


def set_after(before: Iterable[str], statements: Sequence[ast.stmt]) -> frozenset[str]:
    """Return the variables that are set for certain after these statements, given those that are ``before`` them."""
    return frozenset({*before} - unset(statements) | certain(statements))


def certain(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the variables that are set for certain after these statements."""
    names: set[str] = set()
    for node in statements:
        match node:
            case ast.Assign():
                names |= {n for target in node.targets for n in targets(target)}
            case ast.AnnAssign(value=ast.expr()) | ast.AugAssign():
                names |= targets(node.target)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= _imported(node) - {"*"}
            case ast.With():
                names |= {n for item in node.items if item.optional_vars for n in targets(item.optional_vars)}
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
        names -= unset([node])
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
            return replace(around, after=head, on_break=around.after, on_continue=head)
        case ast.With() if not lets_errors_out(statement):
            return replace(around, on_error=around.on_error | around.after)
        case ast.Try() | ast.TryStar():
            return _around_try(statement, around)
    return around


def _before(node: ast.stmt, around: Around) -> Names:
    match node:
        case ast.Return():
            return around.on_return | read_by(node.value)
        case ast.Raise():
            return read_by(node)
        case ast.Break():
            return around.on_break
        case ast.Continue():
            return around.on_continue
        case ast.If():
            arms = live_before(node.body, around) | live_before(node.orelse, around)
            return read_by(node.test) | (arms - _named(node.test))
        case ast.For() | ast.While():
            return read_by(node.iter if isinstance(node, ast.For) else node.test) | _loop_head(node, around)
        case ast.With():
            live = live_before(node.body, around_body(node, around))
            for item in reversed(node.items):
                names = targets(item.optional_vars) if item.optional_vars else set()
                live = read_by(item.context_expr) | read_by(item.optional_vars) | (live - names)
            return live
        case ast.Try() | ast.TryStar():
            return live_before(node.body, _around_try(node, around))
        case ast.Match():
            arms = NONE.union(*(read_by(one.guard) | read_by(one.pattern) | live_before(one.body, around)
                                for one in node.cases))  # fmt: skip
            return read_by(node.subject) | arms | around.after
        case ast.Assign() | ast.AnnAssign() | ast.AugAssign() | ast.Expr():
            return read_by(node) | (around.after - (certain([node]) - _updated(node)))
        case ast.FunctionDef() | ast.ClassDef() | ast.Import() | ast.ImportFrom():
            return read_by(node) | (around.after - certain([node]))
    return read_by(node) | around.after | around.on_break | around.on_continue  # nothing is known to be set


def _loop_head(node: ast.For | ast.While, around: Around) -> Names:
    """Return what is live where an iteration may begin."""
    end = live_before(node.orelse, around)
    names = targets(node.target) if isinstance(node, ast.For) else set()
    test = read_by(node.target) if isinstance(node, ast.For) else read_by(node.test)
    head = end | test
    while True:
        inside = replace(around, after=head, on_break=around.after, on_continue=head)
        more = head | (live_before(node.body, inside) - names)
        if more == head:
            return head
        head = more


def _around_try(node: ast.Try | ast.TryStar, around: Around) -> Around:
    """Return what is around the body of a ``try``."""
    if node.finalbody:  # whatever way leads out goes through it
        onward = around.after | around.on_break | around.on_continue | around.on_return | around.on_error
        last = live_before(node.finalbody, replace(around, after=onward))
        around = Around(last, last, last, last, last)
    caught = NONE
    for handler in node.handlers:
        live = live_before(handler.body, around) - ({handler.name} if handler.name else set())
        caught |= live | read_by(handler.type)
    return replace(around, after=live_before(node.orelse, around), on_error=around.on_error | caught)


def read_by(node: ast.AST | None) -> Names:
    """Return the variables that evaluating ``node`` may read, what inner functions capture included."""
    match node:
        case None:
            return NONE
        case ast.Name():
            return NONE if isinstance(node.ctx, ast.Store) else frozenset({node.id})
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.ClassDef():
            return _free(node)
    found = NONE.union(_updated(node), *(read_by(child) for child in ast.iter_child_nodes(node)))
    if isinstance(node, _COMPREHENSIONS):
        return found - {name for one in node.generators for name in targets(one.target)}
    return found


def _free(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef) -> Names:
    """Return the names that an inner function or class takes from the scopes around it."""
    outside: list[ast.AST] = [*getattr(node, "decorator_list", [])]
    if isinstance(node, ast.ClassDef):
        inside = NONE.union(*(read_by(part) | bound([part]) for part in node.body))  # a class reads what it has not set
        return inside.union(*(read_by(part) for part in (*outside, *node.bases, *node.keywords)))
    arguments = node.args
    outside += [*arguments.defaults, *(one for one in arguments.kw_defaults if one is not None)]
    body: Sequence[ast.AST] = node.body if isinstance(node.body, list) else [node.body]
    shared = {name for part in within(body) if isinstance(part, ast.Nonlocal | ast.Global) for name in part.names}
    used = NONE.union(*(read_by(part) for part in body))
    own = (bound(body) | parameters_of(arguments)) - shared
    return ((used | shared) - own).union(*(read_by(part) for part in outside))


def parameters_of(arguments: ast.arguments) -> set[str]:
    """Return the names of a function's parameters."""
    rests = [rest for rest in (arguments.vararg, arguments.kwarg) if rest is not None]
    return {part.arg for part in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *rests)}


def captured(statements: Sequence[ast.AST]) -> Names:
    """Return the names that functions and classes made by these statements take from the scope around them."""
    return NONE.union(*(_free(node) for node in within(statements) if isinstance(node, INNER)))


def _updated(node: ast.AST) -> set[str]:
    return {node.target.id} if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) else set()


def _named(node: ast.AST) -> set[str]:
    """Return the variables that an assignment expression sets whenever the node is evaluated."""
    return {node.target.id} if isinstance(node, ast.NamedExpr) and isinstance(node.target, ast.Name) else set()


def _imported(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name.partition(".")[0] for alias in node.names}


def _ends(statements: Sequence[ast.stmt]) -> bool:
    """Whether nothing of the function comes after them."""
    return bool(statements) and isinstance(statements[-1], ast.Return | ast.Raise)


def targets(target: ast.expr) -> set[str]:
    """Return the variables that an assignment to ``target`` sets."""
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Tuple | ast.List):
        return {name for part in target.elts for name in targets(part)}
    return targets(target.value) if isinstance(target, ast.Starred) else set()
