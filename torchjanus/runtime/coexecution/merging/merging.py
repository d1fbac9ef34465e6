"""What is known of a step whose calls never take the same path twice: its operators, and whether they may be deferred.

Knows neither paths nor how often they vary.
"""

from __future__ import annotations

from torchjanus.runtime.coexecution.merging.merged_run import MergedRun
from torchjanus.runtime.coexecution.merging.operators import Operators
from torchjanus.runtime.coexecution.recording.recorder import Recorder
from torchjanus.runtime.coexecution.recording.unrecorded_code import is_exposed

__all__ = ["Merging"]


class Merging:
    """``operators``: those that calls have made. ``is_possible``: whether no call has done what a placeholder cannot
    answer."""

    def __init__(self) -> None:
        self.operators = Operators()
        self.is_possible = True
        self._modules: set[str | None] = set()  # whose code recorded calls have run
        self._exposed: bool | None = None

    def recorded(self, recorder: Recorder) -> None:
        """Take what a recorded call has shown."""
        self.is_possible &= not recorder.is_opaque
        self._modules |= recorder.observer.modules

    def begin(self) -> MergedRun:
        """Return the mode for one call."""
        if self._exposed is None:
            self._exposed = is_exposed(self._modules)
        return MergedRun(self.operators, self._exposed)
