"""Model dictionaries and sets from before the call while the run changes them: keys, their order, their access paths.

The container itself is changed at once, since a watched run has real effects. A shadow records only what reads assume
of the container *before* the call: a key that the run has stored itself needs no guard.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from torchjanus.core.access_path import AccessPath, Step, native_class
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.trace.events import ALL
from torchjanus.trace.terms import key_token
from torchjanus.trace.values import ON_HASH, Apply, Expr, Read, Traced, leaves, plain, trace_value, traced_key

__all__ = ["KeyedShadow", "MappingShadow", "SetShadow"]


class KeyedShadow:
    """The common part of dictionaries and sets: membership, length and truth value."""

    def __init__(self, recording: Recording, container: Any, access_path: AccessPath) -> None:
        self.recording = recording
        self.container = container
        self.access_path = access_path
        self.native = native_class(type(container))
        self.keys_before: tuple[Any, ...] | None = None  # None until the run changes them
        self._present_before: dict[Any, bool] = {}  # by key stored or removed: whether it was there before the call
        self.emptied = False  # the run has cleared it: all keys are of this run
        self._made_of: dict[Any, Expr] = {}  # computed keys of this run, which vary from call to call
        self._held = False  # specialised on all keys, so computed ones have to be, too

    def place(self, key: Any) -> Any:
        """Return the untraced key. For a traced one (a step counter) record its comparison with the other keys of the
        run, so that the graph need not specialise on it."""
        bare = plain(key)
        if isinstance(key, Traced):
            known = self._made_of.get(bare)
            if self._held or not all(isinstance(leaf, Read) for leaf in leaves(key.expr)):
                return self.recording.pin(key, "used as a key")
            if known is None or known.token != key.expr.token:
                for other in self._present_before:
                    self._compare(key.expr, bare, self._made_of.get(other, other), other)
                if bare not in self._present_before:
                    self._made_of[bare] = key.expr
        else:
            for other, expr in self._made_of.items():
                self._compare(expr, other, key, key)
        return bare

    def _compare(self, expr: Expr, value: Any, other: Any, other_value: Any) -> None:
        if not isinstance(value, int | float | str):
            return  # an object: that the keys of a run stay distinct is assumed of all of them (``note_apart``)
        if isinstance(value, str) is isinstance(other_value, str) and isinstance(other_value, int | float | str):
            self.recording.hold(Apply(operator.eq, (expr, other)), value == other_value)

    def _traced(self, key: Any) -> Any:
        """Return the key, traced if it has an expression."""
        expr = self._made_of.get(key)
        return key if expr is None else traced_key(key, expr)

    def _absent(self, key: Any, present: bool) -> None:
        self.recording.absent(self.access_path, self._traced(key), present)

    def adopt(self, before: KeyedShadow) -> None:
        """Take over what the program still uses of an earlier shadow, with the contents that the container has."""

    # -- reads ----------------------------------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        """Whether this run has added, removed or reordered keys."""
        return self.keys_before is not None

    def has(self, key: Any) -> bool:
        """Return ``key in container``."""
        key = self.place(key)
        self._note_query(key_token(self._traced(key)))
        present: bool = self.native.__contains__(self.container, key)
        if key not in self._present_before and not self.emptied:
            self._absent(key, present)
        return present

    def _note_query(self, key: Any) -> None:
        """Record that the run queries a key, or all keys, of a container that it has changed."""
        if self._present_before or self.emptied:
            self.recording.trace.reread.append((len(self.recording.trace.events), (self.access_path.token, key)))

    def length(self) -> Any:
        """Return ``len(container)`` as an expression of the length before the call."""
        self._note_query(ALL)
        now = self.native.__len__(self.container)
        if self.emptied:
            return now
        for key, was in self._present_before.items():
            self._absent(key, was)
        access_path = self.access_path.then(Step.LEN)
        if self.keys_before is None:
            return self.recording.found(access_path, now)
        before = len(self.keys_before)
        self.recording.found(access_path, before)
        return trace_value(now, Apply(operator.add, (Read(access_path), now - before)))

    def filled(self) -> bool:
        """Return the truth value of the container."""
        self._note_query(ALL)
        filled: bool = self.native.__len__(self.container) > 0
        if self.emptied or any(self.native.__contains__(self.container, key) for key in self._present_before):
            return filled
        if self.keys_before is None and not self._present_before:
            self.recording.filled(self.access_path, filled)
        else:
            self.hold_keys()
        return filled

    def hold_keys(self, values: bool = True) -> None:
        """Guard on all keys before the call and their order. ``values``: specialise on the run's computed keys, too."""
        if not self.emptied:
            now = tuple(self.native.__iter__(self.container))
            self.recording.keys(self.access_path, self.keys_before if self.keys_before is not None else now)
        if values:
            for key in self._made_of:
                self.recording.pin(self._traced(key), "one of the keys, which are read")
            self._held = True

    # -- changes: called before the container changes -------------------------------------------------------------

    def touch(self, key: Any) -> None:
        """Prepare for storing or removing a key."""
        if key not in self._present_before:
            self._present_before[key] = self.native.__contains__(self.container, key)

    def reorder(self) -> None:
        """Prepare for a change of the keys or their order."""
        if self.keys_before is None:
            self.keys_before = tuple(self.native.__iter__(self.container))
            self.recording.keep((self.container, self.keys_before))

    def clear(self) -> None:
        """Do ``container.clear()``."""
        self.reorder()
        self.recording.forget_writes(self.container)
        self.native.clear(self.container)
        self.emptied = True
        self.recording.mutate(self.native, "clear", (), self.access_path)


class MappingShadow(KeyedShadow):
    """The shadow of a dictionary. ``_names`` and ``_items`` mirror its keys, ``_items`` also its traced values: native
    code reads them instead, and views of them follow later changes."""

    def __init__(self, recording: Recording, container: Any, access_path: AccessPath) -> None:
        super().__init__(recording, container, access_path)
        self._names: dict[Any, None] | None = None
        self._items: dict[Any, Any] | None = None
        self._last: Any = ABSENT  # a key that is the last one independent of the others

    def _mirrors(self) -> Iterator[dict[Any, Any]]:
        if self._names is not None:
            yield self._names
        if self._items is not None:
            yield self._items

    def adopt(self, before: KeyedShadow) -> None:
        """Keep the mirrors, since the program may hold views of them."""
        assert isinstance(before, MappingShadow)
        self._names, self._items = before._names, before._items
        keys = list(self.native.__iter__(self.container))
        for mirror in self._mirrors():
            if list(mirror) != keys:  # else nothing may be moved: an iterator may be on its way
                mirror.clear()
                mirror.update((key, self.read(key) if mirror is self._items else None) for key in keys)

    def _empty(self) -> Any:
        return collections.OrderedDict() if self.native is collections.OrderedDict else {}

    def _mirror(self, mirror: dict[Any, Any], key: Any, value: Any) -> None:
        """Put a key into a mirror, traced if possible, so that reading it there does not specialise on it."""
        listening = ON_HASH.set(None)
        mirror[self._traced(key)] = value
        ON_HASH.reset(listening)

    def names(self) -> dict[Any, None]:
        """Return the mirror of the keys, which follows later changes."""
        self._note_query(ALL)
        if self._names is None:
            self.hold_keys(values=False)
            self._names = self._empty()
            for key in self.native.__iter__(self.container):
                self._mirror(self._names, key, None)
        return self._names

    def items(self) -> dict[Any, Any]:
        """Return the mirror of keys and values, which follows later changes."""
        self._note_query(ALL)
        if self._items is None:
            self.hold_keys(values=False)
            made = self._empty()
            for key in self.native.__iter__(self.container):
                self._mirror(made, key, self.read(self._traced(key)))
            self._items = made
        return self._items

    def read(self, key: Any) -> Any:
        """Return the value of a present key."""
        bare = self.place(key)
        if self.recording.has_written(self.container, bare):
            return self.recording.written(self.container, bare)
        value = self.native.__getitem__(self.container, bare)
        if isinstance(key, Traced) and self.recording.may_be_key(key.expr, self.access_path, value):
            return self.recording.found(self.access_path.at(key.expr), value)
        return self.recording.found(self.access_path.item(self.recording.pin(key, "used as a key")), value)

    def store(self, key: Any, value: Any) -> None:
        """Do ``container[key] = value``."""
        self.record_store(key, value)
        self.native.__setitem__(self.container, plain(key), self.recording.bare(value))

    def record_store(self, key: Any, value: Any) -> None:
        """Record ``container[key] = value``. The caller does the store itself, if it is needed."""
        key = self.place(key)
        new = not self.native.__contains__(self.container, key)
        if new:
            self.reorder()
            self._last = key
        else:
            self.recording.dropping(self.native.__getitem__(self.container, key))
        self.touch(key)
        for mirror in self._mirrors():
            self._mirror(mirror, key, value if mirror is self._items else None)
        self.recording.store("item", self.container, self._traced(key), value, self.access_path, new=new)

    def remove(self, key: Any) -> None:
        """Do ``del container[key]`` for a present key."""
        self.record_removal(key)
        self.native.__delitem__(self.container, plain(key))

    def record_removal(self, key: Any) -> None:
        """Record ``del container[key]``, which the caller does afterwards, with a guard on the presence of the key."""
        if self.has(key):
            self.recording.dropping(self.native.__getitem__(self.container, plain(key)))
        key = self.place(key)
        self.reorder()
        self.touch(key)
        if self._last is not ABSENT and self._last == key:
            self._last = ABSENT
        for mirror in self._mirrors():
            del mirror[key]
        self.recording.store("delete-item", self.container, self._traced(key), ABSENT, self.access_path)

    def clear(self) -> None:
        for value in self.native.values(self.container):
            self.recording.dropping(value)
        super().clear()
        self._last = ABSENT
        for mirror in self._mirrors():
            mirror.clear()

    def move_to_end(self, key: Any, last: bool) -> None:
        """Do ``container.move_to_end(key, last)`` of an OrderedDict. Raises KeyError."""
        key = self.recording.pin(key, "used as a key")
        if self.has(key):
            self.reorder()
        self.native.move_to_end(self.container, key, last)
        if last:
            self._last = key
        elif self._last is not ABSENT and self._last == key:
            self._last = ABSENT
        for mirror in self._mirrors():
            mirror.move_to_end(key, last)  # type: ignore[attr-defined]
        self.recording.mutate(self.native, "move_to_end", (key, last), self.access_path)

    def end(self, last: bool) -> Any:
        """Return the last (or first) key of a dictionary that is not empty."""
        if not last or self._last is ABSENT:
            self.hold_keys()
        elif self._last in self._present_before:
            self._absent(self._last, self._present_before[self._last])
        keys = reversed(self.container) if last else self.native.__iter__(self.container)
        return next(iter(keys))


class SetShadow(KeyedShadow):
    """The shadow of a set or frozenset. Its order depends on more than the elements, so it is known only while the run
    has not changed the set, or after the run has cleared it."""

    @property
    def ordered(self) -> bool:
        """Whether the order of the elements is known."""
        return not self.changed or self.emptied or len(self.container) < 2

    def elements(self) -> tuple[Any, ...]:
        """Return all elements, in the order of the set if that is known. Guards on all keys."""
        self.hold_keys()
        return tuple(self.native.__iter__(self.container))

    def add(self, key: Any) -> None:
        """Do ``container.add(key)``."""
        key = self.place(key)
        if not self.native.__contains__(self.container, key):
            self.reorder()
        self.touch(key)
        self.native.add(self.container, key)
        self.recording.mutate(self.native, "add", (self._traced(key),), self.access_path)

    def discard(self, key: Any) -> None:
        """Do ``container.discard(key)``."""
        key = self.place(key)
        if self.native.__contains__(self.container, key):
            self.reorder()
        self.touch(key)
        self.native.discard(self.container, key)
        self.recording.mutate(self.native, "discard", (self._traced(key),), self.access_path)

    def change(self, method: str, others: Iterable[Any]) -> None:
        """Do a method that changes many elements at once, like ``intersection_update``."""
        given = tuple(others)
        touched = {key for other in given for key in other}
        if method == "intersection_update":
            self.hold_keys()
            touched.update(self.native.__iter__(self.container))
        elif method == "symmetric_difference_update":
            for key in touched:
                self.has(key)
        self.reorder()
        for key in touched:
            self.touch(self.place(key))
        getattr(self.native, method)(self.container, *given)
        self.recording.mutate(self.native, method, given, self.access_path)
