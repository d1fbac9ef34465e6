"""``torchjanus debug``: a script is run, and its steps are printed at every stage: source, trace, passes, graph."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from torchjanus import runtime
from torchjanus.cli.discovery import Selection, compiled
from torchjanus.cli.script import NotRunnable, load, run
from torchjanus.core.errors import Unsupported
from torchjanus.graph.passes import PASSES, passes_table
from torchjanus.runtime.pass_log.pass_log import PassLog, keep_logs

__all__ = ["FAILED", "debug_command"]

FAILED = 1
USAGE_ERROR = 2
STAGES = ("source", "rewritten_source", "watched_run", "tree", "graph", "guards", "commit")
NAMES = (*STAGES, *dict.fromkeys(one.name for passes in PASSES for one in passes.passes))


def debug_command(
    script: str | None, arguments: Sequence[str], function: str | None, only: str | None, listed: bool, executor: str
) -> int:
    """Run the script and print the outcome of its steps to standard output. Return the exit code."""
    if listed:
        print(passes_table(), end="")
        return 0
    if script is None:
        return _fail("name a script, or ask for --list-passes", USAGE_ERROR)
    if only is not None and only not in NAMES:
        return _fail(f"there is no pass {only}: there are {', '.join(NAMES)}", USAGE_ERROR)
    try:
        code = load(script, functools.partial(compiled, selection=Selection()))
        runtime.default_executor(executor)
    except (NotRunnable, Unsupported) as error:
        return _fail(str(error), USAGE_ERROR)
    runtime.keep_speculated()
    keep_logs()
    ended = run(code, script, arguments)
    return _show(script, function, only) or ended


def _show(script: str, function: str | None, only: str | None) -> int:
    steps = [(step, step.pass_log) for step in runtime.speculated()]
    called = [(step, one) for step, one in steps if one is not None and step.statistics().calls]
    if not called:
        made = f" It makes {', '.join(one.name for _, one in steps if one)}, and never calls it." if steps else ""
        why = f"{script} calls no speculated function.{made} Mark the training step with @torchjanus.speculate."
        return _fail(why, FAILED)
    if function is not None:
        called = [(step, one) for step, one in called if function in (one.name, one.name.rpartition(".")[2])]
        if not called:
            known = ", ".join(dict.fromkeys(one.name for _, one in steps if one is not None))
            return _fail(f"{script} calls no speculated function {function}: there are {known}", FAILED)
    for _, one in called:
        print("\n".join(_lines(one, only)), flush=True)
    compiled = [one for _, one in called if one.complete]
    for step, one in called:
        if not one.complete:
            _fail(f"no graph was made of {one.name}: {_reason(step, one)}", FAILED)
    return 0 if compiled else FAILED


def _lines(one: PassLog, only: str | None) -> Iterator[str]:
    yield f"==== {one.name} ({one.place}) ===="
    for number, record in enumerate(one.records):
        if only not in (None, record.name):
            continue
        if record.same:
            yield f"---- {number:02d} {record.name}: unchanged since {record.same}"
        else:
            yield f"---- {number:02d} {record.name}"
            yield record.text


def _reason(step: Any, one: PassLog) -> str:
    """Why there is no graph of a step."""
    refusals = one.refusals or [*map(str, step.refusals)]
    if refusals:
        return refusals[-1]
    if step.given_up:
        return str(step.given_up)
    counts = step.statistics()
    if counts.watched < step.watch:
        return f"it was called {counts.calls} times, and {step.watch} runs are watched before a graph is made"
    return step.being_made or "no two of its runs were alike; torchjanus run says more"


def _fail(why: str, code: int) -> int:
    print(f"torchjanus: {why}", file=sys.stderr)
    return code
