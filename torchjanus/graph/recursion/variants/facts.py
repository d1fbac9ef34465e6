"""Whether the facts of two traces, or a tensor, distinguish two variants. Works on traces only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.graph.recursion.variants.reads import call_of
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import (
    EmptinessTest,
    HeapRead,
    IdentityTest,
    InstanceTest,
    KeyLookup,
    KeySetRead,
    NumberPredicate,
    TensorPredicate,
)
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
    said = {about(event): event.token for event in one.events if _is_argument_fact(event)}
    return any(said.get(about(event), event.token) != event.token for event in other.events if _is_argument_fact(event))


def _is_argument_fact(event: Any) -> bool:
    """Whether the event is a fact about an argument, which is checked for each call."""
    match event:
        case HeapRead(access_path=at, kind=kind):
            return kind != "tensor" and is_local(at) and call_of(at) is None
        case (
            EmptinessTest(access_path=at)
            | KeySetRead(access_path=at)
            | InstanceTest(access_path=at)
            | KeyLookup(base=at)
        ):
            return is_local(at) and call_of(at) is None
        case NumberPredicate(expr=expr):
            reads = list(leaves(expr))
            return all(
                isinstance(x, Read) and is_local(x.access_path) and call_of(x.access_path) is None for x in reads
            )
    return False


def decides(event: Any) -> bool:
    """Whether the event is a predicate on a tensor."""
    if isinstance(event, NumberPredicate):
        return depends_on(event.expr, Fetch)
    return isinstance(event, TensorPredicate)


def flipped(event: Any) -> Any:
    """Return the token of the predicate with the other outcome."""
    return replace(event, outcome=not event.outcome).token


def about(event: Any) -> Any:
    """Return the subject of a fact, without its outcome."""
    match event:
        case (
            HeapRead(access_path=access_path)
            | EmptinessTest(access_path=access_path)
            | KeySetRead(access_path=access_path)
        ):
            return (type(event), access_path.token)
        case KeyLookup(base=base, key=key):
            return (KeyLookup, base.token, token_of(key))
        case IdentityTest(first=first, second=second):
            return (IdentityTest, first.token, second.token)
        case InstanceTest(access_path=access_path, classes=classes):
            return (InstanceTest, access_path.token, token_of(classes))
    return (type(event), event.expr.token)
