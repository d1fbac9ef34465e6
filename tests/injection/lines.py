"""Makes each line of the code that torchjanus has generated for a step raise in turn, one of them in a call.

Guards, the graph operation by operation, also where inputs are overwritten by then, and the commit write by write: in
every call the outcome must be eager's, be it that Python makes the call or that what has begun is completed.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.programs import harness

__all__ = ["PROGRAMS", "Raised", "struck_lines"]

PROGRAMS = Path(__file__).with_name("steps.py")
_GENERATED = "<torchjanus "
_FIRST = 6  # calls that are only learned from
_IDLE = ("try:", "finally", "except", "del ")
# An extern call that raises is the program's own.
_WAITING = ("journal.commit(", "hold_interrupts", "release_interrupts")

Line = tuple[str, str, int]  # file, function, number


class Raised(RuntimeError):
    """What a line raises that is made to raise."""


class _Tracer:
    """Collects the lines of generated code that are run, or raises at one of them."""

    def __init__(self, at: Line | None = None) -> None:
        self.lines: dict[Line, None] = {}
        self.at = at
        self.struck = False

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(_GENERATED) or code.co_name in ("rest", "check"):
            return None
        return self._line

    def _line(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            line = frame.f_code.co_filename, frame.f_code.co_name, frame.f_lineno
            self.lines[line] = None
            if line == self.at and not self.struck:
                self.struck = True
                raise Raised(str(line))
        return self._line


def _is_left_out(line: Line, steps: Sequence[Any]) -> bool:
    """Lines of extern calls, what cannot raise (try, pass, return of what is there), and what has failed already."""
    for step in steps:
        for entry in step.entries:
            source = entry.launch.source.split("\n")
            if line[0] == "<torchjanus launch>" and line[2] <= len(source):
                text = source[line[2] - 1].strip()
                if (
                    text in ("pass", "return result")
                    or text.startswith(_IDLE)
                    or any(part in text for part in _WAITING)
                ):
                    return True
    return False


def struck_lines(name: str, nth: int = 1, first: int = 0) -> tuple[list[str], int, int]:
    """Run a program of the steps. Returns how it differs from eager, how many lines were made to raise, and how many
    calls a graph has made nonetheless. ``nth``: only each nth line from number ``first`` on."""
    module = harness.load_file(PROGRAMS)
    eager = harness.run_in(module, name, None)
    known: dict[Line, None] = {}
    waiting: list[Line] = []
    struck = 0
    arranged: dict[int, Any] = {}

    @contextlib.contextmanager
    def around(number: int, steps: Sequence[Any]) -> Iterator[None]:
        nonlocal struck
        for place, step in enumerate(steps):
            learning = step._learning
            if number >= _FIRST:
                arranged.setdefault(place, [*learning.routes])
                learning.routes.keep([*arranged[place]])
            policy = learning.policy
            policy._faults, policy._in_a_row, policy.given_up, policy.closed = 0, 0, "", ""
        tracer = _Tracer(waiting.pop(0) if waiting and number > _FIRST else None)
        before = sys.gettrace()
        if number >= _FIRST:
            sys.settrace(tracer)
        try:
            yield
        finally:
            sys.settrace(before)
        struck += tracer.struck
        if number >= _FIRST and tracer.at is None and not known:
            known.update(tracer.lines)
            lines = [line for line in known if not _is_left_out(line, steps)]
            waiting.extend(lines[first::nth])

    other = harness.run_in(harness.load_file(PROGRAMS), name, "replay", around)
    found = harness.compare(eager, other, getattr(module, name).spec.close)
    if waiting:
        found.append(f"{len(waiting)} lines are left: the program makes too few calls")
    return found, struck, sum(step.statistics().speculated for step in other.steps)
