"""What a dictionary or set from before the call holds, as the run sees it: its keys in order, where each came from.

The container itself is changed at once, since a watched run is real. A shadow records what reads take for granted of
the container as it was *before* the call, and no more: a key that the run stored itself needs no assumption. Knows
nothing of hooks.
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
from torchjanus.trace.values import ON_HASH, Apply, Expr, Read, Traced, leaves, plain, trace_value

__all__ = ["KeyedShadow", "MappingShadow", "SetShadow"]


class KeyedShadow:
    """What dictionaries and sets have in common: membership, length and truth."""

    def __init__(self, recording: Recording, container: Any, access_path: AccessPath) -> None:
        self.recording = recording
        self.container = container
        self.access_path = access_path
        self.native = native_class(type(container))
        self.keys_before: tuple[Any, ...] | None = None  # once the run has changed them
        self._was: dict[Any, bool] = {}  # of each key that the run stored or removed: was it there before the call?
        self.emptied = False  # the run has removed all there was: what is there now is known
        self._made_of: dict[Any, Expr] = {}  # keys of this run that were computed: they differ from call to call
        self._held = False  # all keys are: computed ones have to be, too

    def place(self, key: Any) -> Any:
        """The bare key. A computed one (a step counter) is told apart from the others that the run has met, so that
        its value need not be assumed."""
        bare = plain(key)
        if isinstance(key, Traced):
            known = self._made_of.get(bare)
            if self._held or not all(isinstance(leaf, Read) for leaf in leaves(key.expr)):
                return self.recording.pin(key, "used as a key")
            if known is None or known.token != key.expr.token:
                for other in self._was:
                    self._compare(key.expr, bare, self._made_of.get(other, other), other)
                if bare not in self._was:
                    self._made_of[bare] = key.expr
        else:
            for other, expr in self._made_of.items():
                self._compare(expr, other, key, key)
        return bare

    def _compare(self, expr: Expr, value: Any, other: Any, other_value: Any) -> None:
        if isinstance(value, str) is isinstance(other_value, str) and isinstance(other_value, int | float | str):
            self.recording.hold(Apply(operator.eq, (expr, other)), value == other_value)

    def _traced(self, key: Any) -> Any:
        """The key with its expression, if it has one."""
        expr = self._made_of.get(key)
        return key if expr is None else trace_value(key, expr)

    def _absent(self, key: Any, present: bool) -> None:
        self.recording.absent(self.access_path, self._traced(key), present)

    # -- reads ----------------------------------------------------------------------------------------------------

    @property
    def changed(self) -> bool:
        """Whether this run has added or removed keys, or put them in another order."""
        return self.keys_before is not None

    def has(self, key: Any) -> bool:
        """``key in container``."""
        key = self.place(key)
        self._asked(key_token(self._traced(key)))
        present: bool = self.native.__contains__(self.container, key)
        if key not in self._was and not self.emptied:
            self._absent(key, present)
        return present

    def _asked(self, key: Any) -> None:
        """Somebody asks whether a key is there, or which are, of what the run has changed."""
        if self._was or self.emptied:
            self.recording.trace.reread.append((len(self.recording.trace.events), (self.access_path.token, key)))

    def length(self) -> Any:
        """``len(container)``: an expression over the length before the call."""
        self._asked(ALL)
        now = self.native.__len__(self.container)
        if self.emptied:
            return now
        for key, was in self._was.items():
            self._absent(key, was)
        access_path = self.access_path.then(Step.LEN)
        if self.keys_before is None:
            return self.recording.found(access_path, now)
        before = len(self.keys_before)
        self.recording.found(access_path, before)
        return trace_value(now, Apply(operator.add, (Read(access_path), now - before)))

    def filled(self) -> bool:
        """The container's truth."""
        self._asked(ALL)
        filled: bool = self.native.__len__(self.container) > 0
        if self.emptied or any(self.native.__contains__(self.container, key) for key in self._was):
            return filled
        if self.keys_before is None and not self._was:
            self.recording.filled(self.access_path, filled)
        else:
            self.hold_keys()
        return filled

    def hold_keys(self, values: bool = True) -> None:
        """What is read from now on depends on all the keys that there were, and on their order. ``values``: and on the
        very values of those that the run has computed."""
        if not self.emptied:
            now = tuple(self.native.__iter__(self.container))
            self.recording.keys(self.access_path, self.keys_before if self.keys_before is not None else now)
        if values:
            for key in self._made_of:
                self.recording.pin(self._traced(key), "one of the keys, which are read")
            self._held = True

    # -- changes: called before the real ones ------------------------------------------------------------------------

    def touch(self, key: Any) -> None:
        """The run is about to store or remove this key."""
        if key not in self._was:
            self._was[key] = self.native.__contains__(self.container, key)

    def reorder(self) -> None:
        """The run is about to change the keys or their order."""
        if self.keys_before is None:
            self.keys_before = tuple(self.native.__iter__(self.container))
            self.recording.keep((self.container, self.keys_before))

    def clear(self) -> None:
        """``container.clear()``."""
        self.reorder()
        self.recording.forget_writes(self.container)
        self.native.clear(self.container)
        self.emptied = True
        self.recording.mutate(self.native, "clear", (), self.access_path)


class MappingShadow(KeyedShadow):
    """A dictionary. ``_names`` and ``_items`` are private dictionaries with the same keys, the second with values as
    the run has them: native code reads those instead, and their views see later changes."""

    def __init__(self, recording: Recording, container: Any, access_path: AccessPath) -> None:
        super().__init__(recording, container, access_path)
        self._names: dict[Any, None] | None = None
        self._items: dict[Any, Any] | None = None
        self._last: Any = ABSENT  # a key that is known to be the last, whatever the others are

    def _mirrors(self) -> Iterator[dict[Any, Any]]:
        if self._names is not None:
            yield self._names
        if self._items is not None:
            yield self._items

    def _empty(self) -> Any:
        return collections.OrderedDict() if self.native is collections.OrderedDict else {}

    def _mirror(self, mirror: dict[Any, Any], key: Any, value: Any) -> None:
        """Put a key into a mirror, with its expression: whoever reads it there need not have its value assumed."""
        listening = ON_HASH.set(None)
        mirror[self._traced(key)] = value
        ON_HASH.reset(listening)

    def names(self) -> dict[Any, None]:
        """A dictionary with the same keys. Later changes are made to it, too."""
        self._asked(ALL)
        if self._names is None:
            self.hold_keys(values=False)
            self._names = self._empty()
            for key in self.native.__iter__(self.container):
                self._mirror(self._names, key, None)
        return self._names

    def items(self) -> dict[Any, Any]:
        """A dictionary with the same keys and values. Later changes are made to it, too."""
        self._asked(ALL)
        if self._items is None:
            self.hold_keys(values=False)
            made = self._empty()
            for key in self.native.__iter__(self.container):
                self._mirror(made, key, self.read(self._traced(key)))
            self._items = made
        return self._items

    def read(self, key: Any) -> Any:
        """The value of a key that is there."""
        bare = self.place(key)
        if self.recording.has_written(self.container, bare):
            return self.recording.written(self.container, bare)
        value = self.native.__getitem__(self.container, bare)
        if isinstance(key, Traced) and self.recording.may_be_key(key.expr, self.access_path, value):
            return self.recording.found(self.access_path.at(key.expr), value)
        return self.recording.found(self.access_path.item(self.recording.pin(key, "used as a key")), value)

    def store(self, key: Any, value: Any) -> None:
        """``container[key] = value``."""
        self.storing(key, value)
        self.native.__setitem__(self.container, plain(key), self.recording.bare(value))

    def storing(self, key: Any, value: Any) -> None:
        """``container[key] = value``, which the caller is about to do or has made sure not to need."""
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
        """``del container[key]`` of a key that is there."""
        self.removing(key)
        self.native.__delitem__(self.container, plain(key))

    def removing(self, key: Any) -> None:
        """``del container[key]``, which the caller is about to do. The key is there, and has to be."""
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
        """``container.move_to_end(key, last)`` of an OrderedDict. Raises KeyError."""
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
        """The last (or first) key of a dictionary that is not empty."""
        if not last or self._last is ABSENT:
            self.hold_keys()
        elif self._last in self._was:
            self._absent(self._last, self._was[self._last])
        keys = reversed(self.container) if last else self.native.__iter__(self.container)
        return next(iter(keys))


class SetShadow(KeyedShadow):
    """A set, or a frozenset. In which order a set yields its elements depends on more than the elements, so it is
    known only as long as the run has not changed the set, or after it has emptied it."""

    @property
    def ordered(self) -> bool:
        """Whether the order of the elements is known."""
        return not self.changed or self.emptied or len(self.container) < 2

    def elements(self) -> tuple[Any, ...]:
        """The elements, all of them, in the set's order if that is known."""
        self.hold_keys()
        return tuple(self.native.__iter__(self.container))

    def add(self, key: Any) -> None:
        """``container.add(key)``."""
        key = self.place(key)
        if not self.native.__contains__(self.container, key):
            self.reorder()
        self.touch(key)
        self.native.add(self.container, key)
        self.recording.mutate(self.native, "add", (self._traced(key),), self.access_path)

    def discard(self, key: Any) -> None:
        """``container.discard(key)``."""
        key = self.place(key)
        if self.native.__contains__(self.container, key):
            self.reorder()
        self.touch(key)
        self.native.discard(self.container, key)
        self.recording.mutate(self.native, "discard", (self._traced(key),), self.access_path)

    def change(self, method: str, others: Iterable[Any]) -> None:
        """A method that changes many elements at once, like ``intersection_update``."""
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
