"""The environment variables that torchjanus reads: one table, which docs/reference/settings.md repeats.

Knows nothing of who reads them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["CACHE", "COEXECUTION", "DUMP", "EXECUTOR", "LOGS", "SETTINGS", "STANCE", "STATUS", "Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable. ``values``: what it may be; ``meaning``: what it does, in a sentence."""

    name: str
    values: str
    meaning: str

    @property
    def given(self) -> str | None:
        """What the environment says now; None where it says nothing."""
        return os.environ.get(self.name)


CACHE = Setting(
    "TORCHJANUS_CACHE",
    "a folder; empty: nothing is kept",
    "where compiled graphs are kept for later runs, 2 GB at most; without it, the platform's folder for caches",
)
COEXECUTION = Setting(
    "TORCHJANUS_COEXECUTION",
    "`auto`, `overlapped`, `lazy`",
    "when graphs of co-executed steps run: by measure, beside Python in a thread, or when Python waits for a value",
)
DUMP = Setting("TORCHJANUS_DUMP", "a folder", "the program after each pass is written there, as text")
EXECUTOR = Setting(
    "TORCHJANUS_EXECUTOR", "`auto`, `replay`, `inductor`, `cudagraph`", "the executor of functions that do not name one"
)
LOGS = Setting(
    "TORCHJANUS_LOGS",
    "topics of the log with commas between them, or `all`; `+topic`: details too",
    "these messages are printed to standard error",
)
STANCE = Setting(
    "TORCHJANUS_STANCE",
    "`default`, `force_eager`, `eager_on_new_graph`, `fail_on_new_graph`",
    "the stance that the program begins with",
)
STATUS = Setting(
    "TORCHJANUS_STATUS",
    "`1`, `0`",
    "whether a line tells when the state of a step changes; without it, `torchjanus run` does so on a terminal",
)

SETTINGS = (CACHE, COEXECUTION, DUMP, EXECUTOR, LOGS, STANCE, STATUS)
