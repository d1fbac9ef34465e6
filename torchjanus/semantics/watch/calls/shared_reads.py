"""Reads of the heap that all recursive calls of a step share: the step makes them before its first call (JANUS 4.2.1).

In: the facts that earlier runs' calls relied on. Out: the same facts in the step's trace, in a fixed order, so that the
traces of several runs of the step correspond.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import EmptinessTest, HeapRead, IdentityTest, KeyLookup, KeySetRead
from torchjanus.trace.values import is_local

__all__ = ["SharedReads", "known_before"]


class SharedReads(Part):
    """What calls are known to rely on, read by the step."""

    def __init__(self, state: WatchState) -> None:
        super().__init__(state)
        self.tensors: dict[int, None] = {}  # the numbers of the step's tensors that calls read
        self._has_read_ahead = False

    def read_ahead(self) -> None:
        """Read the facts that calls are known to rely on, in a fixed order, so that traces of the step correspond."""
        if self._has_read_ahead:
            return
        self._has_read_ahead = True
        recording = self.recording
        for fact in list(self.state.recursions.facts.values()):
            with contextlib.suppress(KeyError, AttributeError, IndexError, TypeError):
                self._read_again(fact)
        for number, access_path in list(recording.trace.access_paths.items()):
            if any(
                isinstance(f, HeapRead) and f.access_path == access_path for f in self.state.recursions.facts.values()
            ):
                self.tensors.setdefault(number)

    def _read_again(self, fact: Any) -> None:
        recording, (args, kwargs) = self.recording, self.state.given
        match fact:
            case HeapRead(access_path=access_path, kind=kind):
                value = access_path.read(args, kwargs)
                if access_path.token in recording.counts:
                    return
                if access_path.base is not None and recording.knows_write(
                    access_path.base.read(args, kwargs), access_path.key
                ):
                    return  # the step has overwritten it
                if kind == "pinned":
                    recording.held(access_path, value)
                else:
                    found = recording.found(access_path, value)
                    if kind == "number":
                        recording.pin(found, "is used in recursive calls")
                    elif kind == "tensor" and isinstance(value, torch.Tensor):
                        ref = self.framework.ref(value)
                        if ref is not None:
                            self.tensors.setdefault(ref.number)
            case KeyLookup(base=base, key=key):
                recording.absent(base, key, key in base.read(args, kwargs))
            case EmptinessTest(access_path=access_path):
                recording.filled(access_path, bool(len(access_path.read(args, kwargs))))
            case KeySetRead(access_path=access_path):
                recording.keys(access_path, tuple(access_path.read(args, kwargs)))
            case IdentityTest(first=first, second=second):
                same = first.read(args, kwargs) is second.read(args, kwargs)
                recording.note_once(IdentityTest(first, second, same, recording.place))


def known_before(events: list[Any], call: Trace) -> Iterator[HeapRead]:
    """Yield the step's earlier reads of shared values that a call relies on."""
    relied: set[Any] = set()
    for event in call.events:
        if isinstance(event, HeapRead) and not is_local(event.access_path):
            relied.update(at.token for at in event.access_path.prefixes())
    return (event for event in events if isinstance(event, HeapRead) and event.access_path.token in relied)
