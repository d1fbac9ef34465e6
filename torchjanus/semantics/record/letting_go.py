"""Releases what the record of a run holds, once the program is known to see when objects are gone.

No graph is made of such a run. It goes on with weak references to what had an access path or a number, and an id is
forgotten when its object goes: another object may get it.
"""

from __future__ import annotations

import types
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.known.host_memory import holds_size
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Decision, Event, FunctionEntry, FunctionExit, LoopEnd, Trace
from torchjanus.trace.facts import HeapRead, TensorPredicate

__all__ = ["Lifetimes", "holds_objects", "starts_at_object"]


_LASTING = (type, types.FunctionType, types.ModuleType)


_PLAIN = Op | TensorPredicate | Decision | LoopEnd | FunctionEntry | FunctionExit


def holds_objects(event: Event) -> bool:
    """Whether an event refers to objects of the program, if only as the keys of access paths."""
    return not isinstance(event, _PLAIN)


def starts_at_object(access_path: AccessPath) -> bool:
    """Whether an access path holds an object of the program, at which it starts."""
    while access_path.base is not None:
        access_path = access_path.base
    return access_path.step is Step.CONST and not isinstance(access_path.key, _LASTING)


class WeakIds:
    """Objects by their ids in tables of a record, without keeping them alive."""

    def __init__(self) -> None:
        self._references: dict[tuple[int, int], weakref.ref[Any]] = {}  # by ids of table and object

    def add(self, table: dict[int, Any], value: object, entry: Any) -> None:
        """Enter an object into a table, as long as it lives. One without weak references is left out."""
        key = id(value)
        references, where = self._references, (id(table), key)

        def gone(_: Any) -> None:
            table.pop(key, None)
            references.pop(where, None)

        try:
            references[where] = weakref.ref(value, gone)
        except TypeError:
            table.pop(key, None)
            return
        table[key] = entry

    def release(self, trace: Trace, owners: dict[int, Any], numbers: dict[int, Any], found: Iterable[Any]) -> None:
        """Hold nothing of a trace any more. ``found``: objects that it has read."""
        held = [*trace.alive, *found, *(event.value for event in trace.events if isinstance(event, HeapRead))]
        tensors = trace.tensors
        trace.alive, trace.outline, trace.tensors = [], None, [None] * len(tensors)
        trace.events[:] = [event for event in trace.events if not holds_objects(event)]
        known, numbered = dict(owners), dict(numbers)
        owners.clear()
        numbers.clear()
        for value in held:
            if id(value) in known:
                self.add(owners, value, known[id(value)])
        for tensor in tensors:
            if tensor is not None and id(tensor) in numbered:
                self.add(numbers, tensor, numbered[id(tensor)])


class Lifetimes:
    """What a record knows of when objects are gone, and the refusals that say that the program sees it."""

    trace: Trace
    _owners: dict[int, AccessPath]
    _numbers: dict[int, int]

    def __init__(self) -> None:
        super().__init__()
        self.lifetimes = False  # whether the caller of the watched code sees when objects are gone
        self.ending = False  # whether the program sees when objects are gone: from then on none is held
        self.weak = WeakIds()
        self.holders: list[Callable[[], None]] = []  # each drops what a part of the watch holds
        self.settling: Callable[[], None] | None = None  # removes traced numbers from objects that the run has made

    @abstractmethod
    def refuse(
        self, reason: str, what: str, why: str, remedy: str = "", place: Place | None = None, of_lifetimes: bool = False
    ) -> None:
        """Record why no graph can be made of this run. The run itself continues."""

    def let_go(self, found: Iterable[Any] = ()) -> None:
        """Hold no object of the program's any more. ``found``: those that were read."""
        self.ending = True
        self.weak.release(self.trace, self._owners, self._numbers, found)
        for drop in self.holders:
            drop()

    def refuse_weak(self, what: str) -> None:
        """Refuse a use of a weak reference."""
        self.refuse(
            "weak-reference",
            what,
            "weak references tell when an object is gone, and a graph keeps the objects that it uses.",
            "Follow the weak reference outside of the step and pass the object in.",
            of_lifetimes=True,
        )

    def refuse_ending(self, what: str, remedy: str) -> None:
        """Refuse an object of which the program sees the end."""
        self.refuse(
            "finalizer",
            what,
            "when that happens depends on when the last reference goes, which a graph does not repeat.",
            remedy,
            of_lifetimes=True,
        )

    def refuse_view(self, values: Iterable[Any]) -> bool:
        """Refuse if one of the values is a view of memory whose size it holds. Such a value must not be kept."""
        view = next(filter(holds_size, values), None)
        if view is None:
            return False
        self.refuse(
            "memory-view",
            f"uses a {type(view).__name__} of memory whose size may change",
            "while a view is alive its owner's size cannot change, and a graph keeps the objects that it uses.",
            "Copy the memory with bytes().",
            of_lifetimes=True,
        )
        return True
