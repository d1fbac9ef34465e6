"""Times the backward passes that come after timed calls, so that calls are compared with what they leave to do.

A pass is timed from the first gradient that reaches a result to the end of the whole backward pass: what else is in it
is the same for all contenders. Where a pass cannot be attributed to one call (several timed calls before one
backward pass), or does not come, calls are compared by themselves. This module does not know who makes the calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchjanus.core.clock import undelayed
from torchjanus.core.kinds import isinstance
from torchjanus.core.trees import held_by

__all__ = ["BackwardTime"]

LATE = 4  # timed calls whose backward pass has not come


class BackwardTime:
    """The backward passes of one function's timed calls. ``cannot`` is called once if they cannot be timed."""

    def __init__(self, cannot: Callable[[], None]) -> None:
        self._cannot = cannot
        self._waiting: list[_Pass] = []
        self.is_timed = True

    def follow(self, result: Any, done: Callable[[float], None]) -> bool:
        """Call ``done`` with the seconds of the backward pass of a call's result, once it is over. Returns False where
        there is none to be timed."""
        if not self.is_timed:
            return False
        leaves = (part for part in held_by(result) if isinstance(part, torch.Tensor))
        nodes = {part.grad_fn for part in leaves if part.grad_fn is not None}
        if not nodes:
            return False
        one = _Pass(partial(self._over, done))
        self._waiting.append(one)
        if len(self._waiting) > LATE:
            self._give_up()
            return False
        # Guards look for hooks only when there are new ones; these are no concern of theirs.
        before = RemovableHandle.next_id
        for node in nodes:
            node.register_prehook(one.begin)
        RemovableHandle.next_id = before
        return True

    def _over(self, done: Callable[[float], None], one: _Pass, seconds: float) -> None:
        if one not in self._waiting:
            return
        self._waiting.remove(one)
        if any(other.begun for other in self._waiting):
            self._give_up()
        else:
            done(seconds)

    def _give_up(self) -> None:
        self._waiting.clear()
        if self.is_timed:
            self.is_timed = False
            self._cannot()


class _Pass:
    """One backward pass: when it reached the results, and when it ended."""

    def __init__(self, over: Callable[[_Pass, float], None]) -> None:
        self._over = over
        self.begun = 0.0

    def begin(self, *_: Any) -> None:
        """A hook of the results' nodes."""
        if not self.begun:
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
            self.begun = undelayed()

    def _end(self) -> None:
        self._over(self, undelayed() - self.begun)
