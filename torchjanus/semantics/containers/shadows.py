"""Model lists and deques from before the call while the run changes them; and keep the shadows of all containers.

A shadow knows for each element whether it is from the heap before the call or from this run.
"""

from __future__ import annotations

import collections
import operator
from typing import Any

from torchjanus.core.access_path import AccessPath, Step, native_class
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.containers.keyed import KeyedShadow, MappingShadow, SetShadow
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.trace.values import Apply, Read, TracedInt, leaves, plain, trace_value

__all__ = ["SequenceShadow", "Shadows"]

_NEW = -1


def bounded_length(before: int, appended: int, maxlen: int) -> int:
    """Return the length of a deque of ``maxlen`` after ``appended`` appends."""
    return min(before + appended, maxlen)


def dropped_before(before: int, appended: int, maxlen: int) -> int:
    """Return how many elements a deque of ``maxlen`` drops at its front during ``appended`` appends."""
    return max(before + appended - maxlen, 0)


_Item = tuple[int, Any]  # index before the call or _NEW, value


class SequenceShadow:
    """The elements of one list or deque.

    ``grown``: its length minus that before the call; ``tail``: the number of elements at its end that are of this run
    for any length before the call; ``bounded``: whether the growth depends on the length before the call.
    """

    def __init__(self, recording: Recording, container: Any, access_path: AccessPath, copies: list[list[Any]]) -> None:
        self.recording = recording
        self.container = container
        self.copies = copies  # copies that native code iterates over in place of the container
        self.access_path = access_path
        self.native = native_class(type(container))
        self.maxlen: int | None = None
        if isinstance(container, collections.deque):
            bound = recording.found(access_path.then(Step.FIELD, "maxlen"), container.maxlen)
            self.maxlen = recording.pin(bound, "bounds a deque")
        self.before: int = self.native.__len__(container)
        self.bounded = self.maxlen is not None
        self.emptied = False  # no element from before the call is left, whatever the length was
        self.items: list[_Item] = list(enumerate(self.native.__iter__(container)))
        self.contents = [value for _, value in self.items]  # before the call
        self.appended: list[Any] | None = []  # None once the run has done anything else
        self.grown = 0
        self.tail = 0
        self.append_count: int | None = 0  # None once the run has done more than append and index stores
        # Stores by computed indices: index and value. The run specialises on the indices only if it reads.
        self._computed: list[tuple[TracedInt, Any]] = []

    # -- reads ----------------------------------------------------------------------------------------------------

    def hold_length(self) -> None:
        """Specialise on the length before the call and on computed indices, since reads from now on depend on them."""
        while self._computed:
            self.recording.pin(self._computed.pop()[0], "which of the elements it is decides what is read")
        if not self.emptied:
            length = self.recording.found(self.access_path.then(Step.LEN), self.before)
            self.recording.pin(length, "the length decides what is read")

    def length(self) -> Any:
        """Return ``len(container)`` as an expression of the length before the call."""
        access_path = self.access_path.then(Step.LEN)
        if self.maxlen is not None and self.appended is not None:
            self.recording.found(access_path, self.before)
            expr = Apply(bounded_length, (Read(access_path), len(self.appended), self.maxlen))
            return trace_value(len(self.items), expr)
        if self.bounded or self.emptied:
            self.hold_length()
            return len(self.items)
        self.recording.found(access_path, self.before)
        return trace_value(len(self.items), Apply(operator.add, (Read(access_path), self.grown)))

    def filled(self) -> bool:
        """Return the truth value of the container."""
        if self.tail == 0:
            self.hold_length()
        return bool(self.items)

    def _value(self, item: _Item) -> Any:
        index, value = item
        return value if index == _NEW else self.recording.found(self.access_path.item(index), value)

    def at(self, index: int) -> Any:
        """Return the element at an index. The caller has specialised on the length."""
        return self._value(self.items[index])

    def read(self, index: int) -> Any:
        """Return ``container[index]``. Raises IndexError."""
        if self._computed:
            self.hold_length()
        if index < 0 and self.tail == self.grown and not self.bounded and not self.emptied:
            # After appends only, a negative index reads an old element independent of the length.
            place, value = self.items[index]
            return value if place == _NEW else self.recording.found(self.access_path.item(place - self.before), value)
        if not -self.tail <= index < 0:
            self.hold_length()
        return self._value(self.items[index])

    def element_at(self, index: TracedInt) -> Any:
        """Return ``container[index]`` for a traced index, if the run has done nothing but append and store by traced
        indices; ABSENT if the index has to be specialised."""
        bare = plain(index)
        if self.append_count is None or not 0 <= bare < len(self.items):
            return ABSENT
        recording, length = self.recording, self.access_path.then(Step.LEN)
        place, value = self.items[bare]
        if not recording.may_be_key(index.expr, self.access_path, value):
            return ABSENT
        recording.found(length, self.before)
        for where, _ in reversed(self._computed):
            if recording.hold(Apply(operator.eq, (index.expr, where.expr)), plain(where) == bare):
                return value
        expr, old = index.expr, bare
        if self.maxlen is not None:
            counts = (self.before, self.append_count, self.maxlen)
            expr = Apply(operator.add, (expr, Apply(dropped_before, (Read(length), *counts[1:]))))
            old += dropped_before(*counts)
        if place == _NEW:
            recording.hold(Apply(operator.eq, (expr, Apply(operator.add, (Read(length), old - self.before)))), True)
            return value
        recording.hold(Apply(operator.ge, (index.expr, 0)), True)
        recording.hold(Apply(operator.lt, (expr, Read(length))), True)
        return recording.found(self.access_path.at(expr), value)

    # -- changes (of the container itself, too) ---------------------------------------------------------------------

    def _update_copies(self) -> None:
        """Update the copies over which native code iterates."""
        for copy in self.copies:
            copy[:] = map(self._value, self.items)

    def _record(self, method: str, *args: Any) -> None:
        self._update_copies()
        if method not in ("append", "extend"):
            self.appended = self.append_count = None
        else:
            added = args[0] if method == "extend" else args
            if self.appended is not None:
                self.appended.extend(added)
            if self.append_count is not None:
                self.append_count += len(added)
        self.recording.mutate(self.native, method, args, self.access_path)

    def store(self, index: int, value: Any) -> None:
        """Do ``container[index] = value``. Raises IndexError."""
        self.appended = self.append_count = None
        self.hold_length()
        bare = self.recording.bare(value)
        if -len(self.items) <= index < len(self.items):
            self.recording.dropping(self.items[index][1])
        self.native.__setitem__(self.container, index, bare)
        self.items[index] = (_NEW, value)
        self._update_copies()
        self.recording.store("item", self.container, index % len(self.items), value, self.access_path)

    def store_at(self, index: TracedInt, value: Any) -> None:
        """Do ``container[index] = value`` with a traced index that may vary from call to call."""
        bare = plain(index)
        bound = Apply(operator.add, (Read(self.access_path.then(Step.LEN)), self.grown))
        known = all(isinstance(leaf, Read) for leaf in leaves(index.expr))
        if not known or self.emptied or self.bounded or not 0 <= bare < len(self.items):
            self.store(self.recording.pin(index, "used as an index"), value)
            return
        self.appended = None
        self.recording.found(self.access_path.then(Step.LEN), self.before)
        self.recording.hold(Apply(operator.ge, (index.expr, 0)), True)
        self.recording.hold(Apply(operator.lt, (index.expr, bound)), True)
        self.native.__setitem__(self.container, bare, self.recording.bare(value))
        self.items[bare] = (_NEW, value)
        self.tail = 0
        self._update_copies()
        self.recording.store("item", self.container, index, value, self.access_path)
        self._computed.append((index, value))

    def take(self, index: int, method: str, *args: Any) -> Any:
        """Do ``container.pop(index)`` by ``method`` and return the element. Raises IndexError."""
        if not -len(self.items) <= index < len(self.items):
            self.hold_length()
            return getattr(self.native, method)(self.container, *args)
        value = self.read(index)
        self.recording.dropping(value)
        getattr(self.native, method)(self.container, *args)
        del self.items[index]
        self.grown -= 1
        self.tail = max(0, self.tail - 1) if index == -1 else min(self.tail, len(self.items))
        self._record(method, *args)
        return value

    def grow(self, method: str, *args: Any) -> None:
        """Do ``append``, ``appendleft``, ``extend``, ``extendleft`` (of a list of elements) or ``insert``."""
        if self._computed:
            self.hold_length()
        was = len(self.items)
        many = method in ("extend", "extendleft")
        given = [self.recording.bare(part) for part in args[0]] if many else self.recording.bare(args[-1])
        getattr(self.native, method)(self.container, *args[:-1], given)
        mirror: Any = self.items if self.maxlen is None else collections.deque(self.items, self.maxlen)
        if self.maxlen is None and method.endswith("left"):
            mirror = collections.deque(self.items)
        getattr(mirror, method)(*args[:-1], [(_NEW, v) for v in args[0]] if many else (_NEW, args[-1]))
        self.items = list(mirror)
        self.grown += len(self.items) - was
        if method in ("append", "extend"):
            self.tail = min(self.tail + (len(args[0]) if many else 1), len(self.items))
        elif method == "insert":
            self.tail = 0
        else:
            self.tail = min(self.tail, len(self.items)) if self.maxlen is None else 0
        self._record(method, *args)

    def clear(self) -> None:
        """Do ``container.clear()``."""
        self._computed.clear()
        for _, value in self.items:
            self.recording.dropping(value)
        self.native.clear(self.container)
        self.items, self.grown, self.tail, self.emptied = [], -self.before, 0, True
        self._record("clear")

    def reorder(self, method: str, *args: Any) -> None:
        """Do ``reverse`` or ``rotate``. The result depends on positions only."""
        if self._computed:
            self.hold_length()
        getattr(self.native, method)(self.container, *args)
        mirror: Any = self.items if method == "reverse" else collections.deque(self.items)
        getattr(mirror, method)(*args)
        self.items, self.tail = list(mirror), 0
        self._record(method, *args)

    def put(self, where: slice, values: list[Any]) -> None:
        """Do ``container[where] = values``. Raises ValueError if their number does not fit."""
        was = len(self.items)
        self.hold_length()
        self.native.__setitem__(self.container, where, [self.recording.bare(value) for value in values])
        self.items[where] = [(_NEW, value) for value in values]
        self._reshaped(was)
        self._record("__setitem__", where, values)

    def delete(self, where: int | slice) -> None:
        """Do ``del container[where]``. Raises IndexError."""
        was = len(self.items)
        self.hold_length()
        self.native.__delitem__(self.container, where)
        del self.items[where]
        self._reshaped(was)
        self._record("__delitem__", where)

    def _reshaped(self, was: int) -> None:
        self.grown += len(self.items) - was
        self.tail = 0

    def arrange(self, values: list[Any], order: list[int]) -> None:
        """Permute the elements: index ``i`` gets element ``order[i]``. ``values``: the traced elements."""
        self.hold_length()
        held = list(self.native.__iter__(self.container))
        self.items = [self.items[index] for index in order]
        self.native.__setitem__(self.container, slice(None), [held[index] for index in order])
        self.tail = 0
        self._record("__setitem__", slice(None), [values[index] for index in order])


class Shadows:
    """The shadows of one run, by id of the container. The recording keeps the containers alive."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording
        self._sequences: dict[int, SequenceShadow] = {}
        self._copies: dict[int, list[list[Any]]] = {}
        self._through: dict[int, Any] = {}  # the lists that have such copies
        self._keyed: dict[int, KeyedShadow] = {}

    def clear(self) -> None:
        """Drop all shadows, since the run has ended."""
        self._sequences.clear()
        self._copies.clear()
        self._through.clear()
        self._keyed.clear()

    def of(self, container: Any) -> SequenceShadow | None:
        """Return the shadow of a list or deque that this run has changed, or None."""
        return None if self.recording.lost else self._sequences.get(id(container))

    def make(self, container: Any, access_path: AccessPath) -> SequenceShadow:
        """Return the shadow of a list or deque before a change. It is made if there is none."""
        shadow = self.of(container)
        if shadow is None:
            self.recording.keep(container)
            copies = self._copies.setdefault(id(container), [])
            shadow = self._sequences[id(container)] = SequenceShadow(self.recording, container, access_path, copies)
        return shadow

    def gone_through(self, container: Any, copy: list[Any]) -> None:
        """Register a copy over which native code iterates while the run may change the list."""
        self.recording.keep(container)
        self._copies.setdefault(id(container), []).append(copy)
        self._through[id(container)] = container

    def follow(self) -> None:
        """Update the copies over which native code iterates, after changes that were not watched."""
        for number, container in self._through.items():
            for copy in self._copies[number]:
                copy[:] = container

    def _keyed_shadow(self, container: Any, access_path: AccessPath, kind: type[KeyedShadow]) -> Any:
        shadow = self._keyed.get(id(container))
        if shadow is None or self.recording.lost:
            self.recording.keep(container)
            made = self._keyed[id(container)] = kind(self.recording, container, access_path)
            if shadow is not None:
                made.adopt(shadow)
            return made
        return shadow

    def mapping(self, container: Any, access_path: AccessPath) -> MappingShadow:
        """Return the shadow of a dictionary."""
        shadow: MappingShadow = self._keyed_shadow(container, access_path, MappingShadow)
        return shadow

    def set(self, container: Any, access_path: AccessPath) -> SetShadow:
        """Return the shadow of a set or frozenset."""
        shadow: SetShadow = self._keyed_shadow(container, access_path, SetShadow)
        return shadow
