"""Finds the steps of a script or notebook that asks for it in its first line, as ``torchjanus run`` does for others."""

from __future__ import annotations

import ast
import atexit
import sys
import time
import warnings
from pathlib import Path
from types import CodeType, FrameType

from torchjanus import runtime
from torchjanus.cli.discovery import Selection, watch_imports, with_steps
from torchjanus.cli.notebook import notebook, watch_cells
from torchjanus.cli.ranks import with_other_ranks
from torchjanus.cli.script import INTERRUPTED, execute, interrupt
from torchjanus.cli.summary import print_report, summary_of
from torchjanus.core.errors import Unsupported

__all__ = ["install"]

_COMMAND = "torchjanus.cli.script"  # which runs a script, and reports on it

_installed: Selection | None = None


def install(*, report: bool = True, after: float | None = None) -> None:
    """Find the training and evaluation steps of what follows, and speculate on them, as ``torchjanus run`` does.

    In a script it is a statement of its own at the top, behind ``import torchjanus``: what stands behind it is run from
    here, and the program ends with it. In a notebook it holds for the cells that are run afterwards. Modules of the
    program's own are searched when they are imported. ``report``: whether a report is printed when the program ends.
    ``after``: seconds that Python's calls of a step take together before one is watched; without it, one is watched
    once the calls are expected to take so long in all that it costs them little.

    Where what follows cannot be seen it warns, and only modules are searched: in a function or a block, in a module
    that is imported, under a debugger or profiler that runs the script, without a source file.
    """
    global _installed
    caller = sys._getframe(1)
    name = caller.f_globals.get("__name__")
    if name == "__mp_main__" or _installed is not None:
        return  # a process that multiprocessing has started imports the script; or it is repeated in a notebook
    shell, rest = notebook(), None
    if shell is None:
        try:
            rest = _rest(caller)
        except Unsupported as why:
            warnings.warn(f"torchjanus.install() finds no steps in this file: {why}", stacklevel=2)
    _installed = selection = Selection(after=after)
    runtime.keep_speculated()
    watch_imports(selection)
    if shell is not None:
        watch_cells(shell, selection)
    if rest is None:
        return
    begun = time.perf_counter()
    if report and not _is_command(caller.f_back):
        atexit.register(_report, caller.f_code.co_filename, begun, selection)
    tree, plain, behind = rest
    exit_code = execute(with_steps(tree, plain, selection, behind), caller.f_globals)
    if exit_code is INTERRUPTED:
        interrupt()
    raise SystemExit(exit_code)


def _rest(caller: FrameType) -> tuple[ast.Module, CodeType, int]:
    """Return the main script's tree and code, and how many of its statements have been run with the one that calls
    install(). Raises Unsupported."""
    code = caller.f_code
    if caller.f_globals.get("__name__") != "__main__" or code.co_name != "<module>":
        raise Unsupported("it is called by a function, or by a module that is imported. Call it at the script's top.")
    around = caller.f_back
    while around is not None and not _is_command(around):
        if around.f_globals.get("__name__") != "runpy":
            raise Unsupported(
                f"the script is run by {around.f_code.co_filename}. 'torchjanus run' may stand before it."
            )
        around = around.f_back
    try:
        source = Path(code.co_filename).read_bytes()
        same = compile(source, code.co_filename, "exec", dont_inherit=True) == code
    except (OSError, SyntaxError, ValueError) as error:
        raise Unsupported(f"its source cannot be read: {error}") from error
    if not same:
        raise Unsupported("the file is not what Python runs: it has changed since")
    line, _, column, _ = [*code.co_positions()][caller.f_lasti // 2]
    tree = ast.parse(source, code.co_filename)
    for number, statement in enumerate(tree.body, 1):
        end = statement.end_lineno, statement.end_col_offset
        if (statement.lineno, statement.col_offset) <= (line, column or 0) < end and isinstance(statement, ast.Expr):
            return tree, code, number
    raise Unsupported("it is called in a block. Call it in a statement of its own at the script's top.")


def _report(script: str, begun: float, selection: Selection) -> None:
    summary = summary_of(script, sys.argv[1:], 0, time.perf_counter() - begun, selection)
    if (whole := with_other_ranks(summary)) is not None:
        print_report(whole, detail=False)


def _is_command(frame: FrameType | None) -> bool:
    return frame is not None and frame.f_globals.get("__name__") == _COMMAND
