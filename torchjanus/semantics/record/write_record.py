"""What one watched run has written to objects that were there before it: reads after that see it.

Knows nothing of where objects are found.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.kinds import isinstance
from torchjanus.hooks.lookup import attributes_of
from torchjanus.semantics.record.accumulators import Tallies
from torchjanus.semantics.record.call_writes import CallWrites
from torchjanus.semantics.record.flags import Flags
from torchjanus.semantics.record.marks import holds
from torchjanus.semantics.record.scalar_record import ScalarRecord
from torchjanus.trace.actions import Invoked, Mutation, Stored
from torchjanus.trace.values import plain

__all__ = ["ABSENT", "WriteRecord"]


class _Absent:
    def __repr__(self) -> str:
        return "<deleted>"


ABSENT = _Absent()


def _place(key: Any) -> Any:
    """What tells places in one container apart: keys, as dictionaries do (1, 1.0 and True are one)."""
    return ("tensor", id(key)) if isinstance(key, torch.Tensor) else plain(key)


class WriteRecord(ScalarRecord):
    """A run's record of its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.call_writes = CallWrites()
        self.flags = Flags()
        self.tallies = Tallies()
        # What this run wrote, by the id of the container or object and then by key.
        self._written: dict[int, dict[Any, Any]] = {}
        self._changed: dict[int, Any] = {}  # objects that it wrote to, in this order
        self._stores: dict[tuple[int, Any], Stored] = {}  # its last write to each place
        self.escaped: list[Any] = []  # what it has put into objects from before the call, if that holds anything
        self._mutated: set[AccessPath | None] = set()  # containers that a mutation was recorded of as a whole
        # The run, the recursive call that it is in, and so on to the innermost; and those that have written anything.
        self.chain: list[WriteRecord] = [self]
        self.depth = 0
        self.writers: list[WriteRecord] = []

    def refused(self) -> None:
        self.tallies.give_up()

    def _object_at(self, access_path: AccessPath) -> Any:
        """What was found there, None if nothing was."""
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
        """A write of ``value`` (ABSENT: a deletion) to an object that was there before the call. ``field``: what the
        object itself calls the place; ``new``: nothing was there before."""
        self.tallies.close(self, container, _place(key))
        self.keep(container)
        self.keep(key)
        self.keep(value)
        self._hand_out(value)
        self._changed[id(container)] = container
        self._written.setdefault(id(container), {})[_place(key)] = value
        self._writes()
        self.flags.store(container, _place(key), value, base)
        event = Stored(how, base, field or key, value, self.place, new=new)
        self._stores[id(container), _place(key)] = event
        self.note(event)

    def last_store(self, container: Any, key: Any) -> Stored | None:
        """This run's last write to the place."""
        return self._stores.get((id(container), key))

    def tallied_now(self, container: Any, key: Any, value: Any) -> None:
        """Recursive calls have made this of what the run wrote there (see ``tallies``)."""
        self.keep(value)
        self._written[id(container)][key] = value

    def mutate(self, owner: type, method: str, args: tuple[Any, ...], base: AccessPath) -> None:
        """Record a mutation that has been made: the method is that of ``owner``, a class written in C."""
        self.keep(args)
        self._look_at(base)
        self._mutated.add(base)
        for arg in args:
            self._hand_out(arg)
        self._writes()
        self.note(Mutation(base, method, args, owner, self.place))

    def _hand_out(self, value: Any) -> None:
        if holds(value) and self.owner(value) is None:
            self.escaped.append(value)

    def forget_writes(self, container: Any) -> None:
        """What was written to single keys is gone, or lies elsewhere now."""
        self._written.pop(id(container), None)
        self.flags.forget(container)

    def _writes(self) -> None:
        if not any(writer is self for writer in self.writers):
            self.writers.append(self)

    def written(self, container: Any, key: Any) -> Any:
        """What this run wrote there last: a value, ABSENT after a deletion, or KeyError raised if it never wrote."""
        self.tallies.close(self, container, _place(key))
        found = self._written[id(container)][_place(key)]
        if (event := self.last_store(container, _place(key))) is not None:
            self.trace.reread.append((len(self.trace.events), event.where))
        return found

    def has_written(self, container: Any, key: Any) -> bool:
        if self.call_writes.is_stored(container, _place(key), self):
            self.refuse_call_writes()
        return not self.lost and self.knows_write(container, key)

    def knows_write(self, container: Any, key: Any) -> bool:
        """Whether this run has written there, be a graph made of it or not."""
        known = self._written.get(id(container))
        return known is not None and _place(key) in known

    def own_writes(self) -> Iterator[tuple[Any, Any, Any]]:
        """What this run has written to objects: the object, or its dictionary; the name; what is there now."""
        for container in self._changed.values():
            yield from ((container, key, value) for key, value in self._written.get(id(container), {}).items())

    def is_written(self, value: Any) -> bool:
        """Whether this run has changed the container or the attributes of the object."""
        parts = {id(value), id(attributes_of(value))}
        return not parts.isdisjoint(self._written) or self.owner(value) in self._mutated

    def has_set_flag(self, container: Any, key: Any) -> bool:
        """Whether a flag is what this run wrote there last."""
        return self.knows_write(container, key) and _place(key) in self.flags.at(container)

    def is_changed(self, value: Any) -> bool:
        """Whether this run has changed more of an object than flags, and what calls add up."""
        if self.owner(value) in self._mutated:
            return True
        parts = (value, attributes_of(value))
        return any(
            self._written.get(id(part), {}).keys() - self.flags.at(part) - self.tallies.keys_of(part) for part in parts
        )

    def _look_at(self, access_path: AccessPath | None) -> None:
        """Something is asked of what was found there."""
        if access_path is not None and self.call_writes.is_appended(self._object_at(access_path)):
            self.refuse_call_writes()

    def refuse_call_writes(self) -> None:
        """What recursive calls write is seen in the same step."""
        self.refuse(
            "recursion-reads-writes",
            "what recursive calls write to objects is used in the same step",
            "calls are run many at a time, in another order, and their writes are made at the end.",
            "Return it from the call.",
        )
        calls = [event for event in self.trace.events if isinstance(event, Invoked)]
        if calls:  # it is they that cannot be watched each for itself
            calls[-1].call.refusals.append(self.trace.refusals[-1])
