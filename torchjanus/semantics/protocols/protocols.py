"""Python's own protocols in Python: all Python-level code that an operation triggers runs rewritten.

Calls are here. Attributes, operators and iteration are in the neighbouring modules. All of them end in the leaves.

Native code triggers some Python-level code in the middle of its own work, and that is not entered: ``__hash__`` and
``__eq__`` of dictionary keys, ``__missing__``, ``__del__``, comparisons made by ``sort``, ``async for`` and ``async
with``, and what ``await`` does to objects that are not coroutines.
"""

from __future__ import annotations

import functools
from types import (
    BuiltinFunctionType,
    BuiltinMethodType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.protocols.builtin_calls import BuiltinCalls
from torchjanus.semantics.protocols.leaves import bound_to, derives, on_type
from torchjanus.semantics.protocols.special_methods import Assigned

__all__ = ["Protocols"]

NATIVE_CALLABLES = frozenset(
    map(id, (BuiltinMethodType, MethodWrapperType, WrapperDescriptorType, MethodDescriptorType))
)
_MAKING = type.__dict__["__call__"]


class Protocols(BuiltinCalls):
    """Python's protocols down to the leaves. Subclasses override leaves, and hooks where they have to."""

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        while True:
            tp = type(fn)
            if tp is FunctionType:
                if self.native_reason(fn) is None:
                    return self.enter(at, fn, args, kwargs)
                return self.call_native(at, fn, args, kwargs)
            if tp is MethodType:
                fn, args = fn.__func__, (fn.__self__, *args)
            elif tp is functools.partial:
                given, named = self.attr(at, fn, "args"), self.attr(at, fn, "keywords")
                args, kwargs = (*self.star(at, given), *args), {**self.double_star(at, named), **kwargs}
                fn = self.attr(at, fn, "func")
            elif tp is staticmethod:
                fn = fn.__func__
            elif tp is Assigned:
                return self.call(at, self.bind(at, fn.found, args[0]), args[1:], kwargs)
            elif id(tp) in NATIVE_CALLABLES:
                if fn is _MAKING and args and isinstance(args[0], type):
                    return self.instantiate(at, args[0], args[1:], kwargs)
                if tp is MethodWrapperType and fn.__name__ == "__call__" and fn.__objclass__ is type:
                    return self.instantiate(at, fn.__self__, args, kwargs)  # super().__call__() of a metaclass
                return self.call_builtin(at, fn, args, kwargs)
            elif issubclass(tp, type):
                return self.call_class(at, fn, args, kwargs)
            else:
                method = self.dunder(tp, "__call__")
                if method is None:
                    return self.call_native(at, fn, args, kwargs)
                fn, args = method, (fn, *args)

    def call_class(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return ``cls(*args, **kwargs)``: the metaclass's ``__call__``, else ``__new__`` and ``__init__``."""
        meta = type(cls)
        if meta is not type:
            caller = on_type(meta, "__call__")
            if type(caller) is FunctionType:
                self.note_lookup(meta, "__call__")
                return self.call(at, caller, (cls, *args), kwargs)
            assigned = self.dunder(meta, "__call__")
            if assigned is not None:
                return self.call(at, assigned, (cls, *args), kwargs)
            if caller is not _MAKING:
                return self.call_native(at, cls, args, kwargs)
        return self.instantiate(at, cls, args, kwargs)

    def instantiate(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return ``type.__call__(cls, *args, **kwargs)``."""
        if id(cls) in self.class_calls:
            return self.call_builtin_class(at, cls, args, kwargs)
        new = self.maker(at, cls)
        self.note_lookup(cls, "__new__")
        self.note_lookup(cls, "__init__")
        called = on_type(type(cls), "__call__") is not _MAKING  # the metaclass's __call__ runs this: not again
        if new is None and self.dunder(cls, "__init__") is None and not called:
            return self.call_native(at, cls, args, kwargs)
        if new is not None:
            instance = self.call(at, new, (cls, *args), kwargs)
        else:
            instance = self.make_instance(at, cls, args, kwargs)
        if derives(type(instance), cls):
            self.start(at, cls, new, instance, args, kwargs)
        return instance

    def start(
        self, at: Site, cls: type, new: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Run ``__init__`` of an instance that ``__new__`` has made. ``new`` is None if that was native."""
        tp = type(instance)
        starter = on_type(tp, "__init__")
        assigned = starter if type(starter) is FunctionType else self.dunder(tp, "__init__")
        if assigned is not None:
            self.note_lookup(tp, "__init__")
            result = self.call(at, assigned, (instance, *args), kwargs)
            if result is not None:
                raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
        elif starter is not object.__init__ or new is None:
            self.call(at, bound_to(instance, starter), args, kwargs)

    def maker(self, at: Site, cls: type) -> Any:
        """Return the class's ``__new__``, which takes the class first, or None if it is native."""
        found = on_type(cls, "__new__")
        new = found.__func__ if type(found) is staticmethod else found
        if type(new) is FunctionType:
            return new if self.native_reason(new) is None else None
        return None if type(found) is BuiltinFunctionType else self.attr(at, cls, "__new__")

    def reaches_into(self, cls: type) -> bool:
        """Whether a call of the class runs Python code that is entered. If not, the class can be called natively."""
        caller = on_type(type(cls), "__call__")
        if caller is not _MAKING:
            return self.dunder(type(cls), "__call__") is not None
        found = on_type(cls, "__new__")
        new = found.__func__ if type(found) is staticmethod else found
        made = self.enterable(new) or not is_one_of(type(new), (FunctionType, BuiltinFunctionType))
        return id(cls) in self.class_calls or made or self.dunder(cls, "__init__") is not None

    def enterable(self, fn: Any) -> bool:
        return type(fn) is FunctionType and self.native_reason(fn) is None
