"""Runs a script as ``python SCRIPT ARGS...`` would, or a module as ``python -m MODULE ARGS...``. It does not know
speculation: the caller decides how source is compiled."""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

from torchjanus.core.errors import OWN_FOLDER, JanusError

__all__ = ["INTERRUPTED", "NotRunnable", "Program", "execute", "interrupt", "load", "locate", "run"]


class _Interrupted(int):
    """The exit code of a program that SIGINT has ended, as a shell reports it."""


INTERRUPTED = _Interrupted(128 + 2)


class NotRunnable(Exception):
    """The script does not exist, or is no Python script. The message is one line and names the script."""


class Program(Protocol):
    """A compiled main module."""

    @property
    def code(self) -> types.CodeType:
        """What runs."""
        ...

    def bind(self, module_globals: dict[str, Any], /) -> None:
        """Give the code the variables of the module that it is about to run in."""
        ...


Compiler = Callable[[bytes, str], Program]


def locate(module: str) -> Path:
    """Return the file that ``python -m MODULE`` runs. Raises NotRunnable."""
    sys.path[0:1] = [os.getcwd()]  # as python does, in place of the folder of the command's launcher
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{module}.__main__")
    except ImportError as error:
        raise NotRunnable(f"cannot import {module}: {error}") from None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise NotRunnable(f"there is no module {module} with a source file to run")
    return Path(spec.origin)


def load(script: str, compiler: Compiler) -> Program | SyntaxError:
    """Return the script's code. For a Python file with a syntax error return that error: running reports it as python
    does."""
    path = Path(script)
    if path.is_dir():
        raise NotRunnable(f"{script} is a directory: name the script in it that is to be run")
    try:
        source = path.read_bytes()
    except FileNotFoundError:
        raise NotRunnable(f"there is no file {script}") from None
    except OSError as error:
        raise NotRunnable(f"cannot read {script}: {error.strerror}") from None
    try:
        return compiler(source, os.path.abspath(script))
    except (SyntaxError, ValueError) as error:  # ValueError: null bytes, before Python 3.12
        if isinstance(error, SyntaxError) and path.suffix in (".py", ".pyw") and b"\0" not in source:
            return error.with_traceback(None)  # as if the interpreter had met it
        raise NotRunnable(f"{script} is not a Python script: {error}") from None


def run(program: Program | SyntaxError, script: str, arguments: Sequence[str], module: str | None = None) -> int:
    """Run a program as the main module, and return the exit code that python would end with. ``module``: the name by
    which ``python -m`` was to find it, if it is no script.

    As in python, ``sys.argv``, ``sys.path`` and ``__main__`` stay as the script left them: exit handlers and threads
    that outlive the script may use them.
    """
    main = types.ModuleType("__main__")
    main.__file__ = os.path.abspath(script)  # stays valid when the script changes the directory; argv[0] is as given
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", main.__file__)
    main.__dict__.update(__annotations__={}, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    if "__mp_main__" in sys.modules:  # what a process of the script's says of the classes that it has sent
        sys.modules["__mp_main__"] = main
    sys.argv = [script, *arguments]
    if module is not None:
        main.__package__ = module.rpartition(".")[0] if Path(script).stem != "__main__" else module
        main.__spec__ = importlib.util.find_spec(module if Path(script).stem != "__main__" else f"{module}.__main__")
    else:
        # The first element belongs to the command (the folder of its launcher, or the current one under -m).
        sys.path[0:1] = [str(Path(script).resolve().parent)]
    return execute(program, main.__dict__)


def execute(program: Program | SyntaxError, variables: dict[str, Any]) -> int:
    """Run a program in the main module that has these variables, and return python's exit code."""
    try:
        if isinstance(program, SyntaxError):
            raise program
        program.bind(variables)
        exec(program.code, variables)
    except SystemExit as request:
        return exit_code(request)
    except BaseException as error:
        error.__traceback__ = users_part(error)  # the interpreter's own hook shows this, not its third argument
        sys.excepthook(type(error), error, error.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    return 0


def interrupt() -> NoReturn:
    """End the process as Python ends one that SIGINT has interrupted, but for the traceback, which has been printed."""
    sys.excepthook = lambda *_: None
    raise KeyboardInterrupt


def exit_code(request: SystemExit) -> int:
    """Return python's exit code for ``sys.exit(x)``: 0 for None, a number itself; all else is printed, and the code is
    1."""
    if request.code is None:
        return 0
    if isinstance(request.code, int):
        return request.code
    print(request.code, file=sys.stderr)
    return 1


def users_part(error: BaseException) -> types.TracebackType | None:
    """Return the error's traceback without torchjanus' own frames.

    If the innermost frame is torchjanus' and the error is not one that it raises on purpose, that is a bug of
    torchjanus: only the frames of this module are removed, so that it can be reported.
    """
    frames: list[types.TracebackType] = []
    position = error.__traceback__
    while position is not None:
        frames.append(position)
        position = position.tb_next
    ours = [frame.tb_frame.f_code.co_filename.startswith(OWN_FOLDER) for frame in frames]
    hidden = ours
    if ours and ours[-1] and not isinstance(error, JanusError):
        hidden = [frame.tb_frame.f_code.co_filename == __file__ for frame in frames]
    chain: types.TracebackType | None = None
    for frame, hide in zip(reversed(frames), reversed(hidden), strict=True):
        if not hide:
            chain = types.TracebackType(chain, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return chain
