"""Outlines steps: the body of a loop, of an ``if`` in a loop, or of a function becomes a function.

Its parameters are the variables that the body reads. It returns those that are read afterwards. The function around it
keeps its name, its signature and its lines.

In a module, variables are the module's, so the outlined function declares them ``global`` where other code may read
them. In a function, live variables are passed and returned. One that may be unbound is passed with whether it is bound;
where it is returned, too, an iteration that begins with it unbound is Python's. A body is left as it is, with a reason,
where that would differ: variables that functions share, frames that are looked at, suspended code.
"""

from __future__ import annotations

import ast

from torchjanus.cli.discovery.blocks import function_block, module_block
from torchjanus.cli.discovery.candidates import Candidate
from torchjanus.cli.discovery.exits import name_node
from torchjanus.cli.discovery.outlined import (
    NotOutlined,
    Outlined,
    call_of,
    calling,
    enclosing_variables,
    reads_of,
    require_no_late_binding,
)
from torchjanus.rewrite.liveness import bound, parameters_of, within
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import place

__all__ = ["NotOutlined", "Outlined", "outline"]

_FRAMES = frozenset(
    "locals vars dir eval exec globals super __class__ breakpoint set_trace _getframe currentframe".split()
)
_FRAME_METHODS = frozenset({"_getframe", "currentframe", "set_trace"})


def outline(candidate: Candidate, tree: ast.Module, callee: str, *, read_later: bool = False) -> Outlined:
    """Return the candidate outlined. ``callee``: the constant that stands for the outlined function where it is called;
    ``read_later``: whether code that is not in the tree may read any variable of the module.

    Raises NotOutlined.
    """
    _require_plain(candidate)
    if candidate.block is None:
        return _whole_function(candidate, callee)
    if isinstance(candidate.scope, ast.Module):
        return module_block(candidate, candidate.block, tree, callee, read_later)
    return function_block(candidate, candidate.block, tree, callee)


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


def _whole_function(candidate: Candidate, callee: str) -> Outlined:
    """Return a function whose body moves, as a whole, to a function of the same parameters and its free variables."""
    scope = candidate.scope
    assert isinstance(scope, ast.FunctionDef)
    arguments = scope.args
    where = location_of(scope.body[0])
    parameters = [*arguments.posonlyargs, *arguments.args]
    names = [part.arg for part in parameters]
    variables = bound(scope.body) | parameters_of(arguments)
    declared = {n for node in within(scope.body) if isinstance(node, ast.Global) for n in node.names}
    free = sorted((reads_of(scope.body) & enclosing_variables(candidate)) - variables - declared)
    if free:
        require_no_late_binding(scope.body, set(free))
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
    call = call_of(callee, [*free, *names], where)
    if arguments.vararg is not None:
        call.args.append(place(ast.Starred(name_node(arguments.vararg.arg, where, ast.Load()), ast.Load()), where))
    for part in arguments.kwonlyargs:
        call.keywords.append(place(ast.keyword(part.arg, name_node(part.arg, where, ast.Load())), where))
    if arguments.kwarg is not None:
        call.keywords.append(place(ast.keyword(None, name_node(arguments.kwarg.arg, where, ast.Load())), where))
    text = scope.body[:1] if ast.get_docstring(scope, clean=False) is not None else []
    return Outlined(function, [*text, calling(place(ast.Return(call), where), callee)])
