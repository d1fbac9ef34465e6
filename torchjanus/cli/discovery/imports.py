"""Compiles modules with their steps outlined: the main script, the modules of the program's own that it imports, and
those of installed packages that hold the training loop of a trainer.

Other installed packages are left as they are. A module in which no step is found is compiled as Python does it.
"""

from __future__ import annotations

import ast
import fnmatch
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import math
import os
import sys
import sysconfig
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from torchjanus.cli.discovery.candidates import Candidate, mentions_training
from torchjanus.cli.discovery.loops import NotedLoop, loops_around, noting
from torchjanus.cli.discovery.outline import NotOutlined, Outlined, outline
from torchjanus.cli.discovery.steps import Step
from torchjanus.cli.discovery.trainers import is_searched, steps_in
from torchjanus.core.errors import OWN_FOLDER
from torchjanus.core.logs import logger
from torchjanus.core.unwarned import unwarned
from torchjanus.rewrite.source import FUTURE, Found, adopt, compile_alone, definitions, filled
from torchjanus.rewrite.syntax.sites import location_of
from torchjanus.rewrite.syntax.walk import place
from torchjanus.semantics.known.trusted import is_installed

__all__ = ["Module", "Selection", "compiled", "watch_imports", "with_steps"]

log = logger("faults")

# With a number: what stands for a step, or for what notes a loop, in code until it is compiled.
PLACEHOLDER, LOOP = "\0@torchjanus-step-", "\0@torchjanus-loop-"


@dataclass(slots=True)
class Selection:
    """Which steps are wanted, by patterns of function names or ``file:line``; and what was found.

    ``after``: see ``Step``. ``read_later``: whether code that
    is not in the module may read any of its variables, as the cells of a notebook do.

    ``taken``: the steps that are speculated on. ``left``: the candidates that are not, with the reason.
    """

    only: Sequence[str] = ()
    exclude: Sequence[str] = ()
    after: float | None = None
    read_later: bool = False
    taken: list[Step] = field(default_factory=list)
    left: list[tuple[str, Candidate, str]] = field(default_factory=list)

    def reasons(self) -> list[str]:
        """Return the candidates that are left to Python, each with its place and the reason."""
        return [f"{file}:{candidate.line} ({candidate}): {why}" for file, candidate, why in self.left]

    def unwatched(self) -> list[str]:
        """Return the steps that were over before one of their calls was watched."""
        return [f"{step.description}: {why}" for step in self.taken if (why := step.unwatched)]

    def remember(self) -> None:
        """Keep for later runs what this one, now over, has seen of the steps. A fault here is not the program's."""
        for step in self.taken:
            try:
                step.remember()
            except Exception as error:
                log.warning("internal fault in torchjanus: what was seen of %s is not kept", step, exc_info=error)

    def wants(self, file: str, candidate: Candidate) -> bool:
        """Whether the patterns let a candidate of ``file`` pass."""
        # A report names the first line of a loop's body, a dry run that of the loop: either is understood.
        lines = (candidate.line, candidate.body[0].lineno)
        names = [candidate.name, *(f"{at}:{line}" for at in (file, os.path.basename(file)) for line in lines)]

        def met(patterns: Sequence[str]) -> bool:
            return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)

        return (not self.only or met(self.only)) and not met(self.exclude)


@dataclass(frozen=True, slots=True)
class Module:
    """A module's code, and the steps that its code calls. They are to be bound to the module's variables before it
    runs."""

    code: CodeType
    steps: tuple[Step, ...] = ()

    def bind(self, module_globals: dict[str, Any]) -> None:
        """Give the steps the module's variables."""
        for step in self.steps:
            step.bind(module_globals)


def compiled(source: str | bytes, file: str, selection: Selection | None, library: str | None = None) -> Module:
    """Compile a module as Python does, with its steps outlined if any are wanted. Raises what ``compile`` raises.

    ``library``: the name of a module of an installed package.
    """
    plain = compile(source, file, "exec", dont_inherit=True)  # with the warnings that Python gives
    text = importlib.util.decode_source(source) if isinstance(source, bytes) else source
    if selection is None or not (library or mentions_training(text)):
        return Module(plain)
    return with_steps(ast.parse(text, file), plain, selection, library=library)


def with_steps(
    tree: ast.Module, plain: CodeType, selection: Selection, behind: int = 0, library: str | None = None
) -> Module:
    """Compile a module with its steps outlined, without its first ``behind`` statements. ``plain``: its code."""
    file = plain.co_filename
    first = tree.body[behind].lineno if behind < len(tree.body) else math.inf
    places = definitions(tree)
    imported = next((found.imported for group in places.values() for found in group), frozenset())
    steps: list[Step] = []
    outlined: list[tuple[Candidate, Outlined]] = []
    waiting = steps_in(tree, library)[::-1]
    while waiting:
        candidate = waiting.pop()
        if candidate.line < first:
            continue  # it has been defined, or has run
        if not selection.wants(file, candidate):
            selection.left.append((file, candidate, "it is not among those asked for"))
            waiting += candidate.instead[::-1]
            continue
        try:
            made = outline(candidate, tree, f"{PLACEHOLDER}{len(steps)}", read_later=selection.read_later)
            found = Found(made.function, candidate.private, imported)
            step = Step(_alone(candidate, found, plain), candidate, os.path.basename(file), selection.after)
        except NotOutlined as why:
            selection.left.append((file, candidate, str(why)))
            waiting += candidate.instead[::-1]
            continue
        steps.append(step)
        outlined.append((candidate, made))
    if not steps and not behind:
        return Module(plain)
    selection.taken += steps
    stands_for: dict[str, Any] = {f"{PLACEHOLDER}{number}": step for number, step in enumerate(steps)}
    loops = _noted(tree, [candidate for candidate, _ in outlined], steps)
    named = [(loop, f"{LOOP}{number}") for number, loop in enumerate(loops)]
    stands_for |= {name: loops[loop] for loop, name in named}
    code = filled(_compiled_with(tree, plain, outlined, behind, named), stands_for)
    _adopt_old(code, places)
    return Module(code, tuple(steps))


def _alone(candidate: Candidate, found: Found, plain: CodeType) -> CodeType:
    """Return the code of an outlined candidate. Raises NotOutlined if it cannot be compiled by itself."""
    name = "<module>" if isinstance(candidate.scope, ast.Module) else candidate.scope.name
    flags = plain.co_flags | (inspect.CO_NESTED if candidate.around else 0)
    try:
        code = compile_alone(found.node, plain.replace(co_name=name, co_qualname=candidate.name, co_flags=flags), found)
    except SyntaxError as error:
        raise NotOutlined(f"it cannot stand by itself: {error.msg}") from error
    adopt(code, found)
    return code


def _noted(tree: ast.Module, taken: Sequence[Candidate], steps: Sequence[Step]) -> dict[ast.For, NotedLoop]:
    """Tell the steps which loops are around them. Returns the loops that are to be noted, which are in none of the
    steps: a step's code is the program's own."""
    inside = {node for one in taken for part in one.body for node in ast.walk(part) if isinstance(node, ast.For)}
    loops: dict[ast.For, NotedLoop] = {}

    def noted(loop: ast.For) -> NotedLoop:
        return loops.setdefault(loop, NotedLoop(loop.lineno))

    for candidate, step in zip(taken, steps, strict=True):
        step.around = loops_around(tree, candidate, noted)
    return {loop: one for loop, one in loops.items() if loop not in inside}


def _compiled_with(
    tree: ast.Module,
    plain: CodeType,
    outlined: Sequence[tuple[Candidate, Outlined]],
    behind: int,
    loops: Sequence[tuple[ast.For, str]],
) -> CodeType:
    """Compile the module with each candidate's statements replaced, without its first ``behind`` statements, and the
    loops noted by the constants beside them. The tree is afterwards what it was."""
    holders = [candidate.block or candidate.scope for candidate, _ in outlined]
    old, iterated = [holder.body for holder in holders], [loop.iter for loop, _ in loops]
    for holder, (_, made) in zip(holders, outlined, strict=True):
        holder.body = made.body
    for loop, name in loops:
        loop.iter = noting(loop, name)
    rest = tree
    if behind:  # a string that comes first now is no docstring
        rest = ast.Module([place(ast.Pass(), location_of(tree.body[behind - 1])), *tree.body[behind:]], [])
    try:
        with unwarned():  # they were given for the plain code; and here constants are called
            code: CodeType = compile(rest, plain.co_filename, "exec", plain.co_flags & FUTURE, dont_inherit=True)
            return code
    finally:
        for holder, body in zip(holders, old, strict=True):
            holder.body = body
        for (loop, _), node in zip(loops, iterated, strict=True):
            loop.iter = node


def _adopt_old(code: CodeType, places: dict[tuple[int, str], list[Found]]) -> bool:
    """Give functions that call steps, or note loops, their original definition, for rewriting: their code is not what
    the file says. Returns whether there are any in ``code``."""
    inner = [_adopt_old(value, places) for value in code.co_consts if isinstance(value, CodeType)]
    calls = any(inner) or any(isinstance(value, Step | NotedLoop) for value in code.co_consts)
    known = places.get((code.co_firstlineno, code.co_name))
    if calls and known:
        adopt(code, known[0])
    return calls


# ---- imported modules ----


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with its steps outlined. Nothing is read from or written to a cache. ``library``: the name of a
    module of an installed package."""

    def __init__(self, fullname: str, path: str, selection: Selection, library: str | None) -> None:
        super().__init__(fullname, path)
        self._selection = selection
        self._library = library

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the module."""
        made = compiled(self.get_data(self.path), self.path, self._selection, self._library)
        made.bind(module.__dict__)
        exec(made.code, module.__dict__)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules as Python does, and loads those that may contain a step by ``_Loader``."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's spec with another loader; None for what is left to Python."""
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not importlib.machinery.SourceFileLoader or spec.origin is None:
            return None
        if is_installed(spec.origin) or spec.origin.startswith((_LIBRARY, OWN_FOLDER)):
            if is_searched(fullname):
                spec.loader = _Loader(fullname, spec.origin, self._selection, fullname)
                return spec
            return None
        try:
            text = importlib.util.decode_source(spec.loader.get_data(spec.origin))
        except (OSError, SyntaxError, UnicodeDecodeError):
            return None  # Python reports it
        if not mentions_training(text):
            return None
        spec.loader = _Loader(fullname, spec.origin, self._selection, None)
        return spec


_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep


def watch_imports(selection: Selection) -> None:
    """From now on, modules of the program's own are imported with their steps outlined."""
    sys.meta_path.insert(0, _Finder(selection))
