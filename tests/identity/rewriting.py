"""Three ways of running a test suite rewritten. Knows nothing of what becomes of the tests. Imported by ``child``.

"Twins": the suite runs under the imperative semantics, unittest's own code included, and every Python function that
rewritten code calls is entered by its twin. "In place": besides, the functions of the modules under test are given
their twins' code, so that native code (``sort``, a dictionary that compares keys) runs them rewritten as well.
"Protocols": as "twins", but calls are made by the semantics, from its own frames, as they are made when watching.

The examples of doctests are module-level code, which is never rewritten; each is run as a function of its own.
"""

from __future__ import annotations

import ast
import doctest
import gc
import itertools
import linecache
import symtable
import sys
import unittest
from collections.abc import Iterable
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite import CENSUS
from torchjanus.rewrite.hooks import current, rewritten
from torchjanus.semantics.known.not_entered import module_reason
from torchjanus.semantics.protocols.imperative import Imperative
from torchjanus.semantics.protocols.protocols import Protocols
from torchjanus.semantics.protocols.virtualize import virtualize

# Far fewer than the semantics leaves native by itself: a training step has no business in unittest, dataclasses or
# enum, but these are Python like any other.
LEFT_NATIVE = {
    __name__: "runs the tests",
    "torchjanus": "torchjanus itself",
    "importlib": "the import system",
    "_frozen_importlib": "the import system",
    "_frozen_importlib_external": "the import system",
    "linecache": "used to find source",
    "tokenize": "used to find source",
    "typing": "looks at its caller's frame",
}


class Entering(Protocols):
    """Enters every function that has a source, but for those listed above."""

    def leave_native(self, fn: FunctionType) -> str | None:
        reason = module_reason(fn.__globals__.get("__name__"), LEFT_NATIVE)
        if reason is None:
            try:
                rewritten(fn)
            except SourceUnavailable:
                return "no source"
        return reason


class EnteringDirectly(Entering, Imperative):
    """The same, from the user's own frames."""


def run(suite: unittest.TestSuite, result: unittest.TestResult, way: str, in_place: Iterable[str]) -> dict[str, Any]:
    """Runs the suite; says how many functions were rewritten, and why others were not."""
    rewrite_in_place(functions_of(in_place))
    semantics = Entering() if way == "protocols" else EnteringDirectly()
    plain_call = unittest.TestCase.__call__

    def call(test: unittest.TestCase, *args: Any, **kwargs: Any) -> None:
        """Runs one test. One that breaks unittest's own code, by a limit on recursion, must not end the others."""
        limit = sys.getrecursionlimit()
        try:
            virtualize(plain_call, semantics)(test, *args, **kwargs)
        except RecursionError:
            sys.setrecursionlimit(limit)
            result.addError(test, sys.exc_info())  # type: ignore[arg-type]
        finally:
            sys.setrecursionlimit(limit)

    unittest.TestCase.__call__ = call  # type: ignore[method-assign]
    doctest.exec = run_example  # type: ignore[attr-defined]
    virtualize(suite.run, semantics)(result)
    reasons: dict[str, int] = {}
    for entry in CENSUS.native:
        reasons[entry.native] = reasons.get(entry.native, 0) + 1
    return {"rewritten": [(entry.file, entry.line, entry.function) for entry in CENSUS.rewritten], "native": reasons}


def functions_of(names: Iterable[str]) -> list[FunctionType]:
    """Every function made over the globals of these modules, of their submodules, and of further copies of them."""
    wanted = tuple(names)
    owners = {
        id(vars(each))
        for each in gc.get_objects()
        if isinstance(each, ModuleType) and each.__name__.startswith(wanted) and is_within(each.__name__, wanted)
    }
    return [each for each in gc.get_objects() if type(each) is FunctionType and id(each.__globals__) in owners]


def is_within(name: str, wanted: Iterable[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in wanted)


def rewrite_in_place(functions: Iterable[FunctionType]) -> None:
    for fn in functions:
        try:
            fn.__code__ = rewritten(fn).__code__
        except SourceUnavailable:  # made by exec(); the census has counted it
            continue


# ---- doctests ----

_numbers = itertools.count()
DISPLAY = "_identity_display"


def as_example(code: CodeType, namespace: dict[str, Any]) -> FunctionType | None:
    """The code of one example as a function, rewritten where it is called so; None where only a module may say it."""
    lines = linecache.getlines(code.co_filename)  # doctest sees to it that they are found
    try:
        function = as_function("".join(lines), namespace)
    except SyntaxError:  # import *, annotated globals
        return None
    namespace[DISPLAY] = sys.displayhook
    return function


def run_example(code: CodeType, namespace: dict[str, Any]) -> None:
    """Stands in for the ``exec`` that doctest calls: runs the code of one example, rewritten where it can be."""
    function = None if current() is None else as_example(code, namespace)
    if function is None:
        exec(code, namespace)
        return
    made = rewritten(function)
    made.__code__ = as_in_module(made.__code__)
    try:
        made()
    finally:
        namespace.pop(DISPLAY, None)


def as_in_module(code: CodeType) -> CodeType:
    """The code with the qualified names that the definitions inside of it have in a module."""
    inside = [as_in_module(value) if isinstance(value, CodeType) else value for value in code.co_consts]
    return code.replace(co_consts=tuple(inside), co_qualname=code.co_qualname.removeprefix("example.<locals>."))


class Displaying(ast.NodeTransformer):
    """Shows the values of expression statements, as the interactive interpreter does."""

    def visit_Expr(self, node: ast.Expr) -> ast.Expr:
        return ast.Expr(ast.Call(ast.Name(DISPLAY, ast.Load()), [node.value], []))

    def leave(self, node: Any) -> Any:
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = leave


def as_function(source: str, namespace: dict[str, Any]) -> FunctionType:
    """The statements as the body of a function whose variables are the namespace's. Raises SyntaxError."""
    name = f"<example {next(_numbers)}>"
    symbols = symtable.symtable(source, name, "exec").get_symbols()
    bound = sorted(
        each.get_name() for each in symbols if each.is_assigned() or each.is_imported() or each.is_namespace()
    )
    body = [Displaying().visit(statement) for statement in ast.parse(source).body] or [ast.Pass()]
    declared: list[ast.stmt] = [ast.Global(bound)] if bound else []
    arguments = ast.arguments([], [], None, [], [], None, [])
    definition = ast.FunctionDef("example", arguments, [*declared, *body], [], None, None)
    definition.type_params = []  # type: ignore[attr-defined]
    text = ast.unparse(ast.fix_missing_locations(ast.Module([definition], [])))
    module = compile(text, name, "exec", dont_inherit=True)
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    [code] = [value for value in module.co_consts if isinstance(value, CodeType)]
    return FunctionType(code, namespace)
