"""Finds the elements that a run has not read of a list of tensors from before the call, since a tensor ended the
loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, is_question
from torchjanus.trace.loops.records import LoopRecord
from torchjanus.trace.values import Read

__all__ = ["begin_of_iteration", "left_within", "spans", "unread"]


def left_within(trace: Trace, access_path: AccessPath) -> Iterator[LoopRecord]:
    """Yield the loops over this list that were left before its end."""
    length = Read(access_path.then(Step.LEN)).token
    for loop_record in trace.loop_records:
        if (
            loop_record.end is None
            and loop_record.starts
            and loop_record.count is not None
            and loop_record.count.token == length
        ):
            yield loop_record


def unread(trace: Trace, access_path: AccessPath, length: int, read: Sequence[Any]) -> list[torch.Tensor] | None:
    """Return the elements after those that were read; None if the run did more with the list than one read per
    iteration, or the list may have changed."""
    if not any(len(loop_record.starts) == len(read) for loop_record in left_within(trace, access_path)):
        return None
    if any(getattr(event, "base", None) == access_path and not isinstance(event, HeapRead) for event in trace.events):
        return None  # it is modified, or used otherwise
    found = (event.value for event in trace.events if isinstance(event, HeapRead) and event.access_path == access_path)
    whole: Any = next(found, None)
    if type(whole) not in (list, tuple) or len(whole) != length:
        return None
    if any(one is not other for one, other in zip(whole, read, strict=False)):
        return None
    return list(whole[len(read) :])


def begin_of_iteration(trace: Trace, access_path: AccessPath, at: int) -> int:
    """Return the begin of the loop that was left, if ``at`` is in its first iteration; else ``at``."""
    for loop_record in left_within(trace, access_path):
        if loop_record.starts[0] <= at and (len(loop_record.starts) == 1 or at < loop_record.starts[1]):
            return loop_record.starts[0]
    return at


def spans(trace: Trace, access_path: AccessPath) -> Iterator[tuple[int, int]]:
    """Yield the first and last position of such loops, up to the predicate that ended them."""
    for loop_record in left_within(trace, access_path):
        last = loop_record.starts[-1]
        asked = (n for n, event in enumerate(trace.events[last:], last + 1) if is_question(event))
        yield loop_record.starts[0], next(asked, len(trace.events))
