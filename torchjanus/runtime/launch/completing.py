"""Completes a commit in which a line has raised: runs that line again, and the remaining lines.

All that may raise because of the program's values comes before the first write (see ``launch``). A line of a commit
that raises all the same is run again, unless it is a call of the program's own. This module does not know what is
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from torchjanus.execute.finishing import finished, rest_of
from torchjanus.host.deferred_writes import write_all

__all__ = ["MAKING", "WRITING", "Completing"]

MAKING = "try:  # making"  # how the two parts of a commit begin in the generated code
WRITING = "try:  # writing"
_EXTERN = "journal.commit("  # in lines of extern calls, which must not be made twice
_COMPLETING = "<torchjanus commit>"


class Completing:
    """The commit of one entry: the lines that make its values, and the lines that write them."""

    def __init__(
        self, making: Sequence[str], writing: Sequence[str], texts: Mapping[str, str], names: Mapping[str, Any]
    ) -> None:
        """The last of the lines sets ``result``. ``texts``: the generated functions, by name; ``names``: their
        constants."""
        self._parts = {MAKING: [*making], WRITING: [*writing]}
        self._texts = texts
        self._names = names

    def complete(self, error: BaseException, scope: Mapping[str, Any]) -> tuple[Any] | None:
        """Return the result of the call whose commit has raised ``error`` (as a tuple of one), or None where it could
        not be completed. To be called while the error is handled, in its frame."""
        raised = error.__traceback__
        if raised is None or not isinstance(error, Exception):
            return None
        frame, line = raised.tb_frame, raised.tb_lineno - 1
        lines = self._texts[frame.f_code.co_name].split("\n")
        start = next((n for n in range(line, -1, -1) if lines[n].strip() in self._parts), None)
        if start is None or _EXTERN in lines[line] or _is_within_writes(error):
            return None
        part = lines[start].strip()
        rest = rest_of(self._parts[part], line - start - 1)
        if part == MAKING:
            rest += rest_of(self._parts[WRITING], 0) if self._parts[WRITING] else []
        try:
            return (finished([*rest, "return result"], _variables(frame), {**scope, **self._names}, _COMPLETING),)
        except Exception:
            return None


def _variables(frame: FrameType) -> dict[str, Any]:
    return {name: value for name, value in frame.f_locals.items() if name not in ("constants", "error")}


def _is_within_writes(error: BaseException) -> bool:
    """Whether it was raised within a line that makes several writes."""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code is write_all.__code__:
            return True
        step = step.tb_next
    return False
