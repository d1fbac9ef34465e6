"""Record what one watched run writes to objects that existed before it, so that its later reads see it.

Access paths of reads are kept by ``recording``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.record.accumulators import Accumulators
from torchjanus.semantics.record.call_writes import CallWrites
from torchjanus.semantics.record.flags import Flags
from torchjanus.semantics.record.lookup_record import LookupRecord
from torchjanus.semantics.record.marks import holds
from torchjanus.trace.actions import ContainerMutation, HeapWrite, InvokeOp
from torchjanus.trace.values import TracedFloat, TracedInt, TracedStr, plain

__all__ = ["ABSENT", "WriteRecord"]


class _Absent:
    def __repr__(self) -> str:
        return "<deleted>"


ABSENT = _Absent()
# Values that are compared with what is there when they are read again: code without hooks may have written meanwhile.
_ATOMS = frozenset({int, float, str, bool, type(None), TracedInt, TracedFloat, TracedStr})


def _place(key: Any) -> Any:
    """Return the identity of a place in a container: keys equal as in dictionaries (1, 1.0 and True are one)."""
    key = plain(key)
    return ("tensor", id(key)) if isinstance(key, torch.Tensor) else key


class WriteRecord(LookupRecord):
    """The writes of one run."""

    def __init__(self) -> None:
        super().__init__()
        self.call_writes = CallWrites()
        self.flags = Flags()
        self.accumulators = Accumulators()
        # What this run has written: by id of the container or object, then by key.
        self._written: dict[int, dict[Any, Any]] = {}
        self._changed: dict[int, Any] = {}  # by id: the objects that it wrote to, in program order
        self._stores: dict[tuple[int, Any], HeapWrite] = {}  # its last write to each place
        self._put: set[int] = set()  # ids of what it stored anywhere, also by native methods of containers
        self.escaped: list[Any] = []  # new containers and objects that it stored into old ones
        self._mutated: set[AccessPath | None] = set()  # containers with a recorded mutation of the whole
        # The recordings of the run and of its active recursive calls, outermost first; and those with writes.
        self.chain: list[WriteRecord] = [self]
        self.depth = 0
        self.writers: list[WriteRecord] = []

    def refused(self) -> None:
        self.accumulators.give_up()

    def _object_at(self, access_path: AccessPath) -> Any:
        """Return the object that was read at an access path, None if none was."""
        raise NotImplementedError

    def store(
        self,
        how: str,
        container: Any,
        key: Any,
        value: Any,
        base: AccessPath,
        *,
        field: str | None = None,
        new: bool = False,
    ) -> None:
        """Record a write of ``value`` (ABSENT: a deletion) to an object that existed before the call. ``field``: the
        object's own name of the place; ``new``: the place was empty."""
        self.accumulators.close(self, container, _place(key))
        self.keep(container)
        self.keep(key)
        self.keep(value)
        self._put.add(id(value))
        self._note_escape(value)
        self._changed[id(container)] = container
        self._written.setdefault(id(container), {})[_place(key)] = value
        self._writes()
        self.flags.store(container, _place(key), value, base)
        event = HeapWrite(how, base, field or key, value, self.place, new=new)
        self._stores[id(container), _place(key)] = event
        self.note(event)

    def last_store(self, container: Any, key: Any) -> HeapWrite | None:
        """Return this run's last write to a place."""
        return self._stores.get((id(container), key))

    def note_accumulated(self, container: Any, key: Any, value: Any) -> None:
        """Replace the value that the run has written by what recursive calls have made of it (see ``accumulators``)."""
        self.keep(value)
        self._written[id(container)][key] = value

    def mutate(self, owner: type, method: str, args: tuple[Any, ...], base: AccessPath) -> None:
        """Record a mutation that has been made by ``method`` of ``owner``, a native class."""
        self.keep(args)
        self._look_at(base)
        self._mutated.add(base)
        for arg in args:
            self._put.add(id(arg))
            self._note_escape(arg)
        self._writes()
        self.note(ContainerMutation(base, method, args, owner, self.place))

    def _note_escape(self, value: Any) -> None:
        if holds(value) and self.owner(value) is None:
            self.escaped.append(value)

    def forget_writes(self, container: Any) -> None:
        """Forget the writes to single keys of a container: its elements are gone or have moved."""
        self._written.pop(id(container), None)
        self.flags.forget(container)

    def _writes(self) -> None:
        if not any(writer is self for writer in self.writers):
            self.writers.append(self)

    def written(self, container: Any, key: Any) -> Any:
        """Return what this run wrote there last, ABSENT after a deletion. Raises KeyError if it never wrote there."""
        self.accumulators.close(self, container, _place(key))
        found = self._written[id(container)][_place(key)]
        if (event := self.last_store(container, _place(key))) is not None:
            self.trace.reread.append((len(self.trace.events), event.where))
        if type(container) is dict and type(found) in _ATOMS and type(name := plain(key)) in (str, int):
            now, bare = container.get(name, ABSENT), plain(found)
            if type(now) is not type(bare) or (now != bare and bare == bare):
                self._refuse_unwatched_change(container, name)
                return now
        return found

    def _refuse_unwatched_change(self, container: Any, key: Any) -> None:
        owner = self.owner(container)
        what = f"[{key!r}]" if owner is None else str(owner.item(key))
        self.refuse(
            "unwatched-change",
            f"{what} was changed by code that is not watched",
            "native code or another thread has put something else there during the call.",
            "",
        )

    def has_written(self, container: Any, key: Any) -> bool:
        if id(container) not in self._written and not self.call_writes:  # mostly so
            return False
        if self.call_writes.is_stored(container, _place(key), self):
            self.refuse_call_writes()
        return not self.lost and self.knows_write(container, key)

    def knows_write(self, container: Any, key: Any) -> bool:
        """Whether this run has written there, refused or not."""
        known = self._written.get(id(container))
        return known is not None and _place(key) in known

    def own_writes(self) -> Iterator[tuple[Any, Any, Any]]:
        """Yield this run's writes as (object or its dictionary, key, current value)."""
        for container in self._changed.values():
            yield from ((container, key, value) for key, value in self._written.get(id(container), {}).items())

    def is_written(self, value: Any) -> bool:
        """Whether this run has changed a container or the attributes of an object."""
        parts = {id(value), id(attributes_of(value))}
        return not parts.isdisjoint(self._written) or self.owner(value) in self._mutated

    def has_set_flag(self, container: Any, key: Any) -> bool:
        """Whether this run's last write there is a flag."""
        return self.knows_write(container, key) and _place(key) in self.flags.at(container)

    def is_changed(self, value: Any) -> bool:
        """Whether this run has changed an object beyond flags and accumulators."""
        if self.owner(value) in self._mutated:
            return True
        parts = (value, attributes_of(value))
        return any(
            self._written.get(id(part), {}).keys() - self.flags.at(part) - self.accumulators.keys_of(part)
            for part in parts
        )

    def _look_at(self, access_path: AccessPath | None) -> None:
        """Refuse a query of a container to which recursive calls have appended."""
        if access_path is not None and self.call_writes.is_appended(self._object_at(access_path)):
            self.refuse_call_writes()

    def refuse_call_writes(self) -> None:
        """Refuse a read, within the step, of what recursive calls write."""
        self.refuse(
            "recursion-reads-writes",
            "what recursive calls write to objects is used in the same step",
            "calls are run many at a time, in another order, and their writes are made at the end.",
            "Return it from the call.",
        )
        calls = [event for event in self.trace.events if isinstance(event, InvokeOp)]
        if calls:  # the calls are the cause: from now on they are unrolled
            calls[-1].call.refusals.append(self.trace.refusals[-1])
