"""What a watched program's call of a native function means for the trace.

A native callee cannot be looked into. Some kinds are known beforehand (``natives``): some only look, some read their
containers, some change them, some are recorded as framework calls. All others are extern calls, which the host makes.
"""

from __future__ import annotations

import functools
import operator
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchjanus.hooks import rewritten
from torchjanus.journal import Journal, method
from torchjanus.origin import Origin
from torchjanus.semantics.backward_code import METHODS
from torchjanus.semantics.checkpoints import Checkpoints, is_checkpoint
from torchjanus.semantics.extern_calls import ExternCalls, take
from torchjanus.semantics.foreign import (
    GENERATOR_FUNCTIONS,
    OUTPUT,
    effects_of,
    is_foreign_module,
    is_foreign_object,
    is_numpy_scalar,
)
from torchjanus.semantics.framework import FrameworkRecorder
from torchjanus.semantics.native_containers import CONTAINERS, HeapAccess
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
from torchjanus.semantics.recording import Recording
from torchjanus.semantics.texts import CONVERSIONS
from torchjanus.semantics.trusted import IGNORED
from torchjanus.trace.effects import PURE, Effects
from torchjanus.trace.values import Apply, Read, Traced, plain, trace_value

__all__ = ["NativeCalls"]

_CLASS_QUESTIONS = frozenset({"__instancecheck__", "__subclasscheck__", "__subclasshook__", "mro"})
# Builtins that, given something foreign, do what only foreign code knows how to do.
_ASKING: frozenset[Any] = frozenset(
    {len, float, int, bool, complex, abs, round, divmod, pow, hash, min, max, sum, sorted, repr, str, ascii, reversed}
)
_USING_UP: frozenset[Any] = frozenset({list, tuple, set, frozenset, dict, enumerate, zip, map, filter, any, all})
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

    checkpoints: Checkpoints

    def __init__(self, recording: Recording, framework: FrameworkRecorder, heap: HeapAccess, journal: Journal) -> None:
        super().__init__(recording, framework, heap)
        self.externs = ExternCalls(recording, framework, journal)
        framework.hand_out = self._hand_out
        framework.take_in = self._take_in

    # -- which kind -----------------------------------------------------------------------------------------------

    def is_framework(self, fn: Any) -> bool:
        return id(fn) in _framework_functions()

    def is_deferred(self, fn: Any) -> bool:
        return is_one_of(fn, DEFERRED)

    def is_foreign(self, value: Any) -> bool:
        return is_foreign_object(value, self.recording.owner(value) is not None)

    def is_foreign_function(self, fn: Any) -> bool:
        """Whether the function or class is defined where nothing is looked into."""
        if is_one_of(fn, GENERATOR_FUNCTIONS):
            return True
        module = getattr(fn, "__module__", None)
        return isinstance(module, str) and module != "torch.random" and is_foreign_module(module)

    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call for real and record what it means."""
        if fn in (torch.autograd.backward, torch.autograd.grad):
            return self._autograd(fn, args, kwargs)
        if self.is_framework(fn):
            if self._is_fed(args, kwargs):
                return self.extern(fn, args, kwargs)
            args, kwargs = self.opened(args, kwargs)
            return fn(*args, **kwargs)
        if getattr(fn, "__name__", "") == "apply" and _is_function(getattr(fn, "__self__", None)):
            return self.framework.code.apply(fn.__self__, args)
        if isinstance(fn, types.FunctionType):
            if fn in METHODS:
                return fn(*args, **kwargs)
            if is_checkpoint(fn):
                return self.checkpoints.run(fn, args[0], args[1:], kwargs)
            if fn is RemovableHandle.remove:
                return None if self.framework.code.unregister(args[0]) else rewritten(fn)(*args)
        owner = getattr(fn, "__self__", None)
        name = getattr(fn, "__name__", "")
        bound = isinstance(fn, types.BuiltinMethodType | types.MethodWrapperType) and owner is not None
        if args and any(self.is_foreign(value) for value in args) and is_one_of(fn, _FOREIGN_ANSWERS):
            return self._ask_foreign(fn, args, kwargs)
        if fn is torch.clear_autocast_cache:
            return self.framework.forget_casts()
        if fn is len and len(args) == 1 and not kwargs:
            return self._length(args[0])
        if self.is_deferred(fn):
            return self.extern(fn, args, kwargs)
        if bound and not isinstance(owner, types.ModuleType | type) and self.is_foreign(owner):
            return self._foreign_method(fn, owner, name, args, kwargs)
        if bound:
            if not isinstance(owner, types.ModuleType | type) and not type(owner).__name__.startswith("pybind11"):
                return self._method(fn, owner, name, args, kwargs)
        elif isinstance(fn, types.MethodDescriptorType | types.WrapperDescriptorType) and args:
            if self.is_foreign(args[0]):
                return self._foreign_method(fn, args[0], name, args[1:], kwargs)
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
        if self.is_foreign_function(fn) or self._is_fed(args, kwargs):
            return self.extern(fn, args, kwargs)
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
        owner = getattr(fn, "__self__", None)
        if module.partition(".")[0] != "torch" and not isinstance(owner, CONTAINERS):
            return self.extern(fn, args, kwargs)
        self.recording.refuse(
            f"calls {module}.{name}",
            "it is native code that torchjanus does not know: it may read or change anything.",
            "Call it outside of the step and pass its result in.",
        )
        return fn(*map(plain, args), **{k: plain(v) for k, v in kwargs.items()})

    # -- framework ------------------------------------------------------------------------------------------------

    def _autograd(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self.opened(args, kwargs)
        with torch._C.DisableTorchFunction():
            return self.framework.call(fn, args, kwargs)

    def _is_fed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call makes a tensor of foreign memory: it takes an array, and no tensor."""
        given = (*args, *kwargs.values())
        if any(isinstance(value, torch.Tensor) for value in given):
            return False
        return any(self.is_foreign(value) and not is_numpy_scalar(value) for value in given)

    def _hand_out(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A tensor's memory as an array."""
        tensor, rest = args[0], args[1:]
        self.framework.ref(tensor, "Tensor.numpy")
        name = fn.__name__
        effects = effects_of(method(name), name, None)
        return self.externs.make(method(name), (tensor, *rest), kwargs, effects, shares=True)

    def _take_in(self, value: Any) -> Any:
        """A foreign value that goes into a framework call beside tensors."""
        if is_numpy_scalar(value):
            kind = type(value.item())
            if kind in (int, float, bool):
                return self.extern(kind, (value,), {})
        elif type(value).__name__ == "ndarray" and self.is_foreign(value):
            return self.extern(torch.as_tensor, (value,), {})
        return value

    # -- extern calls ---------------------------------------------------------------------------------------------

    def extern(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], effects: Effects | None = None) -> Any:
        """Leave the call to the host."""
        if effects is None:
            owner = getattr(fn, "__self__", None)
            effects = effects_of(fn, getattr(fn, "__name__", ""), owner, kwargs)
        for value in (*args, *kwargs.values()):
            self._claim(value)
        if effects is not OUTPUT:
            return self.externs.make(fn, args, kwargs, effects)
        # What only shows its arguments is told how to show them when the graph has run.
        told = tuple(map(self.described, args)), {key: self.described(value) for key, value in kwargs.items()}
        with self.framework.showing((args, kwargs)):
            return self.externs.make(fn, args, kwargs, effects, told=told)

    def _claim(self, value: Any) -> None:
        """A foreign object of unknown origin was there before the call: whatever makes one is an extern call."""
        if self.recording.owner(value) is None and self.is_foreign(value):
            self.recording.claim(value, Origin.const(value))

    def _foreign_method(self, fn: Any, owner: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name == "__next__" and not args:
            return self.take_next(owner)
        self._claim(owner)
        return self.extern(method(name), (owner, *args), kwargs, effects_of(fn, name, owner, kwargs))

    def foreign_attribute(self, obj: Any, name: str) -> Any:
        """``obj.name``. Looking up a method is not an extern call; calling it is."""
        value = getattr(obj, name)
        if callable(value) and getattr(value, "__self__", None) is obj:
            self._claim(obj)
            return value
        return self.foreign_operation(getattr, "__getattribute__", (obj, name))

    def foreign_operation(self, fn: Callable[..., Any], name: str, values: tuple[Any, ...]) -> Any:
        """An operator or a question with a foreign operand."""
        if any(isinstance(value, torch.Tensor) for value in values):
            values = tuple(self._take_in(value) for value in values)
            if not any(self.is_foreign(value) for value in values):
                return fn(*values)
        owner = next((value for value in values if self.is_foreign(value)), None)
        if any(isinstance(v, Traced) for v in values) and isinstance(values[0], str):
            values = tuple(self.recording.pin(v, "operand") for v in values)
        return self.extern(fn, values, {}, effects_of(fn, name, owner))

    def _ask_foreign(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn is next:
            return self.take_next(*args)
        if fn in _USING_UP:
            given = tuple(self.iterable(value) if self.is_foreign(value) else value for value in args)
            return self._consume(fn, given, kwargs)
        return self.foreign_operation(fn, fn.__name__, args) if not kwargs else self.extern(fn, args, kwargs)

    def take_next(self, iterator: Any, *default: Any) -> Any:
        """``next(iterator)``. Raises StopIteration."""
        self._claim(iterator)
        taken = self.extern(take, (iterator,), {}, effects_of(next, "__next__", iterator))
        if not self._holds_one(taken):
            if default:
                return default[0]
            raise StopIteration
        return self.heap.load_item(None, taken, 0)

    def _holds_one(self, taken: tuple[Any, ...]) -> bool:
        length = self._length(taken)
        return bool(self.recording.pin(length, "whether the iterator has ended"))

    def iterable(self, obj: Any) -> Iterable[Any]:
        if not self.is_foreign(obj):
            return super().iterable(obj)
        if type(obj).__module__ == "numpy":
            return super().iterable(self.extern(list, (obj,), {}, effects_of(list, "__iter__", obj)))
        return self._taken(obj)

    def _taken(self, obj: Any) -> Iterator[Any]:
        iterator = obj if hasattr(type(obj), "__next__") else self.foreign_operation(iter, "__iter__", (obj,))
        while True:
            try:
                item = self.take_next(iterator)
            except StopIteration:
                return
            yield item

    def _consume(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn is iter and len(args) == 1 and self.is_foreign(args[0]):
            return self.foreign_operation(iter, "__iter__", args)
        given = tuple(self._taken(a) if hasattr(type(a), "__next__") and self.is_foreign(a) else a for a in args)
        return super()._consume(fn, given, kwargs)

    def percent(self, template: str, value: Any) -> Any:
        parts = value if type(value) is tuple else (value,)
        if any(self.is_foreign(part) for part in parts):
            return self.extern(operator.mod, (template, value), {}, PURE)
        return super().percent(template, value)

    def _text(self, fn: Any, owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(self.is_foreign(value) for value in (*args, *kwargs.values())):
            return self.extern(method(name), (owner, *args), kwargs, PURE)
        return super()._text(fn, owner, name, args, kwargs)

    def symbolic(self, value: Any, nested: bool = False) -> Any:
        origin = self.recording.owner(value)
        if origin is not None and self.is_foreign(value):
            return Read(origin)
        return super().symbolic(value, nested)

    def formatted(self, value: Any, spec: str) -> str:
        origin = self.recording.owner(value)
        if self.is_foreign(value) and origin is not None:
            spec = self.recording.pin(spec, "format specification")
            text: str = trace_value(format(value, spec), Apply(format, (Read(origin), spec)))
            return text
        return super().formatted(value, spec)

    def as_text(self, value: Any, conversion: str) -> str:
        origin = self.recording.owner(value)
        if self.is_foreign(value) and origin is not None:
            convert: Callable[[Any], str] = CONVERSIONS[conversion]
            text: str = trace_value(convert(value), Apply(convert, (Read(origin),)))
            return text
        return super().as_text(value, conversion)


_FOREIGN_ANSWERS: frozenset[Any] = _ASKING | _USING_UP | {next, operator.contains}


def _is_function(owner: Any) -> bool:
    return isinstance(owner, type) and issubclass(owner, torch.autograd.Function)


def _ignored(fn: Any) -> bool:
    module = getattr(fn, "__module__", None)
    return isinstance(module, str) and any(module == name or module.startswith(name + ".") for name in IGNORED)
