"""Watch comprehensions: record the elements of the list under construction, which no variable holds."""

from __future__ import annotations

from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.known.trusted import is_installed
from torchjanus.semantics.watch.objects.state import Part

__all__ = ["Comprehensions"]

_NUMBERS = (int, float)


class Comprehensions(Part):
    """The comprehensions that are running."""

    def making(self, at: Site) -> int:
        if is_installed(at.file):
            return -1
        self.recording.variable_changes.making.append((_place(at), [], len(self.recording.trace.events)))
        return len(self.recording.variable_changes.making) - 1

    def gathered(self, at: Site, value: Any) -> Any:
        here = _place(at)
        for place, held, _ in reversed(self.recording.variable_changes.making):
            # An exception has ended those above it.
            if place == here:
                held.append(value)
                break
        return value

    def made(self, at: Site, level: int, container: Any) -> Any:
        making = self.recording.variable_changes.making
        if not 0 <= level < len(making):
            return container
        _, held, start = making[level]
        del making[level:]
        trace = self.recording.trace
        if type(container) is list and len(held) != len(container):
            # A comprehension at the same place, ended by an exception, has taken elements: the states are wrong.
            trace.frames[:] = [frames for frames in trace.frames if frames.end <= start]
        elif type(container) is list and any(position >= start for position in reversed(trace.changed)):
            if all(isinstance(value, _NUMBERS) for value in held):
                self.recording.keep(container)
                self.recording.variable_changes.note_finished(held, container)
        return container


def _place(at: Site) -> tuple[Any, ...]:
    return (at.file, at.line, at.column, at.end_line, at.end_column)
