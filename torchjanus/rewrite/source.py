"""Finds the syntax tree of a function from its code object, and checks that the code was compiled from that tree.

The code object is what runs, whatever decorators or ``__wrapped__`` refer to. The source is read through ``linecache``,
so code from ``exec`` or an interactive session is found if its source was registered there.
"""

from __future__ import annotations
import __future__

import ast
import inspect
import linecache
import threading
from builtins import len, reversed  # torchjanus' own, even where a program replaces it
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torchjanus.core.caches import Identities
from torchjanus.core.errors import SourceUnavailable
from torchjanus.core.unwarned import unwarned
from torchjanus.rewrite.generated import generated_init
from torchjanus.rewrite.syntax.scopes import Function
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import place

__all__ = ["Found", "adopt", "compile_alone", "definitions", "filled", "find"]

FUTURE = 0
for _feature in __future__.all_feature_names:
    FUTURE |= getattr(__future__, _feature).compiler_flag

# Set by the enclosing code (nested) or later (types.coroutine), not by the definition.
NOT_DEFINED = inspect.CO_NESTED | inspect.CO_ITERABLE_COROUTINE
FACTORY = "@factory"  # the function around the code that is compiled alone: it has the closure's variables
STANDIN = "@code"  # the function's name in there: its own would hide the global variable of the same name


@dataclass(frozen=True, slots=True)
class Found:
    """The definition of a code object: its node, and the class for which its private names are mangled."""

    node: Function
    private: str | None
    imported: frozenset[str] = (
        frozenset()
    )  # what the file imports at module level: CPython compiles calls through it differently


@dataclass(frozen=True, slots=True)
class _File:
    lines: list[str]
    definitions: dict[tuple[int, str], list[Found]]  # by first line and name


# Modules that give code another name than its definition's. PyTorch 2.15 has what ``no_grad()`` decorates shown as that
# in tracebacks.
_RENAMING = frozenset({"torch.utils._contextlib"})
_files: dict[str, _File] = {}
_adopted: Identities[Found] = Identities()  # of code that was made of a definition that is in no file
_lock = threading.RLock()


def find(fn: FunctionType) -> Found:
    """Return the definition that the function's code was compiled from. Raises SourceUnavailable with the reason."""
    code, module_globals = fn.__code__, fn.__globals__
    adopted = _adopted.find(code)
    if adopted is not None:
        return adopted
    made = generated_init(fn)
    if made is not None:
        generated = Found(made, None)
        if _same(code, compile_alone(made, code, generated)):
            return generated
    with _lock:
        file = _read(code, module_globals)
        candidates = file.definitions.get((code.co_firstlineno, code.co_name), [])
        if not candidates and module_globals.get("__name__") in _RENAMING:
            candidates = _at(file, code.co_firstlineno)
        matching: list[Found] = []
        for candidate in candidates:
            try:
                compiled = compile_alone(candidate.node, code, candidate)
            except SyntaxError:  # this definition needs names that the code does not have: it is another one
                continue
            if _same(code, compiled):
                if compiled.co_linetable == code.co_linetable:
                    return candidate
                matching.append(candidate)
    if matching:
        return matching[0]
    where = f"{code.co_filename}:{code.co_firstlineno}"
    raise SourceUnavailable(
        f"{where}: the source of {code.co_qualname}() is not what it was compiled from: the file was changed after it "
        f"was imported, or another tool rewrote the code. Import it again to let it be rewritten."
    )


def _at(file: _File, line: int) -> list[Found]:
    """Return the definitions that begin in a line, for code that has got another name."""
    return [found for (first, _), there in file.definitions.items() if first == line for found in there]


def adopt(code: CodeType, found: Found) -> None:
    """Register the definition that the code was compiled from, which differs from the file's."""
    _adopted.put(code, found)


def forget() -> None:
    """Drop the trees of all files. Files that are needed again are read again, and used only if they match the code."""
    with _lock:
        _files.clear()


def _read(code: CodeType, module_globals: dict[str, Any]) -> _File:
    name = code.co_filename
    if name.startswith("<frozen "):  # part of the interpreter, but its source is often there
        name = module_globals.get("__file__") or name
    try:
        linecache.checkcache(name)
        lines = linecache.getlines(name, module_globals)
    except Exception as error:  # a loader's own exception, or the program has replaced functions that linecache uses
        raise SourceUnavailable(f"{name}:{code.co_firstlineno}: the file cannot be read: {error!r}.") from error
    if not lines:
        _files.pop(name, None)
        raise SourceUnavailable(
            f"{name}:{code.co_firstlineno}: no source for {code.co_qualname}(): the file cannot be read. Code made by "
            f"exec() is found if its source is registered in linecache.cache."
        )
    known = _files.get(name)
    if known is not None and (known.lines is lines or known.lines == lines):
        return known
    try:
        with unwarned():  # the user was warned when the file was first compiled
            tree = ast.parse("".join(lines), name)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise SourceUnavailable(f"{name}:{code.co_firstlineno}: the file no longer parses: {error}") from error
    file = _File(lines, definitions(tree))
    _files[name] = file
    return file


def definitions(tree: ast.Module) -> dict[tuple[int, str], list[Found]]:
    """Return all definitions of functions in a module, by first line and name, in the order of its text."""
    into: dict[tuple[int, str], list[Found]] = {}
    _index(tree, frozenset(_imports(tree)), into)
    return into


def _imports(node: ast.AST) -> Iterator[str]:
    """Yield the names that import statements bind in the module's own scope."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in child.names if alias.name != "*")
        elif isinstance(child, ast.stmt | ast.excepthandler | ast.match_case) and not isinstance(
            child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
        ):
            yield from _imports(child)


def _index(tree: ast.Module, imported: frozenset[str], into: dict[tuple[int, str], list[Found]]) -> None:
    """Enter all definitions of a module, in the order of its text. Leaves are not visited, since trees are large."""
    waiting: list[tuple[ast.AST, str | None]] = [(tree, None)]
    while waiting:
        node, private = waiting.pop()
        kind = type(node)
        if kind in _DEFINITIONS:
            if isinstance(node, ast.ClassDef):
                private = node.name
            elif isinstance(node, ast.Lambda):
                into.setdefault((node.lineno, "<lambda>"), []).append(Found(node, private, imported))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min((decorator.lineno for decorator in node.decorator_list), default=node.lineno)
                into.setdefault((first, node.name), []).append(Found(node, private, imported))
        for name in reversed(kind._fields):
            value: Any = getattr(node, name, None)
            if type(value) is list:
                waiting += [(child, private) for child in reversed(value) if type(child) not in _LEAVES]
            elif type(value) not in _LEAVES:
                waiting.append((value, private))


_DEFINITIONS = frozenset({ast.ClassDef, ast.Lambda, ast.FunctionDef, ast.AsyncFunctionDef})
# Values of node fields that contain no definition.
_LEAVES = frozenset(
    {str, int, bool, type(None), ast.Name, ast.Constant, ast.alias, ast.Import, ast.ImportFrom, ast.Pass, ast.Break}
    | {ast.Continue, ast.Global, ast.Nonlocal, ast.MatchSingleton, ast.TypeIgnore}
    | {
        kind
        for group in (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
        for kind in group.__subclasses__()
    }
)


def compile_alone(node: Function, code: CodeType, found_as: Found) -> CodeType:
    """Compile one definition, the original or its rewritten form, to code that can replace ``code``: same cells, same
    name, same private names.

    The definition is compiled inside a factory that binds the cells and, for private names and ``__class__``, inside a
    class of the right name. Neither is ever run.
    """
    where = location_of(node)
    private = found_as.private
    bare = _bare(node)
    inner: ast.stmt = bare if not isinstance(bare, ast.Lambda) else place(ast.Expr(bare), where)
    body: list[ast.stmt] = []
    cells = [name for name in code.co_freevars if private is None or name != "__class__"]
    if private is not None:
        inner = place(ast.ClassDef(private, [], [], [inner], []), where)
        _no_type_parameters(inner)
        if private not in cells:
            body.insert(0, place(ast.Global([private]), where))  # in the code, the class's name refers to a global
    body.append(inner)
    factory = place(ast.FunctionDef(FACTORY, _parameters(cells, where), body, [], None, None), where)
    _no_type_parameters(factory)
    imports = [place(ast.Import([place(ast.alias(name, None), where)]), where) for name in sorted(found_as.imported)]
    flags = code.co_flags & FUTURE
    with unwarned():
        module = compile(ast.Module([*imports, factory], []), code.co_filename, "exec", flags, dont_inherit=True)
    found = _only_code(_only_code(module))
    if private is not None:
        found = _only_code(found)
    return _requalified(found, found.co_qualname, code.co_qualname).replace(
        co_name=code.co_name, co_flags=(found.co_flags & ~NOT_DEFINED) | (code.co_flags & NOT_DEFINED)
    )


def filled(code: CodeType, objects: Mapping[str, Any]) -> CodeType:
    """Return the code, inner code included, with objects in place of the constants that name them."""
    constants = (
        filled(value, objects) if isinstance(value, CodeType)
        else objects.get(value, value) if type(value) is str else value
        for value in code.co_consts
    )  # fmt: skip
    return code.replace(co_consts=tuple(constants))


def _bare(node: Function) -> Function:
    """Return the definition without defaults, annotations and decorators, but with its first line, the first
    decorator's."""
    where = location_of(node)
    old = node.args

    def plain(argument: ast.arg) -> ast.arg:
        return place(ast.arg(argument.arg, None, None), location_of(argument))

    def nothing(default: ast.expr) -> ast.expr:
        return place(ast.Constant(None), location_of(default))

    arguments = ast.arguments(
        [plain(argument) for argument in old.posonlyargs],
        [plain(argument) for argument in old.args],
        None if old.vararg is None else plain(old.vararg),
        [plain(argument) for argument in old.kwonlyargs],
        [None if default is None else nothing(default) for default in old.kw_defaults],
        None if old.kwarg is None else plain(old.kwarg),
        [nothing(default) for default in old.defaults],
    )
    if isinstance(node, ast.Lambda):
        return place(ast.Lambda(arguments, node.body), where)
    decorators = [nothing(decorator) for decorator in node.decorator_list]
    new = place(type(node)(STANDIN, arguments, node.body, decorators, None, None), where)
    _no_type_parameters(new)
    return new


def _no_type_parameters(node: ast.stmt) -> None:
    node.type_params = []  # type: ignore[attr-defined]  # 3.12 asks for the field


def _parameters(names: list[str], where: tuple[int, int, int, int]) -> ast.arguments:
    return ast.arguments([], [place(ast.arg(name, None, None), where) for name in names], None, [], [], None, [])


def _only_code(code: CodeType) -> CodeType:
    [inner] = [value for value in code.co_consts if isinstance(value, CodeType)]
    return inner


def _requalified(code: CodeType, prefix: str, qualname: str) -> CodeType:
    """Return the code with the qualified names of its real place, class bodies' ``__qualname__`` included."""

    def real(name: str) -> str:
        return qualname + name[len(prefix) :] if name == prefix or name.startswith(prefix + ".") else name

    constants = tuple(
        _requalified(value, prefix, qualname)
        if isinstance(value, CodeType)
        else real(value)
        if type(value) is str and value.startswith(prefix)
        else value
        for value in code.co_consts
    )
    return code.replace(co_qualname=real(code.co_qualname), co_consts=constants)


_SAME = (
    "co_name", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_firstlineno", "co_code",
    "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_exceptiontable"
)  # fmt: skip


def _same(code: CodeType, compiled: CodeType) -> bool:
    """Whether the two do the same thing, constants and nested code included."""
    if _asserts_rewritten(code):
        return _same_interface(code, compiled)
    if any(getattr(code, name) != getattr(compiled, name) for name in _SAME):
        return False
    if len(code.co_consts) != len(compiled.co_consts):
        return False
    for one, other in zip(code.co_consts, compiled.co_consts, strict=True):
        if isinstance(one, CodeType) and isinstance(other, CodeType):
            if not _same(one, other):
                return False
        elif type(one) is not type(other) or repr(one) != repr(other):
            if not (isinstance(one, frozenset) and one == other):  # a set has no reliable order
                return False
    return True


def _asserts_rewritten(code: CodeType) -> bool:
    """Whether pytest has replaced this function's assert statements. The rest is unchanged."""
    return "@pytest_ar" in code.co_names or any(
        isinstance(value, CodeType) and _asserts_rewritten(value) for value in code.co_consts
    )


def _same_interface(code: CodeType, compiled: CodeType) -> bool:
    parameters = code.co_argcount + code.co_kwonlyargcount
    return (
        code.co_argcount == compiled.co_argcount
        and code.co_posonlyargcount == compiled.co_posonlyargcount
        and code.co_kwonlyargcount == compiled.co_kwonlyargcount
        and code.co_varnames[:parameters] == compiled.co_varnames[:parameters]
        and code.co_freevars == compiled.co_freevars
    )
