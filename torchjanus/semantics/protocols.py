"""Python's own protocols, spelled out: whatever Python-level code an operation triggers runs rewritten, too.

Calls are here; attributes, operators and iteration are in the modules beside. All of it ends in the leaves.

Not reached, because native code triggers it in the middle of its own work: ``__hash__`` and ``__eq__`` of dictionary
keys, ``__missing__``, ``__index__``, ``__del__``, comparisons made by ``sort``, patterns of ``match``, ``async for``
and ``async with``, and what ``await`` does to objects that are not coroutines.
"""

from __future__ import annotations

import functools
from types import (
    BuiltinMethodType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    WrapperDescriptorType,
)
from typing import Any

from torchjanus.rewrite import Site
from torchjanus.semantics.builtin_calls import BuiltinCalls
from torchjanus.semantics.leaves import bound_to, derives, on_type

__all__ = ["Protocols"]

NATIVE_CALLABLES = frozenset((BuiltinMethodType, MethodWrapperType, WrapperDescriptorType, MethodDescriptorType))
_MAKING = type.__dict__["__call__"]


class Protocols(BuiltinCalls):
    """Python, spelled out down to its leaves. Subclasses override leaves, and hooks where they must."""

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
            elif tp in NATIVE_CALLABLES:
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
        """``cls(*args, **kwargs)``: the metaclass's ``__call__``, else ``__new__`` and ``__init__``, each reached."""
        meta = type(cls)
        if meta is not type:
            caller = on_type(meta, "__call__")
            if type(caller) is FunctionType:
                self.come_upon(meta, "__call__")
                return self.call(at, caller, (cls, *args), kwargs)
            if caller is not _MAKING:
                return self.call_native(at, cls, args, kwargs)
        return self.instantiate(at, cls, args, kwargs)

    def instantiate(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """``type.__call__(cls, *args, **kwargs)``."""
        if cls in self.class_calls:
            return self.call_builtin_class(at, cls, args, kwargs)
        maker, starter = on_type(cls, "__new__"), on_type(cls, "__init__")
        self.come_upon(cls, "__new__")
        self.come_upon(cls, "__init__")
        new = maker.__func__ if type(maker) is staticmethod else maker
        if not self.enterable(new) and not self.enterable(starter):
            return self.call_native(at, cls, args, kwargs)
        if self.enterable(new):
            instance = self.call(at, new, (cls, *args), kwargs)
        else:
            instance = self.make_instance(at, cls, args, kwargs)
        if derives(type(instance), cls):
            starter = on_type(type(instance), "__init__")
            if type(starter) is FunctionType:
                self.come_upon(type(instance), "__init__")
                result = self.call(at, starter, (instance, *args), kwargs)
                if result is not None:
                    raise TypeError(f"__init__() should return None, not '{type(result).__name__}'")
            elif starter is not object.__init__ or type(new) is not FunctionType:
                bound_to(instance, starter)(*args, **kwargs)
        return instance

    def reaches_into(self, cls: type) -> bool:
        """Whether a call of the class runs Python code that is entered. If not, it can be called as it is."""
        caller = on_type(type(cls), "__call__")
        if caller is not _MAKING:
            return self.enterable(caller)
        maker = on_type(cls, "__new__")
        new = maker.__func__ if type(maker) is staticmethod else maker
        return cls in self.class_calls or self.enterable(new) or self.enterable(on_type(cls, "__init__"))

    def enterable(self, fn: Any) -> bool:
        return type(fn) is FunctionType and self.native_reason(fn) is None
