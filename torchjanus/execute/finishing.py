"""Runs the rest of generated straight-line code after one of its lines has raised, so that an update is completed.

An update that has begun cannot be undone, and the call cannot be repeated. But a line that raised has done nothing: it
is run again, and then the remaining lines, with the variables as they were. That overcomes transient causes, such as
memory that is free again meanwhile. This module does not know what the lines do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import CodeType, FrameType
from typing import Any

from torchjanus.execute.memory import give_back

__all__ = ["failed_in", "finished", "rest_of"]


def failed_in(error: BaseException, code: CodeType) -> tuple[FrameType, int] | None:
    """Return the frame of generated code in which an error was raised, and its line number, counted from 1; None where
    the error did not pass through it."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code is code:
            return step.tb_frame, step.tb_lineno
        step = step.tb_next
    return None


def rest_of(lines: Sequence[str], number: int) -> list[str]:
    """Return the lines that remain from line ``number`` (counted from 0): within a loop first the rest of the
    iteration, then the other iterations, for which a variable has to hold the loop's iterator. Supports ``for`` and
    ``if``."""
    found: list[str] = []
    position, depth = number, _depth(lines[number])
    while True:
        end = next((n for n in range(position, len(lines)) if _depth(lines[n]) < depth), len(lines))
        found += [line[depth:] for line in lines[position:end]]
        header = next((n for n in range(position - 1, -1, -1) if _depth(lines[n]) < depth), None)
        if header is None:
            return found
        position, depth = end, _depth(lines[header])
        if lines[header].lstrip().startswith("for "):
            found += [line[depth:] for line in lines[header:end]]


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def finished(rest: Sequence[str], variables: Mapping[str, Any], names: Mapping[str, Any], what: str) -> Any:
    """Run the lines with these variables and these global names; return what they return. Raises what they raise."""
    give_back()
    given = {name: value for name, value in variables.items() if name.isidentifier()}
    scope = dict(names)
    text = "\n".join([f"def rest({', '.join(given)}):", *(f"    {line}" for line in rest), "    pass"])
    exec(compile(text, what, "exec"), scope)
    return scope["rest"](**given)
