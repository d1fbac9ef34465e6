"""The ``torchjanus`` command: its options and exit codes. It uses the package as a user would."""

from __future__ import annotations

import argparse
import functools
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torchjanus import runtime
from torchjanus.cli.discovery import Selection, compiled, watch_imports
from torchjanus.cli.ranks import with_other_ranks
from torchjanus.cli.reasons import listing, page
from torchjanus.cli.script import INTERRUPTED, NotRunnable, interrupt, load, locate, run
from torchjanus.cli.status import show_status
from torchjanus.cli.summary import print_report, print_steps, summary_of, write_json, write_page, write_trace
from torchjanus.core.errors import Unsupported
from torchjanus.core.lazy import deferred
from torchjanus.core.reasons import reasons
from torchjanus.core.versions import VERSION, installed_torch
from torchjanus.execute.compiled import server
from torchjanus.runtime.runs.registry import executor_in_use

__all__ = ["main"]

debug = deferred("torchjanus.cli.debug")
USAGE_ERROR = 2


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="torchjanus", description="A speculative just-in-time compiler.", allow_abbrev=False
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    running = commands.add_parser(
        "run",
        help="run a script as python would, and report on what was speculated",
        description="Run SCRIPT as 'python SCRIPT ARGS...' would; then say what was speculated on, and why. "
        "Nothing needs to be marked in it: the training and evaluation steps are found. "
        "The report goes to standard error, so that the script's own output stays as it is.",
        allow_abbrev=False,
    )
    running.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module, as for python -m")
    running.add_argument(
        "--only", metavar="NAME", action="append", default=[], help="steps to take: a function's name, or file:line"
    )
    running.add_argument(
        "--not", dest="exclude", metavar="NAME", action="append", default=[], help="steps to leave to Python"
    )
    running.add_argument(
        "--dry-run", action="store_true", help="say which steps would be taken in the script; run nothing"
    )
    running.add_argument(
        "--after",
        type=float,
        metavar="SECONDS",
        help="Python's calls of a step before it is watched; without it, a step is watched once that costs it little",
    )
    running.add_argument("--marked", action="store_true", help="only what the script marks itself; find no steps")
    running.add_argument("--json", type=Path, metavar="FILE", help="also write the report to FILE, for programs")
    running.add_argument("--report", type=Path, metavar="FILE", help="also write the report to FILE, a page of HTML")
    running.add_argument("--trace", type=Path, metavar="FILE", help="also write the calls to FILE, for Perfetto")
    running.add_argument("--detail", action="store_true", help="print all that is known, not a screen a step")
    running.add_argument("--no-report", action="store_true", help="do not print the report")
    running.add_argument("--executor", metavar="NAME", help="the executor of functions that do not name one")
    running.add_argument("script", metavar="SCRIPT")
    running.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGS")
    explaining = commands.add_parser("explain", help="say what a reason code of a report means, and what to do")
    explaining.add_argument("code", nargs="?", metavar="CODE", help="the code; without it, all are listed")
    explaining.add_argument("--all", action="store_true", help="print all entries, as Markdown")
    debugging = commands.add_parser(
        "debug",
        help="run a script and print its steps at every stage: source, trace, passes, graph, guards, commit",
        description="Run SCRIPT as 'python SCRIPT ARGS...' would; then print what each pass made of its speculated "
        "functions. Arguments of the script come behind '--'.",
        allow_abbrev=False,
    )
    debugging.add_argument("--function", metavar="NAME", help="only this function")
    debugging.add_argument("--pass", dest="only", metavar="NAME", help="only what this pass gave")
    debugging.add_argument("--list-passes", action="store_true", help="print the table of passes, and run nothing")
    debugging.add_argument("--executor", metavar="NAME", default="replay", help="of functions that name none")
    debugging.add_argument("script", metavar="SCRIPT", nargs="?")
    commands.add_parser("version", help="print the versions of torchjanus, PyTorch and Python")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code. Argument errors exit with 2, as argparse does."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    rest: list[str] = []
    if given[:1] == ["debug"] and "--" in given:  # options may stand on both sides of the script
        given, rest = given[: given.index("--")], given[given.index("--") + 1 :]
    options = parser().parse_args(given)
    if options.command == "version":
        print(f"torchjanus {VERSION}, PyTorch {installed_torch()}, Python {platform.python_version()}")
        return 0
    if options.command == "explain":
        return explain_code(options.code, options.all)
    if options.command == "debug":
        wanted = options.function, options.only, options.list_passes, options.executor
        return int(debug.debug_command(options.script, rest, *wanted))
    selection = None if options.marked else Selection(options.only, options.exclude, options.after)
    exit_code = run_command(options, selection, alone=arguments is None)
    if exit_code is INTERRUPTED and arguments is None:
        interrupt()
    return exit_code


def run_command(options: argparse.Namespace, selection: Selection | None, *, alone: bool) -> int:
    """Run a script and report on it. ``selection``: which steps to look for, if any; ``alone``: whether this process
    has done nothing else. Returns the exit code."""
    script, arguments, executor = options.script, options.arguments, options.executor
    module = script if options.module else None
    try:
        if module is not None:
            script = str(locate(module))
        code = load(script, functools.partial(compiled, selection=selection))
    except NotRunnable as error:
        return refuse(str(error))
    if options.dry_run:
        found = selection or Selection()
        print_steps([step.description for step in found.taken], found.reasons())
        return 0
    for file in filter(None, (options.json, options.report, options.trace)):
        if not file.absolute().parent.is_dir():
            return refuse(f"cannot write {file}: there is no folder {file.absolute().parent}")
    if executor is not None:
        try:
            runtime.default_executor(executor)
        except Unsupported as error:
            return refuse(str(error))
    # A step that is local to the script's main() would be destroyed before the report is made.
    runtime.keep_speculated()
    if selection is not None:
        watch_imports(selection)
    if executor_in_use() != "replay" and (selection is None or selection.after is not None):
        # The server imports nothing until a graph will be made, unless the user wants graphs at once. On many machines
        # two cores are halves of one, so importing would slow the script. A short script would also pay for the fork,
        # whose memory is copied as it changes, and gain nothing.
        server.start(forks=alone, lowers=selection is not None and selection.after == 0, compiles=False)
    show_status()
    begin = time.perf_counter()
    exit_code = run(code, script, arguments, module)
    if selection is not None and not exit_code:
        selection.remember()
    summary = summary_of(script, arguments, exit_code, time.perf_counter() - begin, selection)
    if (whole := with_other_ranks(summary)) is None:
        return exit_code
    if not options.no_report:
        print_report(whole, options.detail)
    for given, write in ((options.json, write_json), (options.report, write_page), (options.trace, write_trace)):
        if given is not None:
            write(whole, given)
    return exit_code


def explain_code(code: str | None, everything: bool) -> int:
    """Print the entry of a reason code; without a code the list, or all entries. Returns the exit code."""
    if code is None:
        print(page() if everything else listing())
    elif (known := reasons().get(code.strip("[]"))) is not None:
        print(known)
    else:
        return refuse(f"there is no reason code {code}: 'torchjanus explain' lists them")
    return 0


def refuse(why: str) -> int:
    print(f"torchjanus: {why}", file=sys.stderr)
    return USAGE_ERROR
