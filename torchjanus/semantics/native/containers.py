"""Reads of containers by native code: their elements and lengths, one by one or all at once."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step, native_class
from torchjanus.core.default_device import foreign_modes, sees_calls
from torchjanus.core.kinds import hasattr, is_one_of, isinstance, module_of
from torchjanus.rewrite.hooks.lookup import on_type
from torchjanus.semantics.containers.keyed import SetShadow
from torchjanus.semantics.known.live_views import ITEMS, KEYS, VALUES, dictionary_behind, is_view
from torchjanus.semantics.native.class_namespaces import refuse_view
from torchjanus.semantics.native.keys import NativeKeys
from torchjanus.semantics.native.paired_iterators import paired
from torchjanus.semantics.native.watch_hooks import WatchHooks
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.trace.values import Apply, Traced, TracedInt, TracedStr, plain, trace_value

__all__ = ["CONTAINERS", "NativeContainers", "WatchHooks", "as_given"]

_SEQUENCES = (list, tuple, collections.deque)
CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
# Those whose elements may change, or grow in number, while an iterator goes through them.
_CHANGING = (dict, set, list, collections.deque)
_READING = ("__iter__", "__len__", "__contains__")


class NativeContainers(NativeKeys):
    """Reads containers for the native calls of one watched run."""

    def opened(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of a framework call, with the traced numbers in containers from before the call."""
        self.recording.opened = False
        return tuple(map(self._opened, args)), {key: self._opened(value) for key, value in kwargs.items()}

    def _opened(self, value: Any) -> Any:
        if not isinstance(value, CONTAINERS) or isinstance(value, torch.Size):
            return value
        self.recording.opened |= self.recording.owner(value) is not None
        copy = self.consumed(value)
        if isinstance(copy, dict):
            parts: Any = {key: self._opened(part) for key, part in dict.items(copy)}
            same = all(parts[key] is part for key, part in dict.items(copy))
        else:
            parts = [self._opened(part) for part in copy]
            same = all(new is old for new, old in zip(parts, copy, strict=True))
        if same:
            return copy
        if isinstance(copy, dict):
            return parts
        return type(copy)(*parts) if hasattr(copy, "_fields") else type(copy)(parts)

    def expose(self, value: Any, *, pin: bool = True) -> None:
        """Read a whole container, since native code is about to do so. ``pin``: hold the numbers in it constant."""
        if isinstance(value, Traced):
            if pin:
                self.recording.pin(value, "read by native code")
        elif isinstance(value, CONTAINERS):
            if self.recording.owner(value) is not None:
                held = self.consumed(value)
                for part in (*held, *held.values()) if isinstance(held, dict) else held:
                    self.expose(part, pin=pin)
            else:
                for part in dict.values(value) if isinstance(value, dict) else value:
                    self.expose(part, pin=pin)
        elif isinstance(value, BaseException) and self.recording.owner(value) is None:
            for part in value.args:
                self.expose(part, pin=pin)

    # -- containers -----------------------------------------------------------------------------------------------

    def whole_length(self, obj: Any) -> None:
        """Hold constant the length that a list, tuple or deque had before the call."""
        shadow = self.shadows.of(obj)
        if shadow is not None:
            shadow.hold_length()
            return
        access_path = self.recording.owner(obj)
        assert access_path is not None
        self.recording.pin(self.recording.length(access_path, obj), "the length decides what is read")

    def element(self, obj: Any, index: int) -> Any:
        """Return ``obj[index]`` of a list, tuple or deque from before the call. The index is within its bounds."""
        shadow = self.shadows.of(obj)
        if shadow is not None:
            return shadow.read(index)
        access_path = self.recording.owner(obj)
        assert access_path is not None
        return self.recording.read_key(access_path, obj, index)

    def element_at(self, obj: Any, index: TracedInt) -> Any:
        """Return ``obj[index]`` of a varying index; ABSENT if the index has to be constant. Raises IndexError."""
        access_path, bare = self.recording.owner(obj), plain(index)
        if access_path is None or not isinstance(obj, _SEQUENCES):
            return ABSENT
        if (shadow := self.shadows.of(obj)) is not None:
            return shadow.element_at(index)
        native = native_class(type(obj))
        length = native.__len__(obj)
        within = _within(bare, length)
        if not self.recording.may_be_key(index.expr, access_path, native.__getitem__(obj, bare) if within else None):
            return ABSENT
        if not within:
            known = self.recording.length(access_path, obj).expr
            self.recording.hold(Apply(_within, (index.expr, known)), False)
        return self.recording.found(access_path.at(index.expr), native.__getitem__(obj, bare))

    def sought(self, key: Any) -> Any:
        """Return the frozen copy that a set looks for where it is asked for a set without a hash; else the key."""
        if isinstance(key, set) and on_type(type(key), "__hash__") is None:
            return frozenset(self.consumed(key))
        return key

    def behind(self, value: Any) -> Any:
        """Return the dictionary behind a view from before the call; anything else as it is."""
        access_path = self.recording.owner(value) if is_view(value) else None
        if access_path is None or self.classes.is_shown(value):
            return value
        held = dictionary_behind(value)
        if held is None:
            return value
        self.recording.found(access_path.then(Step.OF, dictionary_behind), held)
        return value if self.recording.owner(held) is None else held

    def live(self, value: Any) -> Any:
        """Return a view with the contents that the run knows in place of a view from before the call: a view of the
        dictionary's shadow, or the dictionary itself. Return anything else as it is."""
        held = self.behind(value)
        if held is value or isinstance(value, types.MappingProxyType):
            return held
        found = self.recording.owner(held)
        assert found is not None
        shadow = self.shadows.mapping(held, found)
        if isinstance(value, VALUES):
            return shadow.items().values()
        self._claim_keys(shadow.names())
        return shadow.names().keys() if isinstance(value, KEYS) else shadow.items().items()

    def changing(self, given: Any, read: Any) -> Any:
        """Return the container or view from before the call whose elements ``read`` has in this run, if they may
        change; else None."""
        if read is given:
            view = self.recording.view_in_heap(given)
            return None if view is given else view
        return given if isinstance(given, _CHANGING) or is_view(given) else None

    def shown(self, value: Any) -> Any:
        """Return an operand that native code compares or joins: a view with the numbers in it held constant."""
        value = self.live(value)
        if not isinstance(value, ITEMS) or self.recording.owner(value) is not None:
            return value
        held: Any = value.mapping  # type: ignore[attr-defined]
        pinned = {key: self._pinned(held[key], "compared in a view") for key in held}
        return pinned.items()

    def iterable(self, obj: Any) -> Iterable[Any]:
        """Return the elements of ``obj`` in order, read one by one if it is from before the call."""
        given, obj = obj, self.live(obj)
        if is_view(obj) and (held := self.changing(given, obj)) is not None:
            return paired(self.recording, held, obj)
        access_path = self.recording.owner(obj)
        if access_path is None or isinstance(obj, torch.Tensor | range | str | bytes):
            return self.recording.pin(obj, "its characters are taken")  # type: ignore[no-any-return]
        if isinstance(obj, _SEQUENCES):
            return self._sequence(access_path, obj, native_class(type(obj)).__iter__(obj))
        if isinstance(obj, dict | set | frozenset) and self.runs_changing_code(obj):
            return obj
        if isinstance(obj, dict):
            names = self.shadows.mapping(obj, access_path).names()
            self._claim_keys(names)
            return self._names(native_class(type(obj)).__iter__(obj), names)
        if isinstance(obj, set | frozenset):
            shadow = self.shadows.set(obj, access_path)
            if not shadow.ordered:
                self.recording.refuse(
                    "set-order",
                    "relies on the order of a set that the call has changed",
                    "that order depends on more than the set's elements.",
                    "Use sorted(), or a dictionary.",
                )
            return self._set_elements(shadow, shadow.native.__iter__(obj))
        if self.classes.is_shown(obj):
            self.classes.record_whole_read(obj)
            return obj  # type: ignore[no-any-return]
        if isinstance(obj, types.MappingProxyType) or (module_of(type(obj)) == "builtins" and hasattr(obj, "mapping")):
            return obj  # type: ignore[no-any-return]
        self.recording.refuse(
            "container-unwatched",
            f"iterates over a {type(obj).__name__} that was there before the call",
            "taking an element from it is a side effect outside of the graph.",
            "Take the elements outside of the step and pass them in.",
        )
        return obj  # type: ignore[no-any-return]

    def _claim_keys(self, keys: Iterable[Any]) -> None:
        for key in keys:
            if not isinstance(key, str | int | float | bool | type(None)):
                self.recording.claim(key, AccessPath.const(key))

    def _names(self, own: Iterator[Any], names: Iterable[Any]) -> Iterator[Any]:
        known = iter(names)
        for name in own:  # ends or raises as the container's own iterator does
            yield name if self.recording.over else next(known, name)

    def _set_elements(self, shadow: SetShadow, own: Iterator[Any]) -> Iterator[Any]:
        self._claim_keys(shadow.elements())
        yield from own

    def _sequence(self, access_path: AccessPath, obj: Any, own: Iterator[Any]) -> Iterator[Any]:
        if not self.recording.over:
            self.whole_length(obj)
        for index, element in enumerate(own):
            if self.recording.over:  # for a generator that has left the step
                yield element
                continue
            shadow = self.shadows.of(obj)
            yield self.recording.read_key(access_path, obj, index) if shadow is None else shadow.at(index)

    def consumed(self, value: Any) -> Any:
        """Return a private copy of a container from before the call, its elements traced; else the value. A set is
        returned itself, for its elements are bare, and no copy need have its order."""
        value = self.live(value)
        access_path = self.recording.owner(value)
        if access_path is None or not isinstance(value, CONTAINERS):
            return value
        if isinstance(value, dict | set | frozenset) and self.runs_changing_code(value):
            return dict(value) if isinstance(value, dict) else _read_natively(value)
        if isinstance(value, dict):
            mapping = self.shadows.mapping(value, access_path)
            self._claim_keys(mapping.names())
            return dict(mapping.items())
        if isinstance(value, set | frozenset):
            self._claim_keys(self.shadows.set(value, access_path).elements())
            return _read_natively(value)
        parts = list(self.iterable(value))
        if isinstance(value, list):
            return parts
        if isinstance(value, collections.deque):
            return collections.deque(parts, value.maxlen)
        return tuple(parts) if type(value) is tuple or not hasattr(value, "_fields") else type(value)(*parts)

    def _length(self, obj: Any) -> Any:
        obj = self.behind(obj)
        access_path = self.recording.owner(obj)
        if isinstance(obj, TracedStr):
            return trace_value(len(obj), Apply(len, (obj.expr,)))
        if isinstance(obj, torch.Tensor) and not foreign_modes() and not sees_calls(obj) and obj.dim():
            self.framework.ref(obj, "len")
            return self.framework.sizes.of(obj, 0)
        if access_path is None and type(obj) is list and (grown := self.recording.lists.length_of(obj)) is not None:
            return self.recording.found(grown.then(Step.SIZE, 0), len(obj))
        if (
            access_path is None
            and is_one_of(type(obj), (list, tuple))
            and (count := self.framework.sizes.count(obj)) is not None
        ):
            return trace_value(len(obj), count)
        if self.classes.is_shown(obj):
            self.classes.record_whole_read(obj)
            return len(obj)
        if access_path is None or isinstance(obj, torch.Tensor) or not isinstance(obj, CONTAINERS):
            if access_path is not None and not isinstance(obj, torch.Tensor | str | bytes | range):
                self.recording.refuse(
                    "container-unwatched", f"takes the length of a {type(obj).__name__}", "it is not watched.", ""
                )
            native = native_class(type(obj))
            return len(obj) if native is None else native.__len__(obj)
        if isinstance(obj, dict):
            return self.shadows.mapping(obj, access_path).length()
        if isinstance(obj, set | frozenset):
            return self.shadows.set(obj, access_path).length()
        shadow = self.shadows.of(obj)
        return self.recording.length(access_path, obj) if shadow is None else shadow.length()

    def filled(self, obj: Any, access_path: AccessPath) -> bool:
        """Return the truth of a container from before the call."""
        if isinstance(obj, dict):
            return self.shadows.mapping(obj, access_path).filled()
        if isinstance(obj, set | frozenset):
            return self.shadows.set(obj, access_path).filled()
        shadow = self.shadows.of(obj)
        if shadow is not None:
            return shadow.filled()
        self.recording.filled(access_path, bool(obj))
        return bool(obj)

    def contains(self, container: Any, key: Any) -> bool:
        """Return ``key in container``, where no Python code decides it."""
        container = self.behind(container) if isinstance(container, KEYS) else self.live(container)
        if isinstance(container, set | frozenset):
            key = self.sought(key)
        access_path = self.recording.owner(container)
        if isinstance(container, dict | set | frozenset):
            if self.runs_changing_code(container, key):
                return bool(native_class(type(container)).__contains__(container, plain(key)))
            if access_path is None:
                key = self.key(key, "looked up in a container")
                self.watch_lookup(container, key)
                return key in container
            placed = self.place(key, "looked up in a container")
            self.watch_lookup(container, key)
            if isinstance(container, dict):
                return self.shadows.mapping(container, access_path).has(placed)
            return self.shadows.set(container, access_path).has(placed)
        if isinstance(container, (list, tuple, collections.deque, VALUES)):
            return any(self.equal(element, key) for element in self.iterable(container))
        if isinstance(container, ITEMS):
            self.runs_unwatched_methods(container)
        if isinstance(container, ITEMS) and access_path is None and type(key) is tuple and len(key) == 2:
            held: Any = container.mapping  # type: ignore[attr-defined]
            name = self.key(key[0], "looked up in a container")
            return name in held and self.equal(held[name], key[1])
        key = self.recording.pin(key, "looked up in a container")
        if self.classes.is_shown(container):
            return self.classes.has(container, key)
        if isinstance(container, types.MappingProxyType) and self.recording.owner(container) is not None:
            refuse_view(self.recording)
        self.expose(container, pin=True)
        return operator.contains(container, key)

    def equal(self, a: Any, b: Any) -> bool:
        """Whether native code takes two elements as equal: they are one object, or compare equal."""
        if a is b:
            return True
        same = plain(a) is plain(b)
        if not isinstance(a, Traced) and not isinstance(b, Traced):
            return same or self.watch.branch(None, self.watch.compare(None, "==", a, b))
        if not same:
            return self.watch.branch(None, self.watch.compare(None, "==", a, b)) or self.watch.one_nan(a, b)
        if plain(a) != plain(a):
            self.recording.refuse_nan()
            return True
        # Equal small numbers are one object by chance: they may differ in another call. This is no decision: the first
        # iteration of a loop may compare constants.
        self.recording.hold(Apply(operator.eq, tuple(v.expr if isinstance(v, Traced) else v for v in (a, b))), True)
        return True

    def _pinned(self, value: Any, why: str) -> Any:
        value = self.recording.pin(value, why)
        if isinstance(value, CONTAINERS):
            self.expose(value, pin=True)
            if is_one_of(type(value), (list, tuple, set, frozenset, collections.deque)):
                parts = list(map(plain, value))
                same = not isinstance(value, list | collections.deque) and all(map(operator.is_, parts, value))
                return value if same else type(value)(parts)
        return value

    def _pin_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            self.recording.pin(value, "read by native code")
            self.expose(value)


def as_given(result: Any, given: Iterable[Any], copies: Iterable[Any]) -> Any:
    """Return what native code returned: one of the program's own objects where it returned its copy (``tuple(t)``)."""
    pairs = zip(given, copies, strict=True)
    return next((one for one, copy in pairs if copy is result and type(one) is type(copy)), result)


def _read_natively(elements: Any) -> Any:
    """Return a set, or a copy where its class has methods of its own for reading it."""
    native = native_class(type(elements))
    own = any(on_type(type(elements), name) is not on_type(native, name) for name in _READING)
    return native(native.__iter__(elements)) if own else elements


def _within(index: int, length: int) -> bool:
    return -length <= index < length
