"""Lists of tensors from before the call that a run has gone through in part, since a tensor has ended the loop: what
the elements are that it has not come to.

Knows traces, not what is made of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from torchjanus.core.access_path import Origin, Step
from torchjanus.graph.loops.analysis.tensor_termination import is_question
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Found
from torchjanus.trace.rounds import Turns
from torchjanus.trace.values import Read

__all__ = ["begin_of_round", "left_within", "spans", "unread"]


def left_within(trace: Trace, origin: Origin) -> Iterator[Turns]:
    """The loops that have as many rounds as this list is long, and were left before their end."""
    length = Read(origin.then(Step.LEN)).token
    for turns in trace.turns:
        if turns.end is None and turns.starts and turns.count is not None and turns.count.token == length:
            yield turns


def unread(trace: Trace, origin: Origin, length: int, read: Sequence[Any]) -> list[torch.Tensor] | None:
    """The elements behind those that were read: one in each round, by a loop that was left. None where it is not just
    these, or nobody knows whether the list is as it was."""
    if not any(len(turns.starts) == len(read) for turns in left_within(trace, origin)):
        return None
    if any(getattr(event, "base", None) == origin and not isinstance(event, Found) for event in trace.events):
        return None  # it is written, or asked for more
    found = (event.value for event in trace.events if isinstance(event, Found) and event.origin == origin)
    whole: Any = next(found, None)
    if type(whole) not in (list, tuple) or len(whole) != length:
        return None
    if any(one is not other for one, other in zip(whole, read, strict=False)):
        return None
    return list(whole[len(read) :])


def begin_of_round(trace: Trace, origin: Origin, at: int) -> int:
    """Before which event the loop began that was left, if that is in its first round."""
    for turns in left_within(trace, origin):
        if turns.starts[0] <= at and (len(turns.starts) == 1 or at < turns.starts[1]):
            return turns.starts[0]
    return at


def spans(trace: Trace, origin: Origin) -> Iterator[tuple[int, int]]:
    """Between which events the rounds of such loops are, as far as the question that ended them."""
    for turns in left_within(trace, origin):
        last = turns.starts[-1]
        asked = (n for n, event in enumerate(trace.events[last:], last + 1) if is_question(event))
        yield turns.starts[0], next(asked, len(trace.events))
