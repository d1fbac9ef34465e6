"""Variants of a function in which chosen calls, and chosen runs of statements, go through objects of the caller's.

At a chosen call site the object is asked what to call: ``f(x)`` becomes ``site(f)(x)``. A chosen run of statements
becomes a call with the variables that the run reads, and gives those that are live after it: ``y, = run(x)``. Each
handler of exceptions begins with a call of ``handled``. A variant has the function's name, variables, lines and
positions. Nothing else is changed, and no other code sees it.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite.build import with_code
from torchjanus.rewrite.cutting import OF_FRAMES, SUSPENDED, asks_for_callers, captured, declarations, like, redefined
from torchjanus.rewrite.liveness import (
    Around,
    around_body,
    bound,
    certain,
    lets_errors_out,
    live_before,
    parameters_of,
    set_after,
    unset,
    within,
)
from torchjanus.rewrite.source import Found, adopt, compile_alone, filled, find
from torchjanus.rewrite.syntax.sites import Location, location_of
from torchjanus.rewrite.syntax.walk import constant, place

__all__ = ["RUN", "Run", "call_sites", "runs_of", "variant"]

RUN = "\0@run"  # the text of a function that is a run of statements of another one
_PART = "\0@part"  # placeholder of an object until the code is compiled
_JUMPS = (ast.Return, ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith, ast.Delete)
MOST_TRIED = 100  # stretches of one block that are tried as runs


@dataclass(frozen=True, slots=True)
class Run:
    """A run of statements as a function: ``function(*inputs)`` returns a tuple of the ``outputs``."""

    statements: tuple[Location, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    function: FunctionType

    @property
    def lines(self) -> tuple[int, int]:
        """The first and the last line."""
        return self.statements[0][0], self.statements[-1][2]


def call_sites(fn: FunctionType) -> dict[Location, str]:
    """Return the calls in the function's own scope, by location, with the source of what each calls; none where there
    is no source, or where calls are not made by the function itself."""
    definition = _definition(fn)
    if definition is None:
        return {}
    calls = [node for node in within(definition[0].body) if isinstance(node, ast.Call)]
    return {location_of(call): ast.unparse(call.func) for call in calls if not _looks_at_frames(call)}


def variant(
    fn: FunctionType,
    callees: Mapping[Location, Callable[[Any], Any]],
    runs: Mapping[Run, Callable[..., Any]],
    handled: Callable[[], None],
) -> FunctionType | None:
    """Return the function with these call sites and runs, or None if it cannot be compiled so. ``callees``: the objects
    that are asked what to call; ``runs``: what makes each run instead; ``handled`` is called in handlers."""
    definition = _definition(fn)
    if definition is None:
        return None
    node, found = definition
    change = _Change(found, callees, runs, handled)
    body = change.block(copy.deepcopy(node.body))
    try:
        made = compile_alone(redefined(node, node.args, body), fn.__code__, found)
    except SyntaxError:
        return None
    if not {*made.co_freevars} <= {*fn.__code__.co_freevars}:  # fewer where a run has taken all uses of one
        return None
    return with_code(fn, filled(made, change.objects))


def runs_of(fn: FunctionType, breaks: Callable[[Location], bool], *, divide: bool = False) -> list[Run]:
    """Return the largest runs of statements in which there is no position for which ``breaks`` holds (it is asked with
    the location of a statement). ``divide``: a loop is not within a run; its body may be one."""
    definition = _definition(fn)
    if definition is None or {name for part in definition[0].body for name in _names(part)} & OF_FRAMES:
        return []
    if asks_for_callers(fn.__code__):
        return []
    node, found = definition
    parameters = parameters_of(node.args)
    if found.private is not None and any(name.startswith("__") for name in bound(node.body) | parameters):
        return []
    search = _Search(fn, node, found, breaks, divide)
    search.block(node.body, Around(), frozenset(parameters), whole=True)
    return search.runs


def _definition(fn: FunctionType) -> tuple[ast.FunctionDef, Found] | None:
    """Return the function's definition, if it has one with statements that are run when it is called."""
    try:
        found = find(fn)
    except SourceUnavailable:
        return None
    node = found.node
    return (node, found) if isinstance(node, ast.FunctionDef) and not fn.__code__.co_flags & SUSPENDED else None


class _Change(ast.NodeTransformer):
    """Puts placeholders in: ``objects`` says of what."""

    def __init__(
        self,
        found: Found,
        callees: Mapping[Location, Callable[[Any], Any]],
        runs: Mapping[Run, Callable[..., Any]],
        handled: Callable[[], None],
    ) -> None:
        self.objects: dict[str, Any] = {}
        self._imported = found.imported
        self._callees = callees
        self._handled = handled
        self._runs = {run.statements[0]: (run, by) for run, by in runs.items()}

    def _object(self, value: Any, where: Location) -> ast.Constant:
        name = f"{_PART}{len(self.objects)}"
        self.objects[name] = value
        return constant(name, where)

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of a block, changed."""
        out: list[ast.stmt] = []
        rest = iter(statements)
        for statement in rest:
            # Taken out: a statement that a cut has added stands where the last one before it does.
            known = self._runs.pop(location_of(statement), None)
            if known is None:
                out.append(self.visit(statement))
                continue
            run, by = known
            out.append(self._call(run, by))
            for _ in run.statements[1:]:
                next(rest)
        return out

    def _call(self, run: Run, by: Callable[..., Any]) -> ast.stmt:
        where = run.statements[0]
        given: list[ast.expr] = [place(ast.Name(name, ast.Load()), where) for name in run.inputs]
        value = place(ast.Call(self._object(by, where), given, []), where)
        if not run.outputs:
            return place(ast.Expr(value), where)
        targets: list[ast.expr] = [place(ast.Name(name, ast.Store()), where) for name in run.outputs]
        return place(ast.Assign([place(ast.Tuple(targets, ast.Store()), where)], value), where)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name, value in ast.iter_fields(node):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                setattr(node, name, self.block(value))
            elif isinstance(value, list):
                value[:] = [self.visit(one) if isinstance(one, ast.AST) else one for one in value]
            elif isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        where = location_of(node.body[0])
        self.generic_visit(node)
        node.body.insert(0, place(ast.Expr(place(ast.Call(self._object(self._handled, where), [], []), where)), where))
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        at, where = location_of(node), call_location(node, self._imported)
        self.generic_visit(node)
        asked = self._callees.get(at)
        if asked is None:
            return node
        # Reported where CPython reports errors of the call, though the callee is no attribute any more.
        node.func = place(ast.Call(self._object(asked, where), [node.func], []), where)
        return place(node, where)


class _Search:
    """Looks for runs of statements in the blocks of one function."""

    def __init__(
        self, fn: FunctionType, node: ast.FunctionDef, found: Found, breaks: Callable[[Location], bool], divide: bool
    ) -> None:
        self.runs: list[Run] = []
        self._fn, self._node, self._found, self._breaks, self._divide = fn, node, found, breaks, divide
        declared = declarations(node.body)
        elsewhere = {name for part in declared for name in part.names}
        self._own = (bound(node.body) | parameters_of(node.args)) - elsewhere
        inner = [part for statement in node.body for part in ast.walk(statement) if isinstance(part, ast.Nonlocal)]
        self._changed_inside = {name for part in inner if part not in declared for name in part.names}
        self._cells = set(fn.__code__.co_cellvars)
        self._tries = MOST_TRIED

    def block(self, statements: list[ast.stmt], around: Around, set_: frozenset[str], *, whole: bool = False) -> None:
        """Collect the runs of a block. ``set_``: the variables that are set for certain before it. ``whole``: the block
        is the function's body, of which a run would be the function itself."""
        stretch: list[int] = []
        skipped = 1 if whole and _is_text(statements[0]) else 0
        for number in range(skipped, len(statements) + 1):
            if number < len(statements) and self._may_belong(statements[number]):
                stretch.append(number)
                continue
            if stretch:
                last = number == len(statements) or isinstance(statements[number], ast.Return)
                everything = whole and last and len(stretch) == len(statements[skipped:number])
                self._stretch(statements, stretch[0], number, around, set_, everything=everything)
                stretch = []
            if number < len(statements):
                self._inside(statements, number, around, set_)

    def _may_belong(self, statement: ast.stmt) -> bool:
        loops = self._divide and isinstance(statement, ast.For | ast.While)
        return not loops and not _leaves(statement) and not self._breaks(location_of(statement))

    def _inside(self, statements: list[ast.stmt], number: int, around: Around, set_: frozenset[str]) -> None:
        """Collect the runs inside of a compound statement."""
        statement = statements[number]
        outer = replace(around, after=live_before(statements[number + 1 :], around))
        before = set_after(set_, statements[:number]) - unset([statement])  # an iteration may unset it for the next
        body = around_body(statement, outer)
        match statement:
            case ast.For():
                self.block(statement.body, body, before | certain([_target(statement)]))
            case ast.While():
                self.block(statement.body, body, before)
            case ast.If():
                self.block(statement.body, body, before)
                if statement.orelse:
                    self.block(statement.orelse, body, before)
            case ast.With() if lets_errors_out(statement):
                names = certain([ast.With(statement.items, [])])
                self.block(statement.body, body, before | names)

    def _stretch(
        self,
        statements: list[ast.stmt],
        begin: int,
        end: int,
        around: Around,
        set_: frozenset[str],
        *,
        everything: bool,
    ) -> None:
        """Add the largest run within a stretch of statements, and look into what is left of the stretch."""
        for length in range(end - begin - everything, 0, -1):
            for first in range(begin, end - length + 1):
                self._tries -= 1
                if self._tries < 0:
                    return
                run = self._run(statements, first, first + length, around, set_)
                if run is not None:
                    self.runs.append(run)
                    for low, high in ((begin, first), (first + length, end)):
                        if low < high:
                            self._stretch(statements, low, high, around, set_, everything=False)
                    return
        for number in range(begin, end):
            self._inside(statements, number, around, set_)

    def _run(
        self, statements: list[ast.stmt], begin: int, end: int, around: Around, set_: frozenset[str]
    ) -> Run | None:
        """Return these statements as a run, or None where a variable would have to be in both functions."""
        inside = statements[begin:end]
        if not any(isinstance(node, ast.Call) for node in within(inside)):
            return None
        before = set_after(set_, statements[:begin])
        after = live_before(statements[end:], around)
        changed = bound(inside) & self._own
        mentioned = {part.id for node in inside for part in ast.walk(node) if isinstance(part, ast.Name)}
        if changed & self._cells or mentioned & self._changed_inside:
            return None
        if changed & around.on_error or captured(inside) & self._own:
            return None
        outputs = changed & (after | around.on_error)
        if outputs & unset(inside):
            return None
        unsure = outputs - certain(inside)
        inputs = (live_before(inside, Around()) & self._own) | unsure
        if not inputs <= before:
            return None
        return self._outlined(inside, tuple(sorted(inputs)), tuple(sorted(outputs)))

    def _outlined(self, inside: list[ast.stmt], inputs: tuple[str, ...], outputs: tuple[str, ...]) -> Run | None:
        node, code = self._node, self._fn.__code__
        where = location_of(inside[-1])
        taken = [place(ast.arg(name, None, None), where) for name in inputs]
        given: list[ast.expr] = [place(ast.Name(name, ast.Load()), where) for name in outputs]
        result = place(ast.Return(place(ast.Tuple(given, ast.Load()), where)), where)
        part = redefined(node, ast.arguments([], taken, None, [], [], None, []), [
            place(ast.Expr(constant(RUN, where)), where), *declarations(node.body), *inside, result
        ])  # fmt: skip
        try:
            made = compile_alone(part, code, self._found)
        except SyntaxError:  # a declaration after a use
            return None
        if not {*made.co_freevars} <= {*code.co_freevars}:
            return None
        adopt(made, Found(part, self._found.private, self._found.imported))
        return Run(tuple(map(location_of, inside)), inputs, outputs, like(self._fn, made))


def call_location(node: ast.Call, imported: frozenset[str]) -> Location:
    """Return where CPython reports errors of the call: for a method call that spans lines, the line of the method's
    name."""
    where, func = location_of(node), node.func
    if not isinstance(func, ast.Attribute) or func.lineno == func.end_lineno or func.end_lineno is None:
        return where
    if isinstance(func.value, ast.Name) and func.value.id in imported:
        return where
    return func.end_lineno, max((func.end_col_offset or 0) - len(func.attr), 0), where[2], where[3]


def _looks_at_frames(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return name in OF_FRAMES


def _leaves(statement: ast.stmt) -> bool:
    """Whether control may leave the statement other than to the next one or by an exception, or it ends variables."""
    if isinstance(statement, ast.Break | ast.Continue | ast.Global | ast.Nonlocal | ast.Import | ast.ImportFrom):
        return True
    return any(isinstance(node, _JUMPS) for node in within([statement])) or any(_loose_jumps(statement))


def _loose_jumps(node: ast.AST) -> Iterator[bool]:
    """Yield True for each break or continue of a loop around the node."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Break | ast.Continue):
            if not isinstance(node, ast.For | ast.While) or child in node.orelse:
                yield True
        elif isinstance(node, ast.For | ast.While):
            if child in node.orelse:
                yield from _loose_jumps(child)
        elif not isinstance(child, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            yield from _loose_jumps(child)


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _target(statement: ast.For) -> ast.stmt:
    """Return an assignment to the targets of a loop."""
    return ast.Assign([statement.target], ast.Constant(None))


def _names(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.alias):
            yield part.name
        elif isinstance(part, ast.Attribute) and part.attr == "_getframe":
            yield part.attr
