"""Watch subscripts: reads and writes of items of containers and tensors."""

from __future__ import annotations

import collections
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.access_path import Step, native_class
from torchjanus.core.kinds import hasattr, is_one_of, isinstance
from torchjanus.host.deferred_writes import delete_item, set_item
from torchjanus.rewrite import Site
from torchjanus.semantics.protocols.leaves import MISSING, on_type
from torchjanus.semantics.protocols.protocols import Protocols
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.semantics.watch.objects.errors import Errors
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.values import TracedInt, TracedStr, plain

__all__ = ["Items"]

_BY_NUMBER = (list, tuple, dict, collections.deque)  # they treat a NumPy integer like a Python one


class Items(Part):
    """Subscripts. Old containers are read and written through their shadows, which record it."""

    def __init__(self, state: WatchState, semantics: Protocols, errors: Errors) -> None:
        super().__init__(state)
        self.semantics = semantics
        self.errors = errors

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        try:
            return self._load(at, obj, key)
        except IndexError:
            self.errors.hold_length(obj)
            raise

    def store_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        try:
            self._store(at, obj, key, value)
        except IndexError:
            self.errors.hold_length(obj)
            raise

    def _load(self, at: Site, obj: Any, key: Any) -> Any:
        self.at(at)
        recording = self.recording
        if isinstance(obj, torch.Tensor):
            return self._of_tensor(operator.getitem, torch.Tensor.__getitem__, obj, self._positions(key))
        obj = self.natives.live(obj)
        access_path = recording.owner(obj)
        if self.natives.classes.is_shown(obj):
            return self.natives.classes.item(obj, recording.pin(key, "used as an index"))
        if type(obj) is types.MappingProxyType and access_path is None:
            return self.natives.seen_by_view(obj, "__getitem__", obj[recording.pin(key, "used as an index")])
        if isinstance(key, slice):
            key = self._pinned_slice(key)
        elif is_one_of(type(obj), _BY_NUMBER) and hasattr(type(key), "__index__"):
            key = recording.number_within(key)
        if isinstance(obj, dict):
            if self.natives.runs_changing_code(obj, key):
                found = dict.get(obj, plain(key), ABSENT)
                return self._missing(at, obj, key) if found is ABSENT else found
            if access_path is None:
                key = self.natives.key(key)
                self.natives.watch_lookup(obj, key)
                return dict.__getitem__(obj, key) if dict.__contains__(obj, key) else self._missing(at, obj, key)
            placed = self.natives.place(key)
            self.natives.watch_lookup(obj, key)
            mapping = self.natives.shadows.mapping(obj, access_path)
            return mapping.read(placed) if mapping.has(placed) else self._missing(at, obj, key)
        if isinstance(key, TracedInt) and (found := self.natives.element_at(obj, key)) is not ABSENT:
            return found
        key = recording.pin(key, "used as an index")
        if isinstance(obj, TracedStr):
            return recording.computed(
                plain(obj)[key], operator.getitem, obj.expr, key, risky=not isinstance(key, slice)
            )
        if access_path is None or isinstance(obj, type):
            below = native_class(type(obj)) if type(obj) is not torch.Size else None
            return obj[key] if below is None else below.__getitem__(obj, key)
        if isinstance(obj, list | tuple | collections.deque):
            native = native_class(type(obj))
            if isinstance(key, slice):
                return self._slice(obj, key)
            if not hasattr(type(key), "__index__"):
                return native.__getitem__(obj, key)  # TypeError
            index = operator.index(key)
            if not -native.__len__(obj) <= index < native.__len__(obj):
                self.natives.whole_length(obj)
                return native.__getitem__(obj, key)  # IndexError
            return self.natives.element(obj, index)
        self.state.refuse_container(obj, "subscript")
        return obj[key]

    def _of_tensor(self, fn: Callable[..., Any], method: Callable[..., Any], tensor: torch.Tensor, *args: Any) -> Any:
        """Return ``fn(tensor, *args)``. ``method``: the one of torch.Tensor that the operator ``fn`` calls."""
        made = self.state.framework.unparsed(method, (tensor, *args), {})
        return (fn if made is method else made)(tensor, *args)

    def _positions(self, key: Any) -> Any:
        """Return the subscript of a tensor with the elements of old lists and tuples read and traced. Reads of new
        tuples are not recorded: they may hold induction variables."""
        if type(key) is tuple and self.recording.owner(key) is None:
            return tuple([self._positions(part) for part in key])
        if not isinstance(key, list | tuple):
            return self._read_slice(key)
        opened = self.natives.opened((key,), {})[0][0]
        return self._positions(opened) if type(opened) is tuple and opened is not key else opened

    def _read_slice(self, key: Any) -> Any:
        """Return an old slice with its numbers read and traced, anything else unchanged."""
        access_path = self.recording.owner(key) if type(key) is slice else None
        if access_path is None:
            return key
        parts = ("start", "stop", "step")
        return slice(*(self.recording.found(access_path.then(Step.FIELD, part), getattr(key, part)) for part in parts))

    def _pinned_slice(self, key: slice) -> slice:
        key = self._read_slice(key)
        return slice(*(self.recording.pin(part, "used as an index") for part in (key.start, key.stop, key.step)))

    def _missing(self, at: Site, obj: Any, key: Any) -> Any:
        """Return ``obj[key]`` of a dictionary without the key, by ``__missing__``. Raises KeyError if there is none."""
        method = on_type(type(obj), "__missing__")
        self.semantics.note_lookup(type(obj), "__missing__")
        if method is MISSING:
            raise KeyError(plain(key))
        if not isinstance(obj, collections.defaultdict) or isinstance(method, types.FunctionType):
            return self.semantics.special(at, method, obj, key)
        factory = self.semantics.load_attr(at, obj, "default_factory")
        if factory is None:
            raise KeyError(plain(key))
        value = self.semantics.call(at, factory, (), {})
        self.semantics.store_item(at, obj, key, value)
        return value

    def _slice(self, obj: list[Any] | tuple[Any, ...] | collections.deque[Any], key: slice) -> Any:
        native, start = native_class(type(obj)), key.start
        if key.step is key.stop is None and type(start) is int and -native.__len__(obj) <= start < 0:
            # Negative indices read the last elements without a guard on the length.
            parts = [self.natives.element(obj, index) for index in range(start, 0)]
        else:
            parts = list(self.natives.iterable(obj))[key]
        if type(obj) is list:
            return parts
        if type(obj) is tuple and key.indices(len(obj)) == (0, len(obj), 1):  # all of it is the tuple itself
            self.natives.whole_length(obj)
            return obj
        return tuple(parts) if type(obj) is tuple else obj[key]  # type: ignore[index]  # a deque raises

    def _store(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        self.at(at)
        recording = self.recording
        if isinstance(obj, torch.Tensor):
            self._of_tensor(operator.setitem, torch.Tensor.__setitem__, obj, self._positions(key), value)
            return
        access_path = recording.owner(obj)
        if access_path is None:
            value = recording.private(value)
        if isinstance(key, slice):
            key = self._pinned_slice(key)
        if isinstance(obj, dict):
            if self.natives.runs_changing_code(obj if access_path is not None else None, key):
                set_item(obj, plain(key), recording.bare(value))
                if access_path is not None:
                    recording.mutate(dict, "__setitem__", (key, value), access_path)
            elif access_path is None:
                key = self.natives.key(key)
                self.natives.watch_lookup(obj, key)
                set_item(obj, key, value)
            else:
                self.natives.shadows.mapping(obj, access_path).store(self.natives.place(key), value)
            return
        if isinstance(obj, list) and hasattr(type(key), "__index__"):
            key = recording.number_within(key)
        if access_path is not None and isinstance(obj, list) and isinstance(key, TracedInt):
            self.natives.shadows.make(obj, access_path).store_at(key, value)
            return
        key = recording.pin(key, "used as an index")
        if access_path is None:
            if not isinstance(obj, list | collections.deque):
                obj[key] = value
            else:
                set_item(obj, key, self.natives.consumed(value) if isinstance(key, slice) else value)
            return
        if isinstance(obj, list | collections.deque):
            shadow = self.natives.shadows.make(obj, access_path)
            if isinstance(key, slice) and isinstance(obj, list):
                shadow.put(key, list(self.semantics.iterate(at, value)))
            else:
                shadow.store(key, value)
            return
        recording.refuse(
            "container-unwatched",
            f"assigns to an item of a {type(obj).__name__}",
            "this container's writes cannot be held back.",
            "",
        )
        obj[key] = recording.bare(value)

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        self.at(at)
        recording = self.recording
        access_path = recording.owner(obj)
        if isinstance(key, slice):
            key = self._pinned_slice(key)
        if isinstance(obj, dict) and self.natives.runs_changing_code(obj if access_path is not None else None, key):
            delete_item(obj, plain(key))
            return
        if access_path is not None and isinstance(obj, dict):
            key = self.natives.place(key, "used as an index")
            mapping = self.natives.shadows.mapping(obj, access_path)
            if not mapping.has(key):
                raise KeyError(plain(key))
            mapping.remove(key)
            return
        key = self.natives.key(key, "used as an index")
        if access_path is not None and isinstance(obj, list | collections.deque):
            self.natives.shadows.make(obj, access_path).delete(key)
            return
        if access_path is not None:
            recording.refuse(
                "container-unwatched",
                f"deletes an item of a {type(obj).__name__}",
                "this container's writes cannot be held back.",
                "",
            )
        if not isinstance(obj, dict | list | collections.deque):
            del obj[key]
        else:
            delete_item(obj, key)
