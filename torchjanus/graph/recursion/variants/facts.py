"""Whether the facts of two traces, or a tensor, distinguish two variants. Works on traces only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.graph.recursion.variants.reads import call_of
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Absent, Asserted, Filled, Found, Held, Instance, Keys, Same
from torchjanus.trace.values import Fetch, Read, depends_on, is_local, leaves

__all__ = ["about", "decides", "distinguished", "flipped", "part_by_tensor"]


def part_by_tensor(one: Trace, other: Trace) -> bool:
    """Whether two traces first differ in the outcome of one predicate on a tensor."""
    for before, after in zip(one.events, other.events, strict=False):
        if before.token != after.token:
            return decides(before) and decides(after) and flipped(before) == after.token
    return False


def distinguished(one: Trace, other: Trace) -> bool:
    """Whether the facts about their arguments distinguish two variants, whatever tensors decide."""
    said = {about(event): event.token for event in one.events if _says(event)}
    return any(said.get(about(event), event.token) != event.token for event in other.events if _says(event))


def _says(event: Any) -> bool:
    """Whether the event is a fact about an argument, which is checked for each call."""
    match event:
        case Found(access_path=at, kind=kind):
            return kind != "tensor" and is_local(at) and call_of(at) is None
        case Filled(access_path=at) | Keys(access_path=at) | Instance(access_path=at) | Absent(base=at):
            return is_local(at) and call_of(at) is None
        case Held(expr=expr):
            reads = list(leaves(expr))
            return all(
                isinstance(x, Read) and is_local(x.access_path) and call_of(x.access_path) is None for x in reads
            )
    return False


def decides(event: Any) -> bool:
    """Whether the event is a predicate on a tensor."""
    if isinstance(event, Held):
        return depends_on(event.expr, Fetch)
    return isinstance(event, Asserted)


def flipped(event: Any) -> Any:
    """Return the token of the predicate with the other outcome."""
    return replace(event, outcome=not event.outcome).token


def about(event: Any) -> Any:
    """Return the subject of a fact, without its outcome."""
    match event:
        case Found(access_path=access_path) | Filled(access_path=access_path) | Keys(access_path=access_path):
            return (type(event), access_path.token)
        case Absent(base=base, key=key):
            return (Absent, base.token, token_of(key))
        case Same(first=first, second=second):
            return (Same, first.token, second.token)
        case Instance(access_path=access_path, classes=classes):
            return (Instance, access_path.token, token_of(classes))
    return (type(event), event.expr.token)
