"""Finds the steps in the cells of a notebook, and reports on them behind the cell. Knows of IPython what its shell
offers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from typing import Any

from torchjanus.cli.discovery import Module, Selection, Step, compiled
from torchjanus.cli.discovery.candidates import mentions_training
from torchjanus.cli.discovery.trainers import steps_in
from torchjanus.core.lazy import deferred

__all__ = ["load_ipython_extension", "notebook", "watch_cells"]

explanation = deferred("torchjanus.runtime.report.explanation")

MAGIC = "torchjanus"


def notebook() -> Any:
    """Return IPython's shell, if the program runs in one."""
    given = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if given is None else given()


def load_ipython_extension(shell: Any) -> None:
    """Define the magic of ``%load_ext torchjanus``: ``%%torchjanus`` before a cell, ``%torchjanus`` for a report."""
    _magic(shell, Selection())


def watch_cells(shell: Any, selection: Selection) -> None:
    """Run each cell that has a step as if ``%%torchjanus`` stood before it."""
    _magic(shell, selection)

    def marked(lines: list[str]) -> list[str]:
        text = "".join(lines)
        return [f"get_ipython().run_cell_magic({MAGIC!r}, '', {text!r})\n"] if _has_step(text) else lines

    shell.input_transformers_post.append(marked)


def _has_step(text: str) -> bool:
    if not mentions_training(text):
        return False
    try:
        return bool(steps_in(ast.parse(text)))
    except SyntaxError:
        return False  # IPython reports it


def _magic(shell: Any, selection: Selection) -> None:
    selection.read_later = True
    made: dict[str, Module] = {}  # by name, which is made of the text: a cell that is run again goes on with its steps
    steps: list[Step] = []

    def run(line: str, cell: str | None = None) -> None:
        """Run a cell with its steps speculated on, and report on them; without a cell, report on all steps so far."""
        if cell is None:
            _report(steps, line.strip() == "--detail")
            return
        text = shell.transform_cell(cell)
        name = shell.compile.cache(text, shell.execution_count)
        if name not in made:
            made[name] = compiled(text, name, selection)
            made[name].bind(shell.user_ns)
            steps.extend(made[name].steps)
        exec(made[name].code, shell.user_ns)
        _report(made[name].steps, line.strip() == "--detail")

    shell.register_magic_function(run, "line_cell", MAGIC)


def _report(steps: Sequence[Step], detail: bool) -> None:
    for step in steps:
        if step.speculated is not None:
            print(explanation.explain(step.speculated, detail=detail), end="\n\n")
        elif step.unwatched:
            print(f"{step.description} is Python's so far: {step.unwatched}\n")
