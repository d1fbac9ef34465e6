"""Methods of containers from before the call: what each reads and writes, through the containers' shadows."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable
from typing import Any, ClassVar

from torchjanus.core.access_path import AccessPath, native_class
from torchjanus.core.kinds import hasattr, is_one_of, isinstance
from torchjanus.semantics.containers.keyed import MappingShadow
from torchjanus.semantics.containers.registered import are_hooks, found_hooks
from torchjanus.semantics.containers.shadows import SequenceShadow
from torchjanus.semantics.native.containers import as_given
from torchjanus.semantics.native.key_code import parts_of_key
from torchjanus.semantics.native.values import NativeValues
from torchjanus.trace.values import Apply, Traced, plain, symbol, trace_value

__all__ = ["KEYED", "SEARCHING", "ContainerMethods"]

_Args = tuple[Any, ...]

# Methods whose first argument is a key.
KEYED = frozenset({"get", "pop", "setdefault", "__getitem__", "__setitem__", "__delitem__", "__contains__"})
# Methods that search for an element, and the methods here that do the same.
SEARCHING = {"index": "index", "count": "count", "__contains__": "contains"}
_GROWING = frozenset({"append", "appendleft", "extend", "extendleft", "insert"})
_UPDATES = {
    "update": "update",
    "difference_update": "difference_update",
    "intersection_update": "intersection_update",
    "symmetric_difference_update": "symmetric_difference_update",
    "__ior__": "update",
    "__isub__": "difference_update",
    "__iand__": "intersection_update",
    "__ixor__": "symmetric_difference_update",
}
_SET_READERS = frozenset(
    """copy union intersection difference symmetric_difference issubset issuperset isdisjoint __or__ __and__ __sub__
    __xor__ __ror__ __rand__ __rsub__ __rxor__ __le__ __lt__ __ge__ __gt__ __eq__ __ne__""".split()
)
_MAPPING_READERS = frozenset({"copy", "__or__", "__ror__", "__eq__", "__ne__", "__repr__"})
_SEQUENCE_READERS = frozenset(
    """copy __add__ __mul__ __rmul__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __repr__""".split()
)


class ContainerMethods(NativeValues):
    """Carries out container methods on the container and on its shadow."""

    def container_method(
        self, owner: Any, access_path: AccessPath, name: str, args: _Args, kwargs: dict[str, Any]
    ) -> tuple[bool, Any]:
        """Call a container's own method. Return whether it is known, and its result."""
        if name == "__len__":
            return True, self._length(owner)
        if name == "__iter__":
            return True, self._consume(iter, (owner,), {})
        if name == "__reversed__":
            return True, self._consume(reversed, (owner,), {})
        if isinstance(owner, dict | set | frozenset) and self._runs_changing_code(owner, name, args):
            given = [self._pinned(arg, "read by native code") if isinstance(arg, list | tuple) else arg for arg in args]
            native: Any = native_class(type(owner))
            bare = {key: self.recording.bare(value) for key, value in kwargs.items()}
            result = getattr(native, name)(owner, *map(self.recording.bare, given), **bare)
            if args or kwargs:
                self.recording.mutate(native, name, (*args, *kwargs.values()), access_path)
            return True, result
        if isinstance(owner, dict):
            return self._mapping_method(owner, self.shadows.mapping(owner, access_path), name, args, kwargs)
        if isinstance(owner, set | frozenset):
            return self._set_method(owner, access_path, name, args)
        return self._sequence_method(owner, access_path, name, args, kwargs)

    def _runs_changing_code(self, owner: Any, name: str, args: _Args) -> bool:
        """Whether the container itself does the operation, since its keys run code that may change something."""
        if name in KEYED or name in ("add", "discard", "remove", "move_to_end"):
            return self.runs_changing_code(owner, *args[:1])
        kinds: tuple[Any, ...] = (set, frozenset, dict, list, tuple)
        keys = [key for arg in args for kind in kinds if isinstance(arg, kind) for key in kind.__iter__(arg)]
        return self.runs_changing_code(owner, *keys)

    # -- dictionaries ---------------------------------------------------------------------------------------------

    def _mapping_method(
        self, owner: Any, shadow: Any, name: str, args: _Args, kwargs: dict[str, Any]
    ) -> tuple[bool, Any]:
        watch: Any = self.watch
        if name in KEYED and args:
            sought, *others = args
            args = (self.place(sought), *others)
            self.watch_lookup(owner, sought)
        if name in self._mapping_methods:
            return True, self._mapping_methods[name](self, owner, shadow, *args, **kwargs)
        match name, args:
            case "keys", ():
                self._claim_keys(shadow.names())
                return True, self.recording.views(shadow.names().keys(), shadow.native.keys(owner))
            case "values", ():
                if are_hooks(owner, shadow.access_path) and not shadow.changed:
                    return True, dict(enumerate(found_hooks(self.recording, owner, shadow.access_path))).values()
                return True, self.recording.views(shadow.items().values(), shadow.native.values(owner))
            case "items", ():
                self._claim_keys(shadow.names())
                return True, self.recording.views(shadow.items().items(), shadow.native.items(owner))
            case "clear", ():
                return True, shadow.clear()
            case "__contains__", (key,):
                return True, shadow.has(key)
            case "__getitem__", (key,):
                return True, self.watch.load_item(None, owner, key)
            case "__setitem__", (key, value):
                return True, shadow.store(key, value)
            case "__delitem__", (key,):
                return True, watch.drop_item(None, owner, key)
        if name in _MAPPING_READERS:
            copy = self.consumed(owner) if shadow.native is dict else shadow.native(shadow.items())
            if name == "copy":
                self.recording.keep(owner)
                return True, _like(owner, copy)
            self.expose(owner, pin=True)
            return True, getattr(copy, name)(*(self._pinned(a, f"read by {name}()") for a in args))
        return False, None

    def _get(self, owner: Any, shadow: MappingShadow, key: Any, default: Any = None) -> Any:
        return shadow.read(key) if shadow.has(key) else default

    def _pop(self, owner: Any, shadow: MappingShadow, /, key: Any, *default: Any, **named: Any) -> Any:
        if not shadow.has(key):
            return shadow.native.pop(owner, plain(key), *default, **named)  # returns the default, or raises KeyError
        value = shadow.read(key)
        shadow.remove(key)
        return value

    def _setdefault(self, owner: Any, shadow: MappingShadow, key: Any, default: Any = None) -> Any:
        if shadow.has(key):
            return shadow.read(key)
        shadow.store(key, default)
        return default

    def _popitem(self, owner: Any, shadow: MappingShadow, last: Any = True) -> Any:
        if not shadow.filled():
            return shadow.native.popitem(owner)  # KeyError
        key = shadow.end(self.watch.truth(None, last))
        self._claim_keys((key,))
        value = shadow.read(key)
        shadow.remove(key)
        return key, value

    def _move_to_end(self, owner: Any, shadow: MappingShadow, key: Any, last: Any = True) -> None:
        shadow.move_to_end(self.key(key), self.watch.truth(None, last))

    def _update(self, owner: Any, shadow: MappingShadow, /, *sources: Any, **named: Any) -> Any:
        if len(sources) > 1:
            return shadow.native.update(owner, *sources)  # TypeError
        for source in (*sources, named):
            if isinstance(source, dict):
                pairs: Any = list(dict.items(self.consumed(source)))
            elif hasattr(source, "keys"):
                keys = self.watch.call(None, self.watch.attr(None, source, "keys"), (), {})
                pairs = [(key, self.watch.item(None, source, key)) for key in self.watch.iterate(None, keys)]
            else:
                pairs = [tuple(self.iterable(pair)) for pair in self.watch.iterate(None, source)]
            for key, value in pairs:
                if shadow.native is dict:
                    shadow.store(self.place(key), value)
                else:  # an OrderedDict calls its class's __setitem__
                    self.watch.set_item(None, owner, key, value)
        return None

    def _union(self, owner: Any, shadow: MappingShadow, other: Any) -> Any:
        self._update(owner, shadow, other)
        return owner

    _mapping_methods: ClassVar[dict[str, Callable[..., Any]]] = {
        "get": _get,
        "pop": _pop,
        "setdefault": _setdefault,
        "popitem": _popitem,
        "move_to_end": _move_to_end,
        "update": _update,
        "__ior__": _union,
    }

    def count_elements(self, mapping: Any, elements: Any) -> None:
        """Do what ``Counter.update`` does with an iterable."""
        kept = None if self.recording.owner(mapping) is None else mapping
        for element in self.watch.iterate(None, elements):
            if self.runs_changing_code(kept, element):  # each element is hashed once
                collections._count_elements(mapping, (element,))  # type: ignore[attr-defined]
                continue
            count = self.watch.call(None, mapping.get, (element, 0), {})
            self.watch.set_item(None, mapping, element, self.watch.native_binary(None, "+", count, 1))

    # -- sets -----------------------------------------------------------------------------------------------------

    def _set_method(self, owner: Any, access_path: AccessPath, name: str, args: _Args) -> tuple[bool, Any]:
        shadow: Any = self.shadows.set(owner, access_path)
        match name, args:
            case "add", (key,):
                return True, shadow.add(self.place(key))
            case "discard", (key,):
                return True, shadow.discard(self.place(self.sought(key)))
            case "remove", (key,):
                found = self.place(self.sought(key))
                if not shadow.has(found):
                    raise KeyError(plain(key))
                return True, shadow.discard(found)
            case "__contains__", (key,):
                return True, shadow.has(self.place(self.sought(key)))
            case "clear", ():
                return True, shadow.clear()
            case "pop", ():
                self.recording.refuse(
                    "set-order",
                    "relies on the order of a set",
                    "which element pop() takes depends on more than the set's elements.",
                    "Use a list or a dictionary.",
                )
                return True, shadow.native.pop(owner)
        if name in _UPDATES:
            if name.startswith("__") and not isinstance(args[0], set | frozenset):
                return True, NotImplemented
            self.runs_unwatched_methods(owner)
            given = [self._elements_of(other) for other in args]
            given = [list(a) if type(a) is dict and a is not b else a for a, b in zip(given, args, strict=True)]
            shadow.change(_UPDATES[name], given)
            return True, owner if name.startswith("__") else None
        if name in _SET_READERS:
            given = [a if isinstance(a, set | frozenset) else self._elements_of(a) for a in args]
            if args:
                self.runs_unwatched_methods(owner)
            self.consumed(owner)
            return True, getattr(shadow.native, name)(owner, *(self.consumed(a) for a in given))
        return False, None

    def _elements_of(self, other: Any) -> Any:
        """Return the current elements of an argument, which will be keys of the set."""
        if isinstance(other, dict | set | frozenset) and self.runs_changing_code(other):
            return other
        measured = _is_set(other) or type(other) is dict  # the set makes room for all its elements at once
        parts = self.keys_of(self.consumed(other) if measured else self.watch.iterate(None, other), other)
        self.keys_run_unwatched_methods(one for part in parts for one in parts_of_key(part))
        return parts

    # -- lists, tuples, deques ------------------------------------------------------------------------------------

    def _sequence_method(
        self, owner: Any, access_path: AccessPath, name: str, args: _Args, kwargs: dict[str, Any]
    ) -> tuple[bool, Any]:
        if name in SEARCHING and args:
            return True, getattr(self, SEARCHING[name])(owner, *args)
        if name == "__getitem__":
            return True, self.watch.load_item(None, owner, args[0])
        if name in _SEQUENCE_READERS:
            copy = self.consumed(owner)
            if name == "copy":
                return True, _like(owner, copy)
            if name not in ("__add__", "__reversed__"):
                self.expose(owner, pin=True)
                args = tuple(self._pinned(a, f"read by {name}()") for a in args)
            given = [self.consumed(a) for a in args]
            return True, as_given(getattr(copy, name)(*given), (owner, *args), (copy, *given))
        if isinstance(owner, tuple):
            return False, None
        if name in ("__setitem__", "__delitem__"):
            change: Any = self.watch.store_item if name == "__setitem__" else self.watch.drop_item
            return True, change(None, owner, *args)
        return self._change_sequence(owner, self.shadows.make(owner, access_path), name, args, kwargs)

    def _change_sequence(
        self, owner: Any, shadow: Any, name: str, args: _Args, kwargs: dict[str, Any]
    ) -> tuple[bool, Any]:
        if name in ("__iadd__", "__imul__"):
            if name == "__iadd__":
                shadow.grow("extend", self._listed(args[0]))
            else:
                self._repeat(shadow, operator.index(self.recording.pin(args[0], "repeats a list")))
            return True, owner
        match name, args:
            case (("extend" | "extendleft"), (other,)):
                return True, shadow.grow(name, self._listed(other))
            case "insert", (index, value):
                return True, shadow.grow(name, self._index(index), value)
            case _ if name in _GROWING:
                return True, shadow.grow(name, *args)
            case "popleft", ():
                return True, shadow.take(0, name)
            case "pop", ():
                return True, shadow.take(-1, name)
            case "pop", (index,):
                index = self._index(index)
                return True, shadow.take(index, name, index)
            case "remove", (value,):
                return True, shadow.delete(self.index(owner, value, removing=True))
            case "clear", ():
                return True, shadow.clear()
            case "reverse", ():
                return True, shadow.reorder(name)
            case "rotate", _:
                shadow.hold_length()
                return True, shadow.reorder(name, *(self._index(a) for a in args))
            case "sort", ():
                values = list(self.iterable(owner))
                shadow.arrange(values, self.order(values, **kwargs))
                return True, None
        return False, None

    def _index(self, value: Any) -> int:
        return operator.index(self.recording.pin(value, "used as an index"))

    def _listed(self, other: Any) -> list[Any]:
        return list(self.watch.iterate(None, other))

    def _repeat(self, shadow: SequenceShadow, times: int) -> None:
        values = list(self.iterable(shadow.container))
        if times <= 0:
            shadow.clear()
        for _ in range(times - 1):
            shadow.grow("extend", values)

    def index(self, owner: Any, value: Any, *bounds: Any, removing: bool = False) -> int:
        """Return ``owner.index(value)``, each comparison watched. Raises ValueError as the container does."""
        first, last = (*map(self._index, bounds), *(None, None))[:2]
        within = range(native_class(type(owner)).__len__(owner))[first:last]
        for index, element in enumerate(self.iterable(owner)):
            if index in within and self.equal(element, value):
                return index
        empty: Any = next(kind for kind in (list, tuple, collections.deque) if isinstance(owner, kind))()
        if removing:
            empty.remove(value)  # raises
        empty.index(value)  # raises
        raise AssertionError

    def count(self, owner: Any, value: Any) -> int:
        """Return ``owner.count(value)``, each comparison watched."""
        return sum([self.equal(element, value) for element in self.iterable(owner)])

    # -- order ----------------------------------------------------------------------------------------------------

    def order(self, values: list[Any], key: Any = None, reverse: Any = False) -> list[int]:
        """Return the indices of the values in the order of ``sorted(values, key=key, reverse=reverse)``."""
        keys = values if key is None else [self._watched(key)(value) for value in values]

        backwards = self.watch.truth(None, reverse)
        if len({type(each) for each in keys}) == 1 and is_one_of(type(keys[0]), (int, float, str)):
            return sorted(range(len(keys)), key=keys.__getitem__, reverse=backwards)

        def earlier(a: int, b: int) -> int:
            return -1 if self.ordered("<", keys[a], keys[b]) else 0

        return sorted(range(len(keys)), key=functools.cmp_to_key(earlier), reverse=backwards)

    def sort_private(self, owner: list[Any], key: Any = None, reverse: Any = False) -> None:
        """Do ``owner.sort()`` on a list that was made in this call."""
        owner[:] = self.in_order(list(owner), key, reverse)

    def in_order(self, values: list[Any], key: Any = None, reverse: Any = False) -> list[Any]:
        """Return ``sorted(values, key=key, reverse=reverse)``. The order of numbers of one type is not assumed."""
        if key is None and any(isinstance(v, Traced) for v in values):
            kinds = {type(plain(value)) for value in values}
            if len(kinds) == 1 and kinds <= {int, float}:
                backwards = self.watch.truth(None, reverse)
                ranked = sorted(map(plain, values), reverse=backwards)
                given = tuple(symbol(value) for value in values)
                return [trace_value(v, Apply(_ranked, (i, backwards, *given))) for i, v in enumerate(ranked)]
        return [values[index] for index in self.order(values, key, reverse)]

    def extreme(self, fn: Any, values: list[Any], key: Any) -> Any:
        """Return ``min`` or ``max``, with or without a key, of at least one value."""
        keys = values if key is None else [self._watched(key)(value) for value in values]
        best = 0
        for index in range(1, len(keys)):
            if self.ordered("<" if fn is min else ">", keys[index], keys[best]):
                best = index
        return values[best]


def _ranked(place: int, backwards: bool, *numbers: Any) -> Any:
    return sorted(numbers, reverse=backwards)[place]


def _is_set(value: Any) -> bool:
    return isinstance(value, set | frozenset)


def _like(owner: Any, copy: Any) -> Any:
    """Return what ``owner.copy()`` returns, given a copy of builtin class."""
    if isinstance(owner, collections.defaultdict):
        return collections.defaultdict(owner.default_factory, copy)
    if isinstance(owner, collections.deque | collections.OrderedDict) and type(owner) is not type(copy):
        return type(owner)(copy)
    return copy
