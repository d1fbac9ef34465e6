"""What a watched program's call of a native function means for the trace.

A native callee cannot be looked into, so each kind is known beforehand (``natives``): some only look, some read their
containers, some change them, some are recorded as framework calls, some are made at commit. All others are refused.
"""

from __future__ import annotations

import functools
import types
import typing
import weakref
from typing import Any

import torch

from torchjanus.origin import Origin
from torchjanus.semantics.native_methods import NativeMethods
from torchjanus.semantics.native_values import is_one_of
from torchjanus.semantics.natives import (
    ARITHMETIC,
    CONSUMING,
    DEFERRED,
    FACTORIES,
    LOOKING,
    torch_query,
)
from torchjanus.semantics.trusted import IGNORED
from torchjanus.trace.events import Extern
from torchjanus.trace.values import Traced, plain

__all__ = ["NativeCalls"]

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


@functools.cache
def _framework_functions() -> frozenset[int]:
    """The ids of all functions that a TorchFunctionMode gets to see (torch.overrides keeps the list)."""
    known = {id(f) for fs in torch.overrides.get_overridable_functions().values() for f in fs}
    known.update(id(f) for f in (torch.autograd.backward, torch.autograd.grad))
    # Factories: no tensor among their arguments, so they cannot be overridden, but a mode sees them.
    known.update(id(f) for name, f in vars(torch).items() if name.startswith(("_foreach_", "_fused_")))
    known.update(id(getattr(torch, name)) for name in FACTORIES if hasattr(torch, name))
    return frozenset(known)


class NativeCalls(NativeMethods):
    """Carries out native calls for the watching semantics and records what they mean."""

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
        if is_one_of(fn, LOOKING) or getattr(fn, "__name__", "") in _CLASS_QUESTIONS:
            return fn(*args, **kwargs)
        if is_one_of(fn, _MODE_QUESTIONS):
            with torch.overrides._pop_mode_temporarily():  # the program must not see that it is watched
                return fn(*args, **kwargs)
        if is_one_of(fn, ARITHMETIC):
            return self._arithmetic(fn, args, kwargs)
        if fn is typing.cast:
            return args[1]
        if is_one_of(fn, CONSUMING) or (
            isinstance(fn, type) and fn.__module__ in ("itertools", "builtins", "collections")
        ):
            return self._consume(fn, args, kwargs)
        if isinstance(fn, type):
            # A class written in C, or one whose __new__ is: the object is private, its arguments go in as they are.
            return fn(*(self.consumed(a) for a in args), **kwargs)
        if isinstance(fn, functools._lru_cache_wrapper) or torch_query(fn) or _ignored(fn):
            self._pin_all(args, kwargs)
            return fn(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
        return self.unknown(fn, args, kwargs)

    def unknown(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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

    # -- extern calls ---------------------------------------------------------------------------------------------

    def defer(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for value in (*args, *kwargs.values()):
            self.expose(value, pin=False)
        result = fn(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
        self.recording.keep((fn, args, kwargs))
        self.recording.note(Extern(fn, args, kwargs, self.recording.place))
        return result


def _ignored(fn: Any) -> bool:
    module = getattr(fn, "__module__", None)
    return isinstance(module, str) and any(module == name or module.startswith(name + ".") for name in IGNORED)
