"""Find dead stores: writes to objects that a later write of the same call replaces, with no read in between.

A commit makes all writes at once, so the last write to a place is enough, and a value that only an earlier one needs
need not leave the graph. Knows recorded runs, not who makes the writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchjanus.core.access_path import Step
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, HostLoop, InvokeOp
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead, KeyLookup
from torchjanus.trace.recipes import Constant, ExistingObject, Number, TensorOf
from torchjanus.trace.values import Traced

__all__ = ["overwritten"]

_SIMPLE = (Constant, ExistingObject, Number, TensorOf)  # later recipes may refer to other kinds
_WRITING = ("item", "field", "cell")


def overwritten(trace: Trace) -> frozenset[int]:
    """Return the ids of the dead stores. The order of a dictionary's keys is visible: for a key that may be new, a
    write is dead only if the next write to the same object replaces it; for a key that was there before, any later
    write will do (``functional_call()`` replaces all parameters of a module and then restores them)."""
    there = frozenset(_existing_places(trace))
    found: set[int] = set()
    gone: set[Any] = set()  # objects from which keys may have been removed
    open_: dict[Any, dict[Any, HeapWrite]] = {}  # by object: writes not read since, the latest last
    for event in trace.events:
        if isinstance(event, Extern | HostLoop | InvokeOp):
            open_.clear()
        elif isinstance(event, ContainerMutation):
            open_.pop(event.base.token, None)
            gone.add(event.base.token)
        elif isinstance(event, HeapWrite):
            if event.how not in _WRITING or event.chosen or isinstance(event.key, Traced):
                open_.pop(event.base.token, None)
                gone.add(event.base.token)
                continue
            written = open_.setdefault(event.base.token, {})
            latest = next(reversed(written), None)
            before = written.pop(event.token, None)
            in_place = event.token in there and event.base.token not in gone
            if before is not None and (in_place or event.token == latest):
                found.add(id(before))
            if all(isinstance(recipe, _SIMPLE) for recipe in trace.recipes.get(id(event), ())):
                written[event.token] = event
            else:
                written.clear()
    return frozenset(found)


def _existing_places(trace: Trace) -> Iterator[Any]:
    """Yield the tokens of writes to keys and attributes that existed before the call."""
    for event in trace.events:
        if isinstance(event, KeyLookup) and event.present:
            yield HeapWrite("item", event.base, event.key, None).token
        elif isinstance(event, HeapRead) and event.access_path.base is not None:
            how = {Step.ITEM: "item", Step.FIELD: "field"}.get(event.access_path.step)
            if how is not None:
                yield HeapWrite(how, event.access_path.base, event.access_path.key, None).token
