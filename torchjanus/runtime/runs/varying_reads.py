"""Finds strings, and objects that are looked up in dictionaries and sets, that change from call to call: no entry holds
them constant from then on (JANUS, figure 4).

A string seen with two values splits into entries (a mode, a phase); one seen with three is a name, and is traced like a
number. An object that is looked up (the parameters of a model in the state of its optimizer) is expected to be another
one once two have been seen: the next model then finds the graph of the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.trace.actions import ContainerMutation, HeapWrite
from torchjanus.trace.events import Event, Trace
from torchjanus.trace.facts import HeapRead, IdentityTest, KeyLookup
from torchjanus.trace.values import Traced

__all__ = ["VaryingReads"]

MANY_TEXTS = 3  # values of one string
MANY_OBJECTS = 2  # objects that are looked up from one path
MAX_PLACES = 10_000


class VaryingReads:
    """The strings and looked up objects of one function. ``loose``: the access paths of those that vary; each is added
    once."""

    def __init__(self) -> None:
        self.loose: set[AccessPath] = set()
        # The values of strings, and the ids of objects. An id that is used again after its object has died counts once:
        # the path is then found to vary later.
        self._seen: dict[AccessPath, set[str | int]] = {}

    def learn(self, trace: Trace) -> list[tuple[AccessPath, str, Place]]:
        """Record one watched run. Returns what was relaxed: the path, what is there, and where the program reads it."""
        relaxed = []
        for access_path, value, what, place in _read(trace):
            if len(self._seen) >= MAX_PLACES and access_path not in self._seen:
                continue
            seen = self._seen.setdefault(access_path, set())
            seen.add(value)
            many = MANY_TEXTS if isinstance(value, str) else MANY_OBJECTS
            if len(seen) >= many and access_path not in self.loose:
                self.loose.add(access_path)
                relaxed.append((access_path, what, place))
        return relaxed


def _read(trace: Trace) -> Iterator[tuple[AccessPath, str | int, str, Place]]:
    """Yield the strings that a run has read, and the objects that it has looked up: path, value, what it is, place."""
    keys = {id(key) for event in trace.events for key in _keys(event) if not isinstance(key, Traced)}
    for event in trace.events:
        match event:
            case HeapRead(access_path=access_path, kind="constant", value=value, place=place) if type(value) is str:
                yield access_path, value, "text", place
            case IdentityTest(first=first, second=AccessPath(step=Step.CONST, key=key), same=True, place=place):
                if id(key) in keys:
                    yield first, id(key), "object", place


def _keys(event: Event) -> Sequence[Any]:
    """Return what an event may look up in a dictionary or set."""
    match event:
        case KeyLookup(key=key) | HeapWrite(key=key):
            return (key,)
        case ContainerMutation(args=args):
            return args
    return ()
