"""Writes to objects that are made again in the same call, with nobody to look in between.

A commit makes all writes at once, so of two to one place the last is enough, and what only the first one was given need
not leave the graph. Knows recorded runs, not who makes the writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchjanus.core.access_path import Step
from torchjanus.trace.actions import Each, Extern, Invoked, Mutation, Stored
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import Absent, Found
from torchjanus.trace.recipes import Constant, FoundAt, Number, TensorOf
from torchjanus.trace.values import Traced

__all__ = ["overwritten"]

_SIMPLE = (Constant, FoundAt, Number, TensorOf)  # others may be spoken of by what is written later
_WRITING = ("item", "field", "cell")


def overwritten(trace: Trace) -> frozenset[int]:
    """The ids of such writes. In which order a dictionary has its keys can be seen: of a key that may be new only a
    write goes before the next to the same object; of one that was there any (``functional_call()`` puts tensors in the
    place of all parameters of a module, and then the parameters back)."""
    there = frozenset(_there(trace))
    found: set[int] = set()
    gone: set[Any] = set()  # objects of which something may have been taken away
    open_: dict[Any, dict[Any, Stored]] = {}  # by object: writes at which nobody has looked since, the last one last
    for event in trace.events:
        if isinstance(event, Extern | Each | Invoked):
            open_.clear()
        elif isinstance(event, Mutation):
            open_.pop(event.base.token, None)
            gone.add(event.base.token)
        elif isinstance(event, Stored):
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


def _there(trace: Trace) -> Iterator[Any]:
    """The tokens of writes to what was there before the call."""
    for event in trace.events:
        if isinstance(event, Absent) and event.present:
            yield Stored("item", event.base, event.key, None).token
        elif isinstance(event, Found) and event.access_path.base is not None:
            how = {Step.ITEM: "item", Step.FIELD: "field"}.get(event.access_path.step)
            if how is not None:
                yield Stored(how, event.access_path.base, event.access_path.key, None).token
