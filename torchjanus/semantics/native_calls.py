"""What a watched program's call of a native function means for the trace.

A native callee cannot be looked into, so each kind is known beforehand (``natives``): some only look, some read their
containers, some change them, some are recorded as framework calls, some are made at commit. All others are refused.
"""

from __future__ import annotations

import collections
import contextvars
import functools
import math
import operator
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch

from torchjanus.origin import Origin, Step
from torchjanus.semantics.framework import FrameworkRecorder
from torchjanus.semantics.natives import (
    ARITHMETIC,
    COMPUTING,
    CONSUMING,
    DEFERRED,
    FACTORIES,
    LOOKING,
    MUTATORS,
    READERS,
    VIEWS,
    torch_query,
)
from torchjanus.semantics.recording import Recording
from torchjanus.semantics.shadows import Shadows
from torchjanus.semantics.trusted import IGNORED
from torchjanus.trace.events import Extern
from torchjanus.trace.values import Apply, Traced, TracedStr, plain, trace_value

__all__ = ["NativeCalls"]

_SEQUENCES = (list, tuple, collections.deque)
_CONTAINERS = (list, tuple, dict, set, frozenset, collections.deque)
_CONVERSIONS: dict[str, Callable[[Any], str]] = {"s": str, "r": repr, "a": ascii}
_CLASS_QUESTIONS = frozenset({"__instancecheck__", "__subclasscheck__", "__subclasshook__", "mro"})
_TQDM = frozenset(
    {"update", "set_postfix", "set_postfix_str", "set_description", "set_description_str", "write", "refresh"}
)


_MODE_QUESTIONS: frozenset[Any] = frozenset(
    {
        torch.overrides.has_torch_function,
        torch.overrides.has_torch_function_unary,
        torch.overrides.has_torch_function_variadic,
        torch.overrides.is_tensor_method_or_property,
    }
)
_DIVMOD = (operator.floordiv, operator.mod)
_BULK = frozenset({"extend", "extendleft", "update", "__iadd__"})


class HeapAccess(Protocol):
    """The part of the watching semantics that native calls fall back on."""

    def load_item(self, at: Any, obj: Any, key: Any) -> Any: ...
    def store_item(self, at: Any, obj: Any, key: Any, value: Any) -> None: ...
    def drop_item(self, at: Any, obj: Any, key: Any) -> None: ...
    def load_attr(self, at: Any, obj: Any, name: str) -> Any: ...
    def store_attr(self, at: Any, obj: Any, name: str, value: Any) -> None: ...
    def drop_attr(self, at: Any, obj: Any, name: str) -> None: ...
    def truth(self, at: Any, value: Any) -> bool: ...
    def native_binary(self, at: Any, op: str, a: Any, b: Any) -> Any: ...


@functools.cache
def _framework_functions() -> frozenset[int]:
    """The ids of all functions that a TorchFunctionMode gets to see (torch.overrides keeps the list)."""
    known = {id(f) for fs in torch.overrides.get_overridable_functions().values() for f in fs}
    known.update(id(f) for f in (torch.autograd.backward, torch.autograd.grad))
    # Factories: no tensor among their arguments, so they cannot be overridden, but a mode sees them.
    known.update(id(f) for name, f in vars(torch).items() if name.startswith(("_foreach_", "_fused_")))
    known.update(id(getattr(torch, name)) for name in FACTORIES if hasattr(torch, name))
    return frozenset(known)


class NativeCalls:
    """Carries out native calls for the watching semantics and records what they mean."""

    def __init__(self, recording: Recording, framework: FrameworkRecorder, heap: HeapAccess) -> None:
        self.recording = recording
        self.framework = framework
        self.heap = heap
        self.shadows = Shadows(recording)

    # -- which kind -----------------------------------------------------------------------------------------------

    def is_framework(self, fn: Any) -> bool:
        return id(fn) in _framework_functions()

    def is_deferred(self, fn: Any) -> bool:
        try:
            if fn in DEFERRED:
                return True
        except TypeError:
            return False
        module = getattr(fn, "__module__", None) or ""
        return module.startswith("tqdm") and getattr(fn, "__name__", "") in _TQDM

    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call for real and record what it means."""
        if fn in (torch.autograd.backward, torch.autograd.grad):
            return self._autograd(fn, args, kwargs)
        if self.is_framework(fn):
            self._expose_all(args, kwargs)
            return fn(*args, **kwargs)
        if fn is len and len(args) == 1 and not kwargs:
            return self._length(args[0])
        if self.is_deferred(fn):
            return self.defer(fn, args, kwargs)
        owner = getattr(fn, "__self__", None)
        name = getattr(fn, "__name__", "")
        if isinstance(fn, types.BuiltinMethodType | types.MethodWrapperType) and owner is not None:
            if not isinstance(owner, types.ModuleType | type) and not type(owner).__name__.startswith("pybind11"):
                return self._method(fn, owner, name, args, kwargs)
        elif isinstance(fn, types.MethodDescriptorType | types.WrapperDescriptorType) and args:
            return self._unbound(fn, name, args, kwargs)
        return self._function(fn, args, kwargs)

    def _function(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if isinstance(fn, weakref.ReferenceType):
            target = fn()
            if target is not None:
                self.recording.claim(target, Origin.const(target))
            return target
        if fn is type and len(args) == 1 and isinstance(args[0], Traced):
            return type(plain(args[0]))
        if _in(fn, LOOKING) or getattr(fn, "__name__", "") in _CLASS_QUESTIONS:
            return fn(*args, **kwargs)
        if _in(fn, _MODE_QUESTIONS):
            with torch.overrides._pop_mode_temporarily():  # the program must not see that it is watched
                return fn(*args, **kwargs)
        if _in(fn, ARITHMETIC):
            return self._arithmetic(fn, args, kwargs)
        if fn is typing.cast:
            return args[1]
        if _in(fn, CONSUMING) or (isinstance(fn, type) and fn.__module__ in ("itertools", "builtins", "collections")):
            return self._consume(fn, args, kwargs)
        if isinstance(fn, type):
            # A class written in C, or one whose __new__ is: the object is private, its arguments go in as they are.
            return fn(*(self.consumed(a) for a in args), **kwargs)
        if isinstance(fn, functools._lru_cache_wrapper) or torch_query(fn) or _ignored(fn):
            self._pin_all(args, kwargs)
            return fn(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
        return self._unknown(fn, args, kwargs)

    def _unknown(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        module = getattr(fn, "__module__", None) or type(getattr(fn, "__self__", fn)).__module__
        name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__
        self.recording.refuse(
            f"calls {module}.{name}",
            "it is native code that torchjanus does not know: it may read or change anything.",
            "Call it outside of the step and pass its result in.",
        )
        return fn(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})

    # -- framework ------------------------------------------------------------------------------------------------

    def _autograd(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._expose_all(args, kwargs)
        with torch._C.DisableTorchFunction():
            return self.framework.call(fn, args, kwargs)

    def _expose_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            self._expose_found(value)

    def _expose_found(self, value: Any) -> None:
        """Read the containers from before the call that a framework call is given. Traced numbers in those made in the
        call go into the node as expressions."""
        if isinstance(value, _CONTAINERS):
            if self.recording.owner(value) is not None:
                self.expose(value, pin=True)
            else:
                for part in dict.values(value) if isinstance(value, dict) else value:
                    self._expose_found(part)

    def expose(self, value: Any, *, pin: bool = True) -> None:
        """Read a container from end to end: native code is about to do the same. With ``pin``, the numbers in it are
        held constant."""
        if isinstance(value, Traced):
            if pin:
                self.recording.pin(value, "read by native code")
        elif isinstance(value, _CONTAINERS):
            if self.recording.owner(value) is not None:
                for part in self.iterable(value):
                    self.expose(part, pin=pin)
                if isinstance(value, dict):
                    for part in self.consumed(value).values():
                        self.expose(part, pin=pin)
            else:
                for part in dict.values(value) if isinstance(value, dict) else value:
                    self.expose(part, pin=pin)

    # -- containers -----------------------------------------------------------------------------------------------

    def whole_length(self, obj: Any) -> None:
        """Hold the length of a container from before the call constant, as it was then."""
        if self.shadows.of(obj) is not None:
            return  # its reads hold what they need
        origin = self.recording.owner(obj)
        assert origin is not None
        self.recording.pin(self.recording.length(origin, obj), "the length decides what is read")

    def iterable(self, obj: Any) -> Iterable[Any]:
        """The elements of ``obj`` in order, read one by one if it was there before the call."""
        origin = self.recording.owner(obj)
        if origin is None or isinstance(obj, torch.Tensor | range | str | bytes):
            return obj  # type: ignore[no-any-return]
        shadow = self.shadows.of(obj)
        if shadow is not None:
            return shadow.elements()
        if id(obj) in self.recording.restructured:
            self.recording.refuse(
                f"reads a {type(obj).__name__} after changing its length in the same call",
                "held-back changes are not visible to it yet.",
                "Read it before changing it, or in the next call.",
            )
            return obj  # type: ignore[no-any-return]
        if isinstance(obj, _SEQUENCES):
            return self._sequence(origin, obj)
        if isinstance(obj, dict | set | frozenset):
            keys = tuple(obj)
            self.recording.keys(origin, keys)
            for key in keys:
                if not isinstance(key, str | int | float | bool | type(None)):
                    self.recording.claim(key, Origin.const(key))
            return keys
        if isinstance(obj, types.MappingProxyType) or (type(obj).__module__ == "builtins" and hasattr(obj, "mapping")):
            return obj  # type: ignore[no-any-return]
        self.recording.refuse(
            f"iterates over a {type(obj).__name__} that was there before the call",
            "taking an element from it is a side effect outside of the graph.",
            "Take the elements outside of the step and pass them in.",
        )
        return obj  # type: ignore[no-any-return]

    def _sequence(self, origin: Origin, obj: Any) -> Iterator[Any]:
        self.whole_length(obj)
        index = 0
        while index < len(obj):
            yield self.recording.read_key(origin, obj, index)
            index += 1

    def consumed(self, value: Any) -> Any:
        """A private copy of a container from before the call, its elements read and traced; or the value as it is."""
        if self.recording.owner(value) is None or not isinstance(value, _CONTAINERS):
            return value
        if isinstance(value, dict):
            keys = tuple(self.iterable(value))
            copy: dict[Any, Any] = {key: self.heap.load_item(None, value, key) for key in keys}
            return copy
        parts = list(self.iterable(value))
        for cls in (list, set, frozenset, collections.deque):
            if isinstance(value, cls):
                return cls(parts)
        return tuple(parts) if type(value) is tuple or not hasattr(value, "_fields") else type(value)(*parts)

    def _length(self, obj: Any) -> Any:
        origin = self.recording.owner(obj)
        if isinstance(obj, TracedStr):
            return len(self.recording.pin(obj, "its length is taken"))
        if origin is None or isinstance(obj, torch.Tensor) or not isinstance(obj, _CONTAINERS):
            if origin is not None and not isinstance(obj, torch.Tensor | str | bytes | range):
                self.recording.refuse(f"takes the length of a {type(obj).__name__}", "it is not watched.", "")
            return len(obj)
        shadow = self.shadows.of(obj)
        if shadow is not None:
            return shadow.length()
        if id(obj) in self.recording.restructured:
            self.iterable(obj)  # refuses
            return len(obj)
        return self.recording.length(origin, obj)

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
            self._expose_all(args, kwargs)
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
        return self._unknown(fn if hasattr(fn, "__name__") else getattr(owner, name), args, kwargs)

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
        if isinstance(owner, _CONTAINERS):  # a user's or a library's subclass of a container
            return fn(*(self.consumed(a) for a in args), **kwargs)
        if module.startswith("torch") and not isinstance(owner, torch.Generator):
            self._expose_all(args, kwargs)
            return fn(*args, **kwargs)
        return self._unknown(getattr(owner, name, fn), args, kwargs)

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
        return self._unknown(getattr(owner, name), args, kwargs)

    # -- numbers and text -----------------------------------------------------------------------------------------

    def _arithmetic(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(isinstance(a, torch.Tensor) for a in args):
            if fn in (float, int):
                return self.framework.call(getattr(torch.Tensor, f"__{fn.__name__}__"), args, {})
            return fn(*args, **kwargs)
        if any(isinstance(a, Traced) for a in args) and not kwargs:
            value = fn(*map(plain, args))
            if fn is divmod:
                pair = tuple(a.expr if isinstance(a, Traced) else a for a in args)
                return tuple(trace_value(v, Apply(f, pair)) for v, f in zip(value, _DIVMOD, strict=True))
            expr = Apply(fn, tuple(a.expr if isinstance(a, Traced) else a for a in args))
            if type(value) in (int, float, str):
                return trace_value(value, expr)
            if isinstance(value, bool):
                return self.recording.hold(expr, value)
        given = tuple(self.consumed(a) for a in args)
        if fn in (min, max, math.fsum, math.prod) and len(given) == 1 and not isinstance(given[0], str):
            parts = list(given[0])
            if fn in (min, max) and len(parts) > 1 and not kwargs and all(isinstance(p, int | float) for p in parts):
                return self._arithmetic(fn, tuple(parts), {})
            given = (parts,)
        why = f"read by {fn.__name__}()"
        bare = {k: v if callable(v) else self._pinned(v, why) for k, v in kwargs.items()}
        return fn(*(self._pinned(a, why) for a in given), **bare)

    def _consume(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tuple(self.consumed(a) for a in args)
        for value in given:
            origin = self.recording.owner(value)
            if origin is not None and fn in (next, iter, enumerate, zip, map, list, tuple):
                if hasattr(type(value), "__next__"):
                    self._unknown(fn, (), {}) if False else self.recording.refuse(
                        f"takes from an iterator ({type(value).__name__}) that was there before the call",
                        "that is a side effect outside of the graph.",
                        "Take the element outside of the step and pass it in.",
                    )
        if fn in (any, all) and len(given) == 1:
            return self._quantify(fn, given[0])
        if fn in (map, filter, functools.reduce) and given:
            given = (self._watched(given[0]), *given[1:])
        if fn is sum and given and not kwargs:
            return self._sum(list(given[0]), *given[1:])
        if _in(fn, COMPUTING):
            why = f"read by {getattr(fn, '__name__', fn)}()"
            given = tuple(self._pinned(list(a) if _is_iterator(a) else a, why) for a in given)
        return fn(*given, **{k: self.recording.pin(self.consumed(v), "keyword") for k, v in kwargs.items()})

    def _quantify(self, fn: Any, values: Iterable[Any]) -> bool:
        """``any`` and ``all``, which stop at the first element that decides."""
        for value in values:
            if self.heap.truth(None, value) is (fn is any):
                return fn is any
        return fn is all

    def _watched(self, fn: Any) -> Any:
        """A native callback, called as the program itself would call it."""
        if fn is None:
            return functools.partial(self.heap.truth, None)
        if isinstance(fn, types.BuiltinFunctionType | types.BuiltinMethodType | type):
            return lambda *args: self.call(fn, args, {})
        return fn

    def _sum(self, parts: list[Any], start: Any = 0) -> Any:
        total = start
        for part in parts:
            total = self.heap.native_binary(None, "+", total, part)
        return total

    def _pinned(self, value: Any, why: str) -> Any:
        value = self.recording.pin(value, why)
        if isinstance(value, _CONTAINERS):
            self.expose(value, pin=True)
            if type(value) in (list, tuple, set, frozenset, collections.deque):
                return type(value)(map(plain, value))
        return value

    def _pin_all(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            self.recording.pin(value, "read by native code")
            self.expose(value)

    def _text(self, fn: Any, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "join" and args:
            parts = list(self.consumed(args[0]))
            if any(isinstance(p, TracedStr) for p in parts) and not isinstance(owner, Traced):
                text = owner.join(plain(p) for p in parts)
                return trace_value(text, Apply(_joined, (owner, *(_symbol(p) for p in parts))))
            return fn(parts)
        traced = any(isinstance(a, Traced) for a in args)
        if name == "format" and traced and not kwargs and not isinstance(owner, Traced):
            return trace_value(fn(*map(plain, args)), Apply(str.format, (owner, *map(_symbol, args))))
        self.recording.pin(owner, f"calls its method {name}")
        self._pin_all(args, kwargs)
        return fn(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})

    def percent(self, template: str, value: Any) -> Any:
        """``template % value``."""
        parts = value if type(value) is tuple else (value,)
        if any(isinstance(p, Traced) for p in parts):
            text = template % (tuple(map(plain, parts)) if type(value) is tuple else plain(value))
            return trace_value(text, Apply(_filled, (template, *map(_symbol, parts))))
        return template % value

    def formatted(self, value: Any, spec: str) -> str:
        """``format(value, spec)``."""
        spec = self.recording.pin(spec, "format specification")
        if isinstance(value, Traced):
            result: str = trace_value(format(plain(value), spec), Apply(format, (value.expr, spec)))
            return result
        if isinstance(value, _CONTAINERS):
            self.expose(value, pin=True)
        return format(value, spec)

    def as_text(self, value: Any, conversion: str) -> str:
        """``str(value)``, ``repr(value)`` or ``ascii(value)``, by their first letter."""
        convert: Callable[[Any], str] = _CONVERSIONS[conversion]
        if isinstance(value, Traced):
            result: str = trace_value(convert(plain(value)), Apply(convert, (value.expr,)))
            return result
        if isinstance(value, torch.Tensor):
            return str(format(value))
        if isinstance(value, _CONTAINERS):
            self.expose(value, pin=True)
        return convert(value)

    # -- extern calls ---------------------------------------------------------------------------------------------

    def defer(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for value in (*args, *kwargs.values()):
            self.expose(value, pin=False)
        result = fn(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
        self.recording.keep((fn, args, kwargs))
        self.recording.note(Extern(fn, args, kwargs, self.recording.place))
        return result


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__")


def _joined(separator: str, *parts: str) -> str:
    return separator.join(parts)


def _filled(template: str, *parts: Any) -> str:
    return template % parts


def _symbol(value: Any) -> Any:
    return value.expr if isinstance(value, Traced) else value


def _in(fn: Any, known: frozenset[Any]) -> bool:
    try:
        return fn in known
    except TypeError:
        return False


def _ignored(fn: Any) -> bool:
    module = getattr(fn, "__module__", None)
    return isinstance(module, str) and any(module == name or module.startswith(name + ".") for name in IGNORED)
