"""The summary of a script's speculated functions after its run: as text for people, as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torchjanus import runtime
from torchjanus.cli.discovery import Selection
from torchjanus.core.lazy import deferred
from torchjanus.host.collectives import communicated

__all__ = [
    "FunctionSummary", "Speculated", "Summary", "print_report", "summarize", "summary_of", "write_json", "write_page",
    "write_trace",
]  # fmt: skip

chrome_trace = deferred("torchjanus.runtime.report.chrome_trace")
explanation = deferred("torchjanus.runtime.report.explanation")
page = deferred("torchjanus.runtime.report.page")


class Speculated(Protocol):
    """What the summary needs of a speculated function."""

    def statistics(self) -> Any:
        """Return a dataclass of integers."""
        ...


class Explained(Protocol):
    """What the summary needs of an explanation; ``str()`` of it is one screen."""

    def detailed(self) -> str:
        """Return everything as text."""
        ...

    def data(self) -> dict[str, Any]:
        """Return everything as plain data."""
        ...


S = TypeVar("S", bound=Speculated)


@dataclass(frozen=True)
class FunctionSummary:
    """One speculated function: its name, its counts, and the text of its explanation."""

    name: str
    statistics: dict[str, int]
    screen: str  # what the report shows
    explanation: str  # everything
    report: dict[str, Any]  # the same as data


@dataclass(frozen=True)
class Summary:
    """One run of a script."""

    script: str
    arguments: tuple[str, ...]
    exit_code: int
    seconds: float
    functions: tuple[FunctionSummary, ...]
    left: tuple[str, ...] = ()  # what looked like a step and is Python's, each with the reason
    communicated: dict[str, Any] = field(default_factory=dict)  # by graphs: collectives, bytes, seconds in them
    ranks: tuple[dict[str, Any] | None, ...] = ()  # of the other ranks, as data; None: it sent none


def summarize(step: S, explain: Callable[[S], Explained]) -> FunctionSummary:
    # A speculated nn.Module or callable object has no name of its own.
    name = getattr(step, "__qualname__", None) or repr(step)
    explained = explain(step)
    counts = dataclasses.asdict(step.statistics())
    return FunctionSummary(name, counts, str(explained), explained.detailed(), explained.data())


def summary_of(
    script: str, arguments: Sequence[str], exit_code: int, seconds: float, selection: Selection | None
) -> Summary:
    """Return the summary of all functions that have been speculated on."""
    return Summary(
        script=script,
        arguments=tuple(arguments),
        exit_code=exit_code,
        seconds=seconds,
        functions=tuple(summarize(step, explanation.explain) for step in runtime.speculated()),
        left=() if selection is None else (*selection.reasons(), *selection.unwatched()),
        communicated=dataclasses.asdict(communicated),
    )


def print_report(summary: Summary, detail: bool) -> None:
    """Print a screen on each function to standard error; with ``detail`` everything, unwrapped."""
    lines = ["", f"torchjanus: report on {summary.script}"]
    if not summary.functions:
        found = "" if summary.left else ": no training or evaluation step was found"
        lines.append(f"Nothing was speculated on{found}.")
        if not summary.left:
            lines.append("A step can be marked with @torchjanus.speculate, or torchjanus.speculate(step).")
    if summary.left:
        lines += ["left to Python:", *map(_fitting, summary.left)]
    for function in summary.functions:
        lines += ["", (function.explanation if detail else function.screen).rstrip()]
    lines += _of_ranks(summary)
    print("\n".join(lines), file=sys.stderr, flush=True)


def _fitting(line: str) -> str:
    """Return an indented line, broken where a terminal is too narrow for it."""
    if not sys.stderr.isatty():
        return f"  {line}"
    width = shutil.get_terminal_size().columns - 1
    return textwrap.fill(line, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def _of_ranks(summary: Summary) -> list[str]:
    """Return the lines that compare the ranks of a job, if there are several."""
    if not summary.ranks:
        return []
    lines = ["", f"ranks: above is rank 0 of {len(summary.ranks) + 1}"]
    for number, rank in enumerate((dataclasses.asdict(summary), *summary.ranks)):
        if rank is None:
            lines.append(f"  rank {number}  has sent no report")
            continue
        for function in rank["functions"]:
            counts = function["statistics"]
            fates = ", ".join(f"{counts[name]} {name}" for name in ("watched", "missed", "violated", "imperative"))
            lines.append(
                f"  rank {number}  {function['name']}: {counts['speculated']} of {counts['calls']} served, {fates}"
            )
        spent = rank["communicated"]
        lines.append(
            f"  rank {number}  {spent['collectives']} collectives by graphs, {spent['bytes'] / 1e6:.1f} MB, "
            f"{spent['seconds']:.2f} s in them"
        )
    return lines


def print_steps(taken: Sequence[str], left: Sequence[str]) -> None:
    """Print which steps would be speculated on, and which not and why."""
    print("\n".join([f"would speculate on: {line}" for line in taken] or ["no step was found"]))
    for line in left:
        print(f"left to Python: {line}")


def write_page(summary: Summary, path: Path) -> None:
    """Write the report as one page of HTML."""
    title = " ".join((summary.script, *summary.arguments))
    functions = [one.report for one in summary.functions]
    path.write_text(page.html_page(title, summary.seconds, functions, summary.left), encoding="utf-8")


def write_trace(summary: Summary, path: Path) -> None:
    """Write the calls as a trace for Perfetto."""
    path.write_text(json.dumps(chrome_trace.chrome_trace([one.report for one in summary.functions])) + "\n")


def write_json(summary: Summary, path: Path) -> None:
    path.write_text(json.dumps(dataclasses.asdict(summary), indent=1) + "\n")
