"""What two calls of a recursive function found, and whether that says which of two variants a call takes; or a tensor
does.

Works on traces; knows nothing of what becomes of ways.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.graph.recursion.variants.reads import call_of
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Absent, Asserted, Filled, Found, Held, Instance, Keys, Same
from torchjanus.trace.values import Fetch, Read, is_local, leaves

__all__ = ["about", "decides", "distinguished", "flipped", "part_by_tensor"]


def part_by_tensor(one: Trace, other: Trace) -> bool:
    """Whether two runs of a function go apart where a tensor decides between two variants."""
    for before, after in zip(one.events, other.events, strict=False):
        if before.token != after.token:
            return decides(before) and decides(after) and flipped(before) == after.token
    return False


def distinguished(one: Trace, other: Trace) -> bool:
    """Whether what two calls have found says which of two variants a call takes, whatever tensors decide."""
    said = {about(event): event.token for event in one.events if _says(event)}
    return any(said.get(about(event), event.token) != event.token for event in other.events if _says(event))


def _says(event: Any) -> bool:
    """Whether it says something of what a call is given, which is checked for each."""
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
    if isinstance(event, Held):
        return any(isinstance(leaf, Fetch) for leaf in leaves(event.expr))
    return isinstance(event, Asserted)


def flipped(event: Any) -> Any:
    return replace(event, outcome=not event.outcome).token


def about(event: Any) -> Any:
    """What a fact is about, whatever it says."""
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
