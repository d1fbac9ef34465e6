"""What all parts of watching share: the recording, the place, and what is known of native callees."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.journal import Journal
from torchjanus.rewrite import Site
from torchjanus.semantics.checkpoints import Checkpoints
from torchjanus.semantics.framework import FrameworkRecorder
from torchjanus.semantics.native_calls import NativeCalls
from torchjanus.semantics.protocols import Protocols
from torchjanus.semantics.recording import Recording
from torchjanus.trace.values import Traced

__all__ = ["CONTAINERS", "WatchBase", "symbol"]

CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)


class WatchBase(Protocols):
    """State of the watching semantics of one call."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__()
        self.recording = Recording()
        self.framework = FrameworkRecorder(self.recording)
        nowhere: Any = None  # what autograd calls belongs to the place where backward() was called
        self.framework.code.call = lambda fn, args: self.call(nowhere, fn, args, {})
        self.framework.code.read = lambda obj, name: self.load_attr(nowhere, obj, name)
        self.natives = NativeCalls(self.recording, self.framework, self, journal or Journal())
        checkpoints = Checkpoints(self.framework, lambda fn, args, named: self.call(nowhere, fn, args, named))
        self.natives.checkpoints = checkpoints

    def at(self, site: Site | None) -> None:
        """What is recorded from now on belongs to this place."""
        if site is None:  # a native call's own doing: the place is that of the call
            return
        self.recording.place = Place(site.file, site.line, site.column, site.function)

    def _changed(self, obj: Any, act: Callable[[], Any]) -> Any:
        self.recording.refuse(
            f"reads a {type(obj).__name__} after changing its length in the same call",
            "held-back changes are not visible to it yet.",
            "Read it before changing it, or in the next call.",
        )
        return act()

    def _unknown_container(self, obj: Any, what: str, act: Callable[[], Any]) -> Any:
        if not isinstance(obj, str | bytes | range | torch.Size):
            self.recording.refuse(
                f"{what} of a {type(obj).__name__} that was there before the call",
                "what it holds is not watched.",
                "Read it into a tensor, list or dict before the step.",
            )
        return act()


def symbol(value: Any) -> Any:
    return value.expr if isinstance(value, Traced) else value
