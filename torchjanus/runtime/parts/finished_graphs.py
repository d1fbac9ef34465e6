"""Takes up graphs that other processes have made: in a call that permits it, or while the user waits for them."""

from __future__ import annotations

import torch

from torchjanus.core.collector import uncollected
from torchjanus.core.one_at_a_time import MAKING
from torchjanus.rewrite.hooks import current
from torchjanus.runtime.learning.learning import Learning
from torchjanus.semantics.protocols.depth import room
from torchjanus.semantics.torch.torch_state import hindrance

__all__ = ["FinishedGraphs", "is_within_run"]


def is_within_run() -> bool:
    """Whether the call is part of another watched run or of a dispatch mode, and so must not be watched itself."""
    return current() is not None or torch._C._len_torch_dispatch_stack() > 0


class FinishedGraphs:
    """The graphs of one function that another process was asked for, as its calls see them."""

    def __init__(self, learning: Learning) -> None:
        self._pending_graphs = learning.pending_graphs
        self._policy = learning.policy
        self._budget = learning.budget

    def take_up(self) -> None:
        """Put a graph that another process has made to use, if the current call permits that. Its price is paid: only
        the time that this takes is looked at."""
        if not self._pending_graphs.remote.over or is_within_run() or hindrance():
            return
        if not (self._pending_graphs.is_made or self._policy.may_make()):
            return
        if MAKING.acquire(blocking=False):
            begun = self._budget.clock()
            try:
                self._go_on()
            finally:
                self._budget.charge("make", self._budget.clock() - begun, in_call=True)
                MAKING.release()

    def _go_on(self) -> None:
        """Use a graph that was made in another process, if it is there."""
        with room(), uncollected(kept=True):
            try:
                self._pending_graphs.resume()
            except Exception as error:
                self._policy.record_fault(error)

    def wait(self) -> None:
        """Return when no graph is being made in another process."""
        while self._pending_graphs.is_waiting:
            self._pending_graphs.remote.wait()
            with MAKING:
                self._go_on()
