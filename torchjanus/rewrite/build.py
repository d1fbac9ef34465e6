"""Makes rewritten code objects and twin functions: the same function with the same variables and with hooks inside.

Rewriting is done once for each code object, on first use, and dropped with it. The hook object is put into the
constants of the code, where no user can see or shadow it.
"""

from __future__ import annotations

import ast
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torchjanus.core.caches import Identities, Recent
from torchjanus.core.collector import uncollected
from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite.census import CENSUS
from torchjanus.rewrite.constructs import (
    assignment,
    blocks,
    calls,
    functions,
    imports,
    loads,
    loops,
    operators,
    patterns,
    strings,
    truth,
)
from torchjanus.rewrite.source import Found, compile_alone, find
from torchjanus.rewrite.syntax.scopes import Function, analyse
from torchjanus.rewrite.syntax.sites import Site, SiteTable
from torchjanus.rewrite.syntax.walk import HOOK, Walk

__all__ = ["Anchor", "Bind", "code_of", "is_rewritten", "rewritten_source", "sites_of", "twin", "with_code"]


class Anchor:
    """The base class of hook objects that are bound into code, by which rewritten code is recognised."""

    __slots__ = ()


Bind = Callable[[FunctionType, tuple[Site, ...]], Anchor]

CONSTRUCTS = {
    kind: construct
    for module in (assignment, blocks, calls, functions, imports, loads, loops, operators, patterns, strings, truth)
    for kind, construct in module.CONSTRUCTS.items()
}


@dataclass(frozen=True, slots=True)
class Template:
    """Rewritten code with a placeholder for the hook object, and its sites."""

    code: CodeType
    sites: tuple[Site, ...]


_templates: Identities[Template | str] = Identities()  # by code; a text says why there is none
_unhooked: Identities[CodeType] = Identities()  # by rewritten code: one object for all code made of one source
_bare: Recent[CodeType] = Recent(4096)  # by file and content
_twins: weakref.WeakKeyDictionary[FunctionType, tuple[Bind, CodeType, FunctionType]] = weakref.WeakKeyDictionary()


def is_rewritten(code: CodeType) -> bool:
    """Whether hooks are bound into this code."""
    return any(isinstance(value, Anchor) for value in code.co_consts)


def code_of(fn: Any) -> CodeType:
    """Return the function's code, without hooks if any are bound into it: an inner function gets new hooks whenever the
    function that defines it is rewritten."""
    code: CodeType = fn.__code__
    if not is_rewritten(code):
        return code
    known = _unhooked.find(code)
    if known is None:
        made = _without_hooks(code)
        known = _unhooked.put(code, _bare.get((code.co_filename, made), lambda: made))
    return known


def _without_hooks(code: CodeType) -> CodeType:
    constants = (value for value in code.co_consts if not isinstance(value, Anchor))
    bare = (_without_hooks(value) if isinstance(value, CodeType) else value for value in constants)
    return code.replace(co_consts=tuple(bare))


def sites_of(fn: FunctionType) -> tuple[Site, ...]:
    """Return the sites of the rewritten form of ``fn``. Raises SourceUnavailable."""
    return template(fn).sites


def twin(fn: FunctionType, bind: Bind) -> FunctionType:
    """Return the rewritten form of ``fn``: same globals, cells, defaults, attributes, names and source positions.

    ``bind(fn, sites)`` makes the hook object that its code will call. A function that has hooks already is returned as
    it is. Raises SourceUnavailable.
    """
    known = _twins.get(fn)
    if known is not None:
        made_by, code, made = known
        if made_by is bind and code is fn.__code__ and _current(fn, made):
            return made
    if is_rewritten(fn.__code__):
        return fn
    made = _make(fn, template(fn), bind)
    if _lives_with_its_module(fn):
        _twins[fn] = bind, fn.__code__, made
    return made


def template(fn: FunctionType) -> Template:
    outcome = _templates.get(fn.__code__, lambda: _template(fn))
    if isinstance(outcome, str):
        raise SourceUnavailable(outcome)
    return outcome


def _template(fn: FunctionType) -> Template | str:
    """Return the rewritten code, or the reason why there is none."""
    code = fn.__code__
    try:
        with uncollected(kept=True):
            made = _rewrite(fn)
    except SourceUnavailable as error:
        CENSUS.note(code, "no source")
        return str(error)
    except (SyntaxError, RecursionError) as error:
        # A fault of torchjanus, or no room on the stack: the function was first met deep in a recursion. It runs as it
        # is.
        CENSUS.note(code, "cannot be rewritten" if isinstance(error, SyntaxError) else "met too deep in a recursion")
        where = f"{code.co_filename}:{code.co_firstlineno}"
        return (
            f"{where}: {code.co_qualname}() cannot be rewritten: {error}. Simplify it, or report this with its source."
        )
    CENSUS.note(code)
    return made


def _rewrite(fn: FunctionType) -> Template:
    code = fn.__code__
    found = find(fn)
    node, table = _with_hooks(found, code)
    compiled = compile_alone(node, code, found)
    if compiled.co_freevars != code.co_freevars:
        raise SyntaxError(f"its closure changes from {code.co_freevars} to {compiled.co_freevars}")
    return Template(compiled, table.freeze())


def _with_hooks(found: Found, code: CodeType) -> tuple[Function, SiteTable]:
    table = SiteTable(code.co_filename)
    scopes = analyse(found.node, code.co_freevars, found.private)
    walk = Walk(CONSTRUCTS, scopes, table, found.private, found.imported, code.co_qualname)
    return functions.function_body(walk, found.node, code.co_qualname), table


def rewritten_source(fn: FunctionType) -> str:
    """Return the rewritten form of ``fn`` as text, in which ``hook`` stands for the hook object. Raises
    SourceUnavailable."""
    node, _ = _with_hooks(find(fn), code_of(fn))
    return ast.unparse(node).replace(repr(HOOK), "hook")


def _make(fn: FunctionType, rewritten: Template, bind: Bind) -> FunctionType:
    return with_code(fn, bound_code(rewritten.code, bind(fn, rewritten.sites)))


def with_code(fn: FunctionType, code: CodeType) -> FunctionType:
    """Return a function of this code, whose free variables are among those of ``fn``, that is ``fn`` in all other
    respects."""
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    closure = tuple(cells[name] for name in code.co_freevars)
    made = FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, closure)
    made.__kwdefaults__ = fn.__kwdefaults__
    made.__annotations__ = fn.__annotations__
    made.__qualname__ = fn.__qualname__
    made.__module__ = fn.__module__
    made.__doc__ = fn.__doc__
    made.__dict__ = fn.__dict__  # shared: attributes set on one are seen on the other
    if sys.version_info >= (3, 12):
        made.__type_params__ = fn.__type_params__
    return made


def bound_code(code: CodeType, anchor: Anchor) -> CodeType:
    """Return the code with the hook object in its constants; it is also the last, so that code without a hook is
    recognised."""
    constants: list[Any] = []
    for value in code.co_consts:
        if isinstance(value, CodeType):
            constants.append(bound_code(value, anchor))
        elif type(value) is str and value == HOOK:
            constants.append(anchor)
        else:
            constants.append(value)
    return code.replace(co_consts=(*constants, anchor))


def _current(fn: FunctionType, made: FunctionType) -> bool:
    """Whether the twin still has the function's replaceable attributes."""
    return (
        made.__defaults__ is fn.__defaults__
        and made.__kwdefaults__ is fn.__kwdefaults__
        and made.__dict__ is fn.__dict__
    )


def _lives_with_its_module(fn: FunctionType) -> bool:
    """Whether the twin may be cached: it refers to the function, so the twin of a closure would never be freed."""
    if "<locals>" in fn.__code__.co_qualname:
        return False
    module = sys.modules.get(fn.__globals__.get("__name__", ""))
    return module is not None and module.__dict__ is fn.__globals__
