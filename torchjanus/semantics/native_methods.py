"""Methods of native objects: containers that change, views, context variables."""

from __future__ import annotations

import collections
import contextvars
import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.origin import Origin, Step
from torchjanus.semantics.native_containers import CONTAINERS
from torchjanus.semantics.native_values import NativeValues
from torchjanus.semantics.natives import (
    MUTATORS,
    READERS,
    VIEWS,
)
from torchjanus.trace.values import Traced, plain

__all__ = ["NativeMethods"]

_BULK = frozenset({"extend", "extendleft", "update", "__iadd__"})


class NativeMethods(NativeValues):
    """Which object a native method belongs to decides what it reads and writes."""

    # -- methods of native objects --------------------------------------------------------------------------------

    def _unbound(self, fn: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        owner, rest = args[0], args[1:]
        if name in ("__setattr__", "__delattr__", "__getattribute__") and not isinstance(owner, type):
            if isinstance(owner, torch.Tensor):
                return fn(*args, **kwargs)
            if name == "__setattr__":
                return self.heap.store_attr(None, owner, rest[0], rest[1])
            if name == "__delattr__":
                return self.heap.drop_attr(None, owner, rest[0])
            return self.heap.load_attr(None, owner, rest[0])
        if name in ("__init__", "__new__", "__init_subclass__") and self.recording.owner(owner) is None:
            return fn(owner, *(self.consumed(a) for a in rest), **kwargs)
        return self._method(functools.partial(fn, owner), owner, name, rest, kwargs)

    def _method(
        self, fn: Callable[..., Any], owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if name in ("__setattr__", "__delattr__", "__getattribute__") and not isinstance(owner, torch.Tensor):
            access = {"__setattr__": "store_attr", "__delattr__": "drop_attr", "__getattribute__": "load_attr"}[name]
            return getattr(self.heap, access)(None, owner, *args)
        if isinstance(owner, torch.Tensor):
            args, kwargs = self.opened(args, kwargs)
            return fn(*args, **kwargs)
        if isinstance(owner, str):
            return self._text(fn, owner, name, args, kwargs)
        if isinstance(owner, int | float | bytes | range | complex | types.FunctionType | types.MappingProxyType):
            if isinstance(owner, Traced):
                self.recording.pin(owner, f"calls its method {name}")
            self._pin_all(args, kwargs)
            return fn(*map(plain, args), **kwargs)
        if isinstance(owner, types.BuiltinMethodType | types.MethodType | types.GetSetDescriptorType | property):
            return fn(*args, **kwargs)
        if isinstance(owner, contextvars.ContextVar):
            return self._context_variable(fn, owner, name, args)
        origin = self.recording.owner(owner)
        if origin is None:
            return self._private_method(fn, owner, name, args, kwargs)
        if isinstance(owner, dict):
            return self._dict_method(fn, owner, origin, name, args, kwargs)
        if isinstance(owner, set) and name in ("add", "discard") and id(owner) not in self.recording.restructured:
            key = self.recording.pin(args[0], "looked up in a set")
            if (key in owner) is (name == "add"):  # nothing to do, as long as that stays so
                self.recording.absent(origin, key, name == "add")
                return None
        for cls, names in MUTATORS.items():
            if isinstance(owner, cls) and name in names:
                given = tuple(
                    self.recording.pin(a, "used as an index") if name == "insert" and i == 0 else a
                    for i, a in enumerate(args)
                )
                shadow = self.shadows.make(owner, origin) if isinstance(owner, list | collections.deque) else None
                if name in _BULK:
                    # The elements go in, not the containers that they come in.
                    given = tuple(list(self.consumed(a)) for a in args)
                    fn(*([self.recording.bare(part) for part in a] for a in given))
                else:
                    fn(*(self.recording.bare(a) for a in given))
                method = "extend" if name == "__iadd__" else name
                if shadow is not None:
                    shadow.change(method, given)
                self.recording.mutate(owner, method, given, origin)
                return owner if name == "__iadd__" else None
        if name in ("pop", "popleft") and isinstance(owner, list | collections.deque):
            given = tuple(self.recording.pin(a, "used as an index") for a in args)
            index = 0 if name == "popleft" else operator.index(given[0]) if given else -1
            shadow = self.shadows.make(owner, origin)
            if not -len(owner) <= index < len(owner):
                shadow.filled()
                return fn(*given)  # IndexError
            value = shadow.take(index)
            fn(*given)
            self.recording.mutate(owner, name, given, origin)
            return value
        for cls, names in READERS.items():
            if isinstance(owner, cls) and name in names:
                copy = self.consumed(owner)
                if name in ("index", "count", "__contains__"):
                    self.expose(owner, pin=True)
                return getattr(copy, name)(*args, **kwargs)
        return self.unknown(fn if hasattr(fn, "__name__") else getattr(owner, name), args, kwargs)

    def _context_variable(
        self, fn: Callable[..., Any], variable: contextvars.ContextVar[Any], name: str, args: tuple[Any, ...]
    ) -> Any:
        """A context variable is state like any other. Writes to it must be undone before the call ends."""
        if name in ("set", "reset"):
            self.recording.remember_context(variable)
            return fn(*map(plain, args))
        if self.recording.remembers_context(variable):
            return fn(*args)
        value = fn(*args)  # LookupError where there is neither a value nor a default
        origin = Origin.const(variable, variable.name).then(Step.CONTEXT)
        known = self.recording.found(origin, variable.get(None))
        return known if plain(known) is value or plain(known) == value else value

    def _private_method(
        self, fn: Callable[..., Any], owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A method of an object made in this call: its effects stay private, its arguments are read."""
        module = type(owner).__module__
        if isinstance(owner, type | types.ModuleType | types.SimpleNamespace | BaseException) or module in (
            "builtins",
            "collections",
            "itertools",
            "_collections",
            "functools",
            "types",
            "_functools",
            "contextlib",
        ):
            if name in ("sort", "index", "count", "remove", "__contains__", "__eq__"):
                self._pin_inside(owner)
                args = tuple(self.recording.pin(a, f"read by {name}()") for a in args)
            if isinstance(owner, dict) and name in ("get", "pop", "__getitem__", "setdefault", "__contains__") and args:
                args = (self.recording.pin(args[0], "used as a key"), *args[1:])
            return fn(*(self.consumed(a) for a in args), **kwargs)
        if isinstance(owner, CONTAINERS):  # a user's or a library's subclass of a container
            return fn(*(self.consumed(a) for a in args), **kwargs)
        if module.startswith("torch") and not isinstance(owner, torch.Generator):
            args, kwargs = self.opened(args, kwargs)
            return fn(*args, **kwargs)
        return self.unknown(getattr(owner, name, fn), args, kwargs)

    def _pin_inside(self, owner: Any) -> None:
        """Native code is about to compare the elements of a container made in this call."""
        self.expose(owner, pin=True)
        if isinstance(owner, list):
            owner[:] = map(plain, owner)

    def _dict_method(
        self,
        fn: Callable[..., Any],
        owner: Any,
        origin: Origin,
        name: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        heap = self.heap
        if name in VIEWS:
            copy = self.consumed(owner)
            return getattr(copy, name)()
        if name in ("__getitem__", "__setitem__", "__delitem__"):
            access = {"__getitem__": "load_item", "__setitem__": "store_item", "__delitem__": "drop_item"}[name]
            return getattr(heap, access)(None, owner, *args)
        if name in ("get", "pop", "setdefault", "__contains__"):
            key = self.recording.pin(args[0], "used as a key")
            written = self.recording.has_written(owner, key)
            present = key in owner
            if not present and not written:
                self.recording.absent(origin, key)
            if name == "__contains__":
                if present and not written:
                    self.recording.absent(origin, key, True)
                return present
            if present:
                value = heap.load_item(None, owner, key)
                if name == "pop":
                    heap.drop_item(None, owner, key)
                return value
            if name == "setdefault":
                heap.store_item(None, owner, key, args[1] if len(args) > 1 else None)
                return args[1] if len(args) > 1 else None
            if name == "pop" and len(args) < 2:
                return fn(*args)  # KeyError
            return args[1] if len(args) > 1 else None
        if name == "update":
            for source in (*args, kwargs):
                pairs = self.consumed(source)
                for key, value in pairs.items() if isinstance(pairs, dict) else pairs:
                    heap.store_item(None, owner, key, value)
            return None
        if name in READERS[dict]:
            return getattr(self.consumed(owner), name)(*args)
        if name in MUTATORS[dict]:
            fn(*args)
            self.recording.mutate(owner, name, args, origin)
            return None
        return self.unknown(getattr(owner, name), args, kwargs)
