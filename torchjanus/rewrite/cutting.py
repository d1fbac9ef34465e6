"""Cuts a function in two between statements of its body: the first part returns the arguments of the second.

The first part returns a tuple of its variables: first the n that the second part takes, then the others, so that they
live as long as before. ``rest(*first(...)[:n])`` does what the function does. A function is not cut if it reads its
frame (``locals()``), or if a variable would have to be in both parts. Where the function returns in the first part,
that part returns a list with the result instead of a tuple. The parts have the function's name, lines and closure.
"""

from __future__ import annotations

import ast
import copy
import inspect
from collections.abc import Sequence
from types import CodeType, FunctionType
from typing import Any

from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite.liveness import INNER, bound, set_after, within
from torchjanus.rewrite.source import Found, adopt, compile_alone, find
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import place

__all__ = [
    "OF_FRAMES", "SUSPENDED", "Span", "asks_for_callers", "captured", "cut", "declarations", "like", "redefined",
    "spans_of",
]  # fmt: skip

Span = tuple[tuple[int, int], tuple[int, int]]

# They inspect the frame that they are called from, or need the original function.
OF_FRAMES = frozenset("locals vars dir eval exec super __class__ inspect _getframe".split())
# They look at the frames of callers, where a part has one of ours.
OF_CALLERS = frozenset("warn _getframe currentframe stack extract_stack print_stack format_stack findCaller".split())
SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def asks_for_callers(code: CodeType) -> bool:
    """Whether the code, or that of a function in it, may look at the frames of its callers, as ``stacklevel`` does."""
    if not OF_CALLERS.isdisjoint(code.co_names):
        return True
    for one in code.co_consts:
        if isinstance(one, CodeType) and asks_for_callers(one):
            return True
        if isinstance(one, tuple) and "stacklevel" in one:  # the names of keywords
            return True
    return False


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
    if not isinstance(node, ast.FunctionDef) or code.co_flags & SUSPENDED or not 0 < count < len(node.body):
        return None
    names = _live_out(node, count, code)
    if names is None or (found.private is not None and any(name.startswith("__") for name in names)):
        return None
    fixed = code.co_varnames[:leading]
    if bound(node.body[:count]) & set(fixed):
        return None
    used = _mentioned(node.body[count:])
    passed = [name for name in names if name not in fixed and name in used]
    others = [] if only_used else [name for name in names if name not in fixed and name not in used]
    where = location_of(node.body[count - 1])
    kept: list[ast.expr] = [place(ast.Name(name, ast.Load()), where) for name in (*passed, *others)]
    values = place(ast.Tuple(kept, ast.Load()), where)
    taken = [place(ast.arg(name, None, None), where) for name in (*fixed, *passed)]
    body = [_Returning().visit(copy.deepcopy(statement)) for statement in node.body[:count]]
    first = redefined(node, node.args, [*declarations(node.body), *body, place(ast.Return(values), where)])
    rest = redefined(
        node, ast.arguments([], taken, None, [], [], None, []), [*declarations(node.body), *node.body[count:]]
    )
    try:
        codes = [compile_alone(part, code, found) for part in (first, rest)]
    except SyntaxError:  # a declaration after a use, in one of the parts
        return None
    for part, made in zip((first, rest), codes, strict=True):
        adopt(made, Found(part, found.private, found.imported))
    one, other = (like(fn, part) for part in codes)
    one.__defaults__, one.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
    return one, other


class _Returning(ast.NodeTransformer):
    """Puts what the function returns into a list."""

    def visit(self, node: ast.AST) -> Any:
        return node if isinstance(node, INNER) else super().visit(node)

    def visit_Return(self, node: ast.Return) -> ast.Return:
        where = location_of(node)
        value = node.value or place(ast.Constant(None), where)
        return place(ast.Return(place(ast.List([value], ast.Load()), where)), where)


def redefined(node: ast.FunctionDef, arguments: ast.arguments, body: list[ast.stmt]) -> ast.FunctionDef:
    """Return the definition with other parameters and another body, at the same place."""
    return place(ast.FunctionDef(node.name, arguments, body, node.decorator_list, None, None), location_of(node))


def like(fn: FunctionType, code: CodeType) -> FunctionType:
    """Return a function of this code, with the name, the variables around it and the module of ``fn``."""
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
    if mentioned & OF_FRAMES or any(isinstance(part, ast.Attribute) and part.attr == "_getframe" for part in inside):
        return None
    own = [*within(first)]
    if any(isinstance(part, ast.Delete) for part in own):
        return None
    declared = declarations(node.body)
    if any(isinstance(part, ast.Nonlocal) and part not in declared for part in inside):
        return None  # a function inside changes a variable of this one
    elsewhere = {name for part in declared for name in part.names}
    if captured(first) & bound(rest):
        return None
    parameters = code.co_varnames[: _parameters(code)]
    sure, used = set_after(parameters, first), _mentioned(rest)
    if any(isinstance(part, ast.Delete) and bound([part]) & bound(first) for part in within(rest)):
        return None  # the object should be destroyed, but the caller of the rest still holds it
    if (bound(first) - sure - elsewhere) & used:
        return None
    kept = [name for name in parameters if name in sure]
    return [*kept, *sorted(sure - set(parameters) - elsewhere)]


def declarations(statements: Sequence[ast.stmt]) -> list[ast.Global | ast.Nonlocal]:
    """Return the declarations of names that are variables of other scopes."""
    return [part for part in within(statements) if isinstance(part, ast.Global | ast.Nonlocal)]


def _parameters(code: CodeType) -> int:
    rests = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_argcount + code.co_kwonlyargcount + rests


def _mentioned(statements: Sequence[ast.stmt]) -> set[str]:
    """Return all names, including those of inner functions."""
    return {part.id for statement in statements for part in ast.walk(statement) if isinstance(part, ast.Name)}


def captured(statements: Sequence[ast.stmt]) -> set[str]:
    """Return the names that functions made here may still read later. A generator that is an argument is exhausted at
    once."""
    used_up = {id(part) for node in within(statements) if isinstance(node, ast.Call) for part in node.args}
    kept = (n for n in within(statements) if isinstance(n, INNER) or _lives_on(n, used_up))
    return {name for node in kept for name in _asked(node)}


def _asked(node: ast.AST) -> set[str]:
    """Return the names that the function reads, without its own variables; those of inner functions count as read."""
    named = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        return named
    own = {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
    defaults = {part.id for part in ast.walk(node.args) if isinstance(part, ast.Name)}
    return (named - own - bound(node.body if isinstance(node.body, list) else [node.body])) | defaults


def _lives_on(node: ast.AST, used_up: set[int]) -> bool:
    return isinstance(node, ast.GeneratorExp) and id(node) not in used_up


def _span(statement: ast.stmt) -> Span:
    starts = [statement, *getattr(statement, "decorator_list", [])]
    end = statement.end_lineno or statement.lineno, statement.end_col_offset or 0
    return min((node.lineno, node.col_offset) for node in starts), end
