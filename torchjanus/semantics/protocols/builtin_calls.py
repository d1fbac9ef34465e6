"""Calls of builtins behind which Python-level code may run: the same protocols, with that code rewritten.

Where a native callable takes a Python callback, or an iterable that it consumes, it is given one that runs rewritten.
"""

from __future__ import annotations

import builtins
import collections
import functools
from builtins import len, reversed  # a program may rebind them
from collections.abc import Callable
from types import FunctionType, MemberDescriptorType, MethodType, WrapperDescriptorType
from typing import Any, ClassVar

from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import called_back
from torchjanus.semantics.known.consumers import ASKING_LENGTH, ASKING_LENGTH_METHODS, CONSUMERS, ITERATING_ALL, METHODS
from torchjanus.semantics.protocols.conversions import CONVERTING_CLASSES, CONVERTING_ROUTES, INDEX, Conversions
from torchjanus.semantics.protocols.indexed_iterators import (
    Indexing,
    ReversedIndexing,
    SentinelIterator,
    WrappedIterable,
)
from torchjanus.semantics.protocols.instance_checks import check_instance
from torchjanus.semantics.protocols.leaves import MISSING, mro_of, namespace_of, on_type

__all__ = ["BuiltinCalls"]

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
# Dictionary classes that native code updates.
UPDATED = (dict, collections.OrderedDict, collections.defaultdict)


def _is_only_name(tp: type, member: MemberDescriptorType) -> bool:
    """Whether instances of a class have this slot as an attribute of the slot's own name, and under no other name."""
    names = [name for base in mro_of(tp) for name, found in namespace_of(base).items() if found is member]
    return names == [member.__name__] and on_type(tp, member.__name__) is member


class BuiltinCalls(Conversions):
    """Calls of builtins that use protocols."""

    class_calls: ClassVar[frozenset[int]] = frozenset(
        id(each)
        for each in (bool, str, bytes, type, super, reversed, *UPDATED, *CONVERTING_CLASSES, *CONSUMERS)
        if isinstance(each, type)
    )

    def is_routed(self, fn: Any) -> bool:
        """Whether a native callable may run Python-level code that is entered."""
        if id(fn) in ROUTES or id(fn) in CONSUMER_IDS:
            return True
        owner = getattr(fn, "__self__", None)
        if owner is None:
            return False
        updating = fn.__name__ == "update" and is_one_of(type(owner), UPDATED)
        accesses = type(owner) is MemberDescriptorType and fn.__name__ in MEMBER_ACCESS
        return updating or accesses or fn.__name__ in SLOTS or (id(type(owner)), fn.__name__) in METHODS

    def call_builtin(self, at: Site, fn: Any, args: Args, kwargs: Kwargs) -> Any:
        routed = ROUTES.get(id(fn))
        if routed is not None and not kwargs:
            return routed(self, at, fn, args)
        consumed = CONSUMERS.get(fn) if id(fn) in CONSUMER_IDS else None
        owner = getattr(fn, "__self__", None)
        if consumed is None and owner is not None:
            name = fn.__name__
            if name in SLOTS:
                return self.call_slot(at, fn, name, owner, args, kwargs)
            if type(owner) is MemberDescriptorType and name in MEMBER_ACCESS:
                return self.call_member(at, fn, name, owner, args, kwargs)
            consumed = METHODS.get((id(type(owner)), name))
            if name == "update" and is_one_of(type(owner), UPDATED) and args:
                args = (self.pairs(at, args[0]), *args[1:])
        if consumed is not None:
            return self.consume(at, fn, args, kwargs, consumed)
        return self.call_native(at, fn, args, kwargs)

    def call_builtin_class(self, at: Site, cls: type, args: Args, kwargs: Kwargs) -> Any:
        if cls is bool and len(args) == 1 and not kwargs:
            return self.branch_value(at, args[0])
        if cls is str and len(args) == 1 and not kwargs:
            return self.text(at, args[0], "s")
        if cls is type and len(args) == 1 and isinstance(args[0], WrappedIterable):
            args = (args[0].native(),)
        if cls is bytes and len(args) == 1 and not kwargs:
            method = self.dunder(type(args[0]), "__bytes__")
            if method is not None:
                made = self.invoke(at, method, args[0])
                if not issubclass(type(made), bytes):
                    raise TypeError(f"__bytes__ returned non-bytes (type {type(made).__name__})")
                return made
        if is_one_of(cls, (bytes, bytearray)) and len(args) == 1:
            args = self.converted(at, args, INDEX)
        if is_one_of(cls, CONVERTING_CLASSES) and not kwargs:
            return self.call_native(at, cls, self.converted(at, args, CONVERTING_CLASSES[cls]), {})
        if cls is reversed and not kwargs:
            return self.call_reversed(at, cls, args)
        if is_one_of(cls, (dict, collections.OrderedDict)) and len(args) == 1:
            args = (self.pairs(at, args[0]),)
        if cls is collections.defaultdict and len(args) == 2:
            args = (args[0], self.pairs(at, args[1]))
        consumed = CONSUMERS.get(cls)
        if consumed is not None:
            return self.consume(at, cls, args, kwargs, consumed)
        return self.call_native(at, cls, args, kwargs)

    def pairs(self, at: Site, mapping: Any) -> Any:
        """Return what native code makes a dictionary of, if the mapping has Python methods; else the mapping."""
        tp = type(mapping)
        if on_type(tp, "keys") is MISSING:
            return self.for_consumption(at, mapping)
        copied = issubclass(tp, dict) and on_type(tp, "__iter__") is dict.__iter__  # copied without calling its methods
        if copied or (self.dunder(tp, "keys") is None and self.dunder(tp, "__getitem__") is None):
            return mapping
        keys = self.invoke(at, self.attr(at, mapping, "keys"))
        return Pairs(list(self.iterate(at, keys)), functools.partial(self.item, at, mapping))

    def double_star(self, at: Site, mapping: Any) -> Any:
        return mapping if type(mapping) is dict else self.pairs(at, mapping)

    def inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        tp = type(a)
        if op == "+" and is_one_of(tp, (list, collections.deque)) and self.dunder(type(b), "__radd__") is None:
            b = self.for_consumption(at, b)
        elif op == "|" and is_one_of(tp, UPDATED) and self.dunder(type(b), "__ror__") is None:
            b = self.pairs(at, b)
        return super().inplace(at, op, a, b)

    def set_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        if type(key) is slice and type(obj) is list:
            value = self.for_consumption(at, value)
        super().set_item(at, obj, key, value)

    def consume(self, at: Site, fn: Any, args: Args, kwargs: Kwargs, where: tuple[int | None, int | None]) -> Any:
        """Call native code with its callbacks and iterables wrapped so that Python-level code behind them runs
        rewritten.

        ``where`` holds the positions of the callback and of the first iterable, or None.
        """
        callback, iterable = where
        given = list(args)
        if callback is not None and len(given) > callback:
            given[callback] = self.callback(at, given[callback])
        if iterable is not None and not (is_one_of(fn, (builtins.min, builtins.max)) and len(given) > 1):
            method = getattr(type(getattr(fn, "__self__", None)), fn.__name__, None)
            several = is_one_of(fn, ITERATING_ALL) or method in ITERATING_ALL
            room = is_one_of(fn, ASKING_LENGTH) or (method is not None and fn.__name__ in ASKING_LENGTH_METHODS)
            for position in range(iterable, len(given) if several else min(len(given), iterable + 1)):
                if room:
                    given[position] = self.for_consumption(at, given[position])
                elif self.reaches(given[position]):
                    given[position] = self.iterate(at, given[position])
        called = {name: self.callback(at, kwargs[name]) for name in ("key", "func") if kwargs.get(name) is not None}
        if called:
            kwargs = {**kwargs, **called}
        return self.call_native(at, fn, tuple(given), kwargs)

    def callback(self, at: Site, fn: Any) -> Any:
        """Return what native code is given to call in place of ``fn``."""
        return called_back(self, at, fn) if is_one_of(type(fn), (FunctionType, MethodType)) else fn

    def call_slot(self, at: Site, fn: Any, name: str, owner: Any, args: Args, kwargs: Kwargs) -> Any:
        """Call ``super().__setattr__(name, value)`` or the like: the native end of attribute access."""
        tp = type(owner)
        if kwargs or issubclass(tp, type) or self.accessor_left_native(tp, name):
            return self.call_native(at, fn, args, kwargs)
        match name, args:
            case "__setattr__", (attribute, value) if isinstance(attribute, str):
                self.set_plain_attr(at, owner, attribute, value)
                return None
            case "__delattr__", (attribute,) if isinstance(attribute, str):
                self.del_plain_attr(at, owner, attribute)
                return None
            case "__getattribute__", (attribute,) if isinstance(attribute, str):
                return self.plain_attr(at, owner, attribute)
        return self.call_native(at, fn, args, kwargs)

    def call_member(
        self, at: Site, fn: Any, name: str, member: MemberDescriptorType, args: Args, kwargs: Kwargs
    ) -> Any:
        """Call ``Class.slot.__set__(obj, value)`` or the like, which skips the class's own accessors."""
        if not kwargs and args and _is_only_name(type(args[0]), member):
            match name, args:
                case "__set__", (obj, value):
                    self.set_plain_attr(at, obj, member.__name__, value)
                    return None
                case "__delete__", (obj,):
                    self.del_plain_attr(at, obj, member.__name__)
                    return None
                case "__get__", (obj,) | (obj, _):
                    return self.plain_attr(at, obj, member.__name__)
        return self.call_native(at, fn, args, kwargs)

    def call_unbound_member(self, at: Site, fn: Any, args: Args) -> Any:
        """Call ``MemberDescriptorType.__set__(Class.slot, obj, value)`` or the like."""
        if len(args) > 1 and type(args[0]) is MemberDescriptorType:
            name = fn.__name__
            return self.call_member(at, getattr(args[0], name), name, args[0], args[1:], {})
        return self.call_native(at, fn, args, {})

    def accessor_left_native(self, tp: type, name: str) -> bool:
        """Whether the class's Python-level accessor is left native. The leaves would then go through it."""
        names = (name, "__getattr__") if name == "__getattribute__" else (name,)
        accessors = [on_type(tp, each) for each in names]
        return any(type(one) is FunctionType and self.native_reason(one) is not None for one in accessors)

    # ---- attributes by name ----

    def call_getattr(self, at: Site, fn: Any, args: Args) -> Any:
        match args:
            case (obj, name) if isinstance(name, str):
                return self.attr(at, obj, name)
            case (obj, name, default) if isinstance(name, str):
                try:
                    return self.attr(at, obj, name)
                except AttributeError:
                    return default
        return self.call_native(at, fn, args, {})

    def call_hasattr(self, at: Site, fn: Any, args: Args) -> Any:
        match args:
            case (obj, name) if isinstance(name, str):
                try:
                    self.attr(at, obj, name)
                except AttributeError:
                    return False
                return True
        return self.call_native(at, fn, args, {})

    def call_setattr(self, at: Site, fn: Any, args: Args) -> Any:
        match args:
            case (obj, name, value) if isinstance(name, str):
                return self.set_attr(at, obj, name, value)
        return self.call_native(at, fn, args, {})

    def call_delattr(self, at: Site, fn: Any, args: Args) -> Any:
        match args:
            case (obj, name) if isinstance(name, str):
                return self.del_attr(at, obj, name)
        return self.call_native(at, fn, args, {})

    def call_object_slot(self, at: Site, fn: Any, args: Args) -> Any:
        """Call ``object.__setattr__(obj, name, value)`` or the like, if that is the object's native end."""
        name = fn.__name__
        if args and native_end(type(args[0]), name) is fn:
            return self.call_slot(at, fn.__get__(args[0]), name, args[0], args[1:], {})
        return self.call_native(at, fn, args, {})

    # ---- protocols by builtin ----

    def call_len(self, at: Site, fn: Any, args: Args) -> Any:
        if len(args) == 1 and self.dunder(type(args[0]), "__len__") is not None:
            return self.length(at, args[0])
        return self.call_native(at, fn, args, {})

    def call_iter(self, at: Site, fn: Any, args: Args) -> Any:
        if len(args) == 1 and self.reaches(args[0]):
            method = self.dunder(type(args[0]), "__iter__")
            if method is not None:
                iterator = self.invoke(at, method, args[0])
                if on_type(type(iterator), "__next__") is MISSING:
                    raise TypeError(f"iter() returned non-iterator of type '{type(iterator).__name__}'")
                return iterator  # the user's own object: its __next__ is entered where it is advanced
            if self.dunder(type(args[0]), "__next__") is None:
                return Indexing(self, at, args[0])
        if len(args) == 2 and callable(args[0]):
            return SentinelIterator(self, at, *args)
        return self.call_native(at, fn, args, {})

    def call_reversed(self, at: Site, fn: Any, args: Args) -> Any:
        if len(args) == 1:
            tp = type(args[0])
            method = self.dunder(tp, "__reversed__")
            if method is not None:
                return self.invoke(at, method, args[0])
            if on_type(tp, "__reversed__") is MISSING and self.dunder(tp, "__getitem__") is not None:
                length = self.call_len(at, len, args)
                count = int.__add__(length, 0)
                if type(length) is not int:
                    self.branch_value(at, self.compare(at, "==", length, count))  # decides how many are taken
                return ReversedIndexing(self, at, args[0], count)
        return self.call_native(at, fn, args, {})

    def call_next(self, at: Site, fn: Any, args: Args) -> Any:
        if args and self.dunder(type(args[0]), "__next__") is not None:
            if len(args) == 1:
                return self.next_of(at, args[0])
            if len(args) == 2:
                try:
                    return self.next_of(at, args[0])
                except StopIteration:
                    return args[1]
        return self.call_native(at, fn, args, {})

    def call_callable(self, at: Site, fn: Any, args: Args) -> Any:
        if len(args) == 1:
            self.note_lookup(type(args[0]), "__call__")
        return self.call_native(at, fn, args, {})

    def call_repr(self, at: Site, fn: Any, args: Args) -> Any:
        return self.text(at, args[0], "r") if len(args) == 1 else self.call_native(at, fn, args, {})

    def call_format(self, at: Site, fn: Any, args: Args) -> Any:
        match args:
            case (value,):
                return self.format(at, value, "", "")
            case (value, spec) if isinstance(spec, str):
                return self.format(at, value, "", spec)
        return self.call_native(at, fn, args, {})

    def call_abs(self, at: Site, fn: Any, args: Args) -> Any:
        method = self.dunder(type(args[0]), "__abs__") if len(args) == 1 else None
        return self.call_native(at, fn, args, {}) if method is None else self.invoke(at, method, args[0])

    # ---- text ----

    def text(self, at: Site, value: Any, conversion: str) -> str:
        """Return ``str(value)``, ``repr(value)`` or ``ascii(value)``, given the first letter of the function."""
        tp = type(value)
        method = None
        if conversion == "s":
            method = self.dunder(tp, "__str__")
        if method is None and (conversion == "r" or (conversion == "s" and on_type(tp, "__str__") is object.__str__)):
            method = self.dunder(tp, "__repr__")
        if method is None:
            return self.native_text(at, value, conversion)
        result: str = self.invoke(at, method, value)
        if not issubclass(type(result), str):
            raise TypeError(f"{method.__name__} returned non-string (type {type(result).__name__})")
        return result

    def format(self, at: Site, value: Any, conversion: str, spec: str) -> str:
        if conversion:
            value = self.text(at, value, conversion)
        tp = type(value)
        method = self.dunder(tp, "__format__")
        if method is not None:
            result: str = self.invoke(at, method, value, spec)
            if not issubclass(type(result), str):
                raise TypeError(f"__format__ must return a str, not {type(result).__name__}")
            return result
        if not spec and on_type(tp, "__format__") is object.__format__:
            return self.text(at, value, "s")
        return self.native_format(at, value, spec)


class Pairs:
    """A mapping that native code reads: its keys, which may repeat, and one item for each."""

    __slots__ = ("_item", "_keys")

    def __init__(self, keys: list[Any], item: Callable[[Any], Any]) -> None:
        self._keys, self._item = keys, item

    def keys(self) -> list[Any]:
        return self._keys

    def __getitem__(self, key: Any) -> Any:
        return self._item(key)


def native_end(tp: type, name: str) -> Any:
    """Return the native method in which attribute access on this class ends; None if there is none."""
    for base in mro_of(tp):
        found = namespace_of(base).get(name, MISSING)
        if type(found) is WrapperDescriptorType and found.__name__ == name:
            return found
    return None


MEMBER_ACCESS = frozenset(("__get__", "__set__", "__delete__"))
SLOTS = frozenset(("__setattr__", "__delattr__", "__getattribute__"))
ROUTES: dict[int, Callable[[BuiltinCalls, Site, Any, Args], Any]] = {
    **CONVERTING_ROUTES,
    id(builtins.getattr): BuiltinCalls.call_getattr,
    id(builtins.hasattr): BuiltinCalls.call_hasattr,
    id(builtins.setattr): BuiltinCalls.call_setattr,
    id(builtins.delattr): BuiltinCalls.call_delattr,
    id(builtins.len): BuiltinCalls.call_len,
    id(builtins.iter): BuiltinCalls.call_iter,
    id(builtins.next): BuiltinCalls.call_next,
    id(builtins.isinstance): check_instance,
    id(builtins.issubclass): check_instance,
    id(builtins.callable): BuiltinCalls.call_callable,
    id(builtins.repr): BuiltinCalls.call_repr,
    id(builtins.format): BuiltinCalls.call_format,
    id(builtins.abs): BuiltinCalls.call_abs,
    id(MemberDescriptorType.__get__): BuiltinCalls.call_unbound_member,
    id(MemberDescriptorType.__set__): BuiltinCalls.call_unbound_member,
    id(MemberDescriptorType.__delete__): BuiltinCalls.call_unbound_member,
    id(object.__setattr__): BuiltinCalls.call_object_slot,
    id(object.__delattr__): BuiltinCalls.call_object_slot,
    id(object.__getattribute__): BuiltinCalls.call_object_slot,
}
CONSUMER_IDS = frozenset(map(id, CONSUMERS))
