"""The summary of a script's speculated functions after its run: as text for people, as JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from torchjanus.report.chrome_trace import chrome_trace
from torchjanus.report.page import html_page

__all__ = [
    "FunctionSummary",
    "Speculated",
    "Summary",
    "print_report",
    "summarize",
    "write_json",
    "write_page",
    "write_trace",
]


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


def summarize(step: S, explain: Callable[[S], Explained]) -> FunctionSummary:
    # A speculated nn.Module or callable object has no name of its own.
    name = getattr(step, "__qualname__", None) or repr(step)
    explained = explain(step)
    counts = dataclasses.asdict(step.statistics())
    return FunctionSummary(name, counts, str(explained), explained.detailed(), explained.data())


def print_report(summary: Summary, detail: bool) -> None:
    """Print a screen on each function to standard error; with ``detail`` everything, unwrapped."""
    lines = ["", f"torchjanus: report on {summary.script}"]
    if not summary.functions:
        lines += [
            "Nothing was speculated on: no training or evaluation step was found whose calls take a second together.",
            "Mark the training step with @torchjanus.speculate, or call torchjanus.speculate(step).",
        ]
    if summary.left:
        lines += ["left to Python:", *(f"  {line}" for line in summary.left)]
    for function in summary.functions:
        lines += ["", (function.explanation if detail else function.screen).rstrip()]
    print("\n".join(lines), file=sys.stderr, flush=True)


def print_steps(taken: Sequence[str], left: Sequence[str]) -> None:
    """Print which steps would be speculated on, and which not and why."""
    print("\n".join([f"would speculate on: {line}" for line in taken] or ["no step was found"]))
    for line in left:
        print(f"left to Python: {line}")


def write_page(summary: Summary, path: Path) -> None:
    """Write the report as one page of HTML."""
    title = " ".join((summary.script, *summary.arguments))
    functions = [one.report for one in summary.functions]
    path.write_text(html_page(title, summary.seconds, functions, summary.left), encoding="utf-8")


def write_trace(summary: Summary, path: Path) -> None:
    """Write the calls as a trace for Perfetto."""
    path.write_text(json.dumps(chrome_trace([one.report for one in summary.functions])) + "\n")


def write_json(summary: Summary, path: Path) -> None:
    path.write_text(json.dumps(dataclasses.asdict(summary), indent=1) + "\n")
