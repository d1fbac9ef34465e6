"""Cuts a function in two between statements of its body: the first part returns the arguments of the second.

The first part returns a tuple of its variables: first those that the second part takes, then the others, so that they
live as long as before. ``rest(*first(...)[:n])`` does what the function does, except for what can only be seen from
within a frame (``locals()``), and where a variable would have to be in both parts: such functions are not cut. Where
the function returns in the first part, that part returns a list with the result instead of a tuple. The parts have the
function's name, lines and closure.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite.source import Found, adopt, compile_alone, find
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import place

__all__ = ["Span", "cut", "spans_of"]

Span = tuple[tuple[int, int], tuple[int, int]]

# They inspect the frame that they are called from, or need the original function.
_OF_FRAMES = frozenset("locals vars dir eval exec super __class__ inspect _getframe".split())
# Names of context managers that suppress no exception.
_LETTING_OUT = frozenset(
    """no_grad enable_grad inference_mode set_grad_enabled autocast device fork_rng record_function open errstate
    catch_warnings redirect_stdout redirect_stderr""".split()
)
_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def spans_of(fn: FunctionType) -> list[Span]:
    """Return where each statement of the function's body begins and ends, as (line, column); none where there is no
    source."""
    try:
        node = find(fn).node
    except SourceUnavailable:
        return []
    return [] if isinstance(node, ast.Lambda) else [_span(statement) for statement in node.body]


def cut(
    fn: FunctionType, count: int, leading: int = 0, *, only_used: bool = False
) -> tuple[FunctionType, FunctionType] | None:
    """Return the first ``count`` statements of the function, and the rest, as two functions; None where it cannot be
    cut there.

    ``leading``: the number of parameters that are the same at each call; they are the first parameters of ``rest``, and
    ``first`` does not return them. ``only_used``: ``first`` returns only variables that the rest mentions; the others
    do not live until the end.
    """
    code = fn.__code__
    try:
        found = find(fn)
    except SourceUnavailable:
        return None
    node = found.node
    if not isinstance(node, ast.FunctionDef) or code.co_flags & _SUSPENDED or not 0 < count < len(node.body):
        return None
    names = _live_out(node, count, code)
    if names is None or (found.private is not None and any(name.startswith("__") for name in names)):
        return None
    fixed = code.co_varnames[:leading]
    if _bound(node.body[:count]) & set(fixed):
        return None
    used = _mentioned(node.body[count:])
    passed = [name for name in names if name not in fixed and name in used]
    others = [] if only_used else [name for name in names if name not in fixed and name not in used]
    where = location_of(node.body[count - 1])
    kept: list[ast.expr] = [place(ast.Name(name, ast.Load()), where) for name in (*passed, *others)]
    values = place(ast.Tuple(kept, ast.Load()), where)
    taken = [place(ast.arg(name, None, None), where) for name in (*fixed, *passed)]
    body = [_Returning().visit(copy.deepcopy(statement)) for statement in node.body[:count]]
    first = _function(node, node.args, [*_declarations(node), *body, place(ast.Return(values), where)])
    rest = _function(node, ast.arguments([], taken, None, [], [], None, []), [*_declarations(node), *node.body[count:]])
    try:
        codes = [compile_alone(part, code, found) for part in (first, rest)]
    except SyntaxError:  # a declaration after a use, in one of the parts
        return None
    for part, made in zip((first, rest), codes, strict=True):
        adopt(made, Found(part, found.private, found.imported))
    one, other = (_like(fn, part) for part in codes)
    one.__defaults__, one.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
    return one, other


class _Returning(ast.NodeTransformer):
    """Puts what the function returns into a list."""

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, _INNER) else super().visit(node)

    def visit_Return(self, node: ast.Return) -> ast.Return:
        where = location_of(node)
        value = node.value or place(ast.Constant(None), where)
        return place(ast.Return(place(ast.List([value], ast.Load()), where)), where)


def _function(node: ast.FunctionDef, arguments: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    return place(ast.FunctionDef(node.name, arguments, body, node.decorator_list, None, None), location_of(node))


def _like(fn: FunctionType, code: CodeType) -> FunctionType:
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    made = FunctionType(code, fn.__globals__, fn.__name__, None, tuple(cells[name] for name in code.co_freevars))
    made.__qualname__, made.__module__ = fn.__qualname__, fn.__module__
    return made


def _live_out(node: ast.FunctionDef, count: int, code: CodeType) -> list[str] | None:
    """Return the variables that are set for certain before the rest of the body. None where it cannot be cut."""
    first, rest = node.body[:count], node.body[count:]
    inside = [part for statement in node.body for part in ast.walk(statement)]
    mentioned = _mentioned(node.body)
    imports = [part for part in inside if isinstance(part, ast.Import | ast.ImportFrom)]
    mentioned |= {alias.name for part in imports for alias in part.names}
    if mentioned & _OF_FRAMES or any(isinstance(part, ast.Attribute) and part.attr == "_getframe" for part in inside):
        return None
    own = [*_within(first)]
    if any(isinstance(part, ast.Delete) for part in own):
        return None
    declared = _declarations(node)
    if any(isinstance(part, ast.Nonlocal) and part not in declared for part in inside):
        return None  # a function inside changes a variable of this one
    elsewhere = {name for part in declared for name in part.names}
    if _captured(first) & _bound(rest):
        return None
    parameters = code.co_varnames[: _parameters(code)]
    certain, used = _certain(first), _mentioned(rest)
    if any(isinstance(part, ast.Delete) and _bound([part]) & _bound(first) for part in _within(rest)):
        return None  # the object should be destroyed, but the caller of the rest still holds it
    if (_bound(first) - certain - set(parameters) - elsewhere) & used:
        return None
    return [*parameters, *sorted(certain - set(parameters) - elsewhere)]


def _declarations(node: ast.FunctionDef) -> list[ast.Global | ast.Nonlocal]:
    """Return the declarations of names that are variables of other scopes."""
    return [part for part in _within(node.body) if isinstance(part, ast.Global | ast.Nonlocal)]


def _parameters(code: CodeType) -> int:
    rests = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + rests


def _mentioned(statements: Sequence[ast.stmt]) -> set[str]:
    """Return all names, including those of inner functions."""
    return {part.id for statement in statements for part in ast.walk(statement) if isinstance(part, ast.Name)}


def _within(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield all nodes in the function's own scope, comprehensions included."""
    for node in statements:
        yield node
        if not isinstance(node, _INNER):
            yield from _within(ast.iter_child_nodes(node))


def _names(node: ast.Import | ast.ImportFrom) -> set[str]:
    return {alias.asname or alias.name.partition(".")[0] for alias in node.names}


def _bound(statements: Sequence[ast.AST]) -> set[str]:
    """Return the variables that may be set here. Those of comprehensions are their own."""
    names: set[str] = set()
    own: set[int] = set()
    for node in _within(statements):
        match node:
            case ast.Name(ctx=ast.Store() | ast.Del()) if id(node) not in own:
                names.add(node.id)
            case ast.comprehension():
                own.update(id(part) for part in ast.walk(node.target))
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.Import() | ast.ImportFrom():
                names |= _names(node)
            case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() if node.name is not None:
                names.add(node.name)
            case ast.MatchMapping() if node.rest is not None:
                names.add(node.rest)
    return names


def _captured(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that functions made here may still read later. A generator that is an argument is exhausted at
    once."""
    used_up = {id(part) for node in _within(statements) if isinstance(node, ast.Call) for part in node.args}
    kept = (n for n in _within(statements) if isinstance(n, _INNER) or _lives_on(n, used_up))
    return {name for node in kept for name in _asked(node)}


def _asked(node: ast.AST) -> set[str]:
    """Return the names that the function reads, without its own variables; those of inner functions count as read."""
    named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return named
    own = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
    defaults = {part.id for part in ast.walk(node.args) if isinstance(part, ast.Name)}
    return (named - own - _bound(node.body if isinstance(node.body, list) else [node.body])) | defaults


def _lives_on(node: ast.AST, used_up: set[int]) -> bool:
    return isinstance(node, ast.GeneratorExp) and id(node) not in used_up


def _certain(statements: Sequence[ast.stmt]) -> set[str]:
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
                names |= _names(node) - {"*"}
            case ast.With():
                names |= {n for item in node.items if item.optional_vars for n in _targets(item.optional_vars)}
                if all(_lets_errors_out(item.context_expr) for item in node.items):
                    names |= _certain(node.body)
            case ast.If():
                paths = [_certain(body) for body in (node.body, node.orelse) if not _ends(body)]
                names |= set.intersection(*paths) if paths else set()
            case ast.Try(handlers=[]):
                names |= _certain(node.body) | _certain(node.finalbody)
            case ast.Try():
                paths = [_certain([*node.body, *node.orelse])]
                paths += [_certain(handler.body) for handler in node.handlers]
                names |= set.intersection(*paths) | _certain(node.finalbody)
                names -= {handler.name for handler in node.handlers if handler.name}
    return names


def _ends(statements: Sequence[ast.stmt]) -> bool:
    """Whether nothing of the function comes after them."""
    return bool(statements) and isinstance(statements[-1], ast.Return | ast.Raise)


def _lets_errors_out(context: ast.expr) -> bool:
    """Whether the body of a ``with`` has completed whenever the program continues after it."""
    name = context.func if isinstance(context, ast.Call) else context
    return (name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")) in _LETTING_OUT


def _targets(target: ast.expr) -> set[str]:
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Tuple | ast.List):
        return {name for part in target.elts for name in _targets(part)}
    return _targets(target.value) if isinstance(target, ast.Starred) else set()


def _span(statement: ast.stmt) -> Span:
    starts = [statement, *getattr(statement, "decorator_list", [])]
    end = statement.end_lineno or statement.lineno, statement.end_col_offset or 0
    return min((node.lineno, node.col_offset) for node in starts), end
