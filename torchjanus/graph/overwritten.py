"""Writes to objects that are made again in the same call, with nobody to look in between.

A commit makes all writes at once, so of two to one place the last is enough, and what only the first one was given need
not leave the graph. Knows recorded runs, not who makes the writes.
"""

from __future__ import annotations

from typing import Any

from torchjanus.trace.events import Each, Extern, Invoked, Mutation, Stored, Trace
from torchjanus.trace.recipes import Constant, FoundAt, Number, TensorOf
from torchjanus.trace.values import Traced

__all__ = ["overwritten"]

_SIMPLE = (Constant, FoundAt, Number, TensorOf)  # others may be spoken of by what is written later
_WRITING = ("item", "field", "cell")


def overwritten(trace: Trace) -> frozenset[int]:
    """The ids of such writes. Between the two no other is made to the same object: in which order a dictionary has its
    keys can be seen."""
    found: set[int] = set()
    last: dict[Any, Stored] = {}  # by object: the last write to it, if nobody has looked since
    for event in trace.events:
        if isinstance(event, Extern | Each | Invoked):
            last.clear()
        elif isinstance(event, Mutation):
            last.pop(event.base.token, None)
        elif isinstance(event, Stored):
            before = last.pop(event.base.token, None)
            if before is not None and before.token == event.token:
                found.add(id(before))
            recipes = trace.recipes.get(id(event), ())
            plain = event.how in _WRITING and not event.chosen and not isinstance(event.key, Traced)
            if plain and all(isinstance(recipe, _SIMPLE) for recipe in recipes):
                last[event.base.token] = event
    return frozenset(found)
