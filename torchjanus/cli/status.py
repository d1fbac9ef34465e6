"""What a person at a terminal sees while the program runs: when the state of a step changes, and each refusal once."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from typing import Any

from torchjanus.core.errors import Place
from torchjanus.core.settings import STATUS
from torchjanus.runtime.runs.records import LISTENERS

__all__ = ["show_status"]

# Kinds of events that change who makes the calls, or that the user should see at once.
_SHOWN = {
    "lowering": "a graph is being made",
    "executor": "",
    "imperative": "",
    "closed": "",
    "refused": "left to Python",
    "fault": "",
    "verify": "",
}


def show_status() -> bool:
    """Print such lines from now on, if TORCHJANUS_STATUS is 1, or standard error is a terminal. Returns whether."""
    given = STATUS.given
    shown = given == "1" or (given != "0" and sys.stderr is not None and sys.stderr.isatty())
    if shown and _show_event not in LISTENERS:
        LISTENERS.append(_show_event)
    return shown


def _show_event(name: str, kind: str, text: str, place: Place) -> None:
    if kind not in _SHOWN:
        return
    where = f"{os.path.basename(place.file)}:{place.line}: " if place.line else ""
    before = f"{_SHOWN[kind]}: " if _SHOWN[kind] else ""
    line = " ".join(f"torchjanus: {name}: {where}{before}{text}".split())
    width = shutil.get_terminal_size().columns - 1
    _write(line if len(line) <= width or kind == "refused" else f"{line[: width - 4]} ...")


def _write(line: str) -> None:
    """Print a line to standard error, above progress bars if there are any."""
    tqdm: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)
    with contextlib.suppress(OSError, ValueError):  # the terminal is gone, or the program has closed the stream
        if tqdm is not None:
            tqdm.write(line, file=sys.stderr)
        else:
            print(line, file=sys.stderr, flush=True)
