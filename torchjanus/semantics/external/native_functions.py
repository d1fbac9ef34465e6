"""Calls of native functions and classes, methods apart, in a watched run: what each means for the trace.

A native function cannot be entered. The first step of ``_STEPS`` that knows it makes the call; a function that none
knows is an extern call, or the trace is refused.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import contextvars
import dataclasses
import functools
import operator
import os
import re
import types
import typing
import weakref
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.dynamo import leave_alone
from torchjanus.core.kinds import getattr, hasattr, is_one_of, isinstance
from torchjanus.semantics.containers.parts import PLAIN_EXCEPTIONS, native_base, unhooked
from torchjanus.semantics.external.foreign_calls import ForeignCalls
from torchjanus.semantics.external.plain_parts import PlainParts
from torchjanus.semantics.external.refusals import is_registered_already, refuse_mode, refuse_native
from torchjanus.semantics.known.callers import searches
from torchjanus.semantics.known.closed import (
    acts,
    calls_functions,
    is_refused_code,
    is_region,
    is_torch_script,
    is_visible_to_modes,
    sets_cudnn,
)
from torchjanus.semantics.known.endings import finalizer_of
from torchjanus.semantics.known.foreign_effects import ARRAYS, is_users_cache
from torchjanus.semantics.known.host_memory import tensors_within
from torchjanus.semantics.known.natives import ARITHMETIC, CONSUMING, LOOKING, torch_query
from torchjanus.semantics.known.not_entered import REPLACING
from torchjanus.semantics.known.trusted import IGNORED, is_installed
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.semantics.native.identities import IDENTICAL, IDENTITIES, identity_of
from torchjanus.semantics.protocols.inspecting import RETURNING_DEFAULTS, RETURNING_VARIABLES, functions_of
from torchjanus.trace.modes import note_attention
from torchjanus.trace.values import Traced, plain

__all__ = ["OTHER", "NativeFunctions"]

OTHER: Any = object()  # what a step returns for a function that it does not know

_CLASS_QUESTIONS = frozenset({"__instancecheck__", "__subclasscheck__", "__subclasshook__", "mro"})
# Their module is left native, since other functions of it make classes: these read and make instances.
_DATACLASSES: frozenset[Any] = frozenset(
    {dataclasses.replace, dataclasses.asdict, dataclasses.astuple}
    | {getattr(dataclasses, name) for name in ("_asdict_inner", "_astuple_inner")}
)
_PYBIND = re.compile(r"pybind11_detail_function_record_\w*\.")  # the prefix of a method's name under pybind11
_STANDARD_LIBRARY = os.path.dirname(os.__file__)
_QUESTIONS = "has_torch_function has_torch_function_unary has_torch_function_variadic is_tensor_method_or_property"
_MODE_QUESTIONS: frozenset[Any] = frozenset(getattr(torch.overrides, name) for name in _QUESTIONS.split())
# Functions that activate a mode that sees calls of torch.
_ENTERING: frozenset[Any] = frozenset(
    {torch.overrides.TorchFunctionMode.__enter__, torch.overrides._push_mode, torch._C._push_on_torch_dispatch_stack}
)
# Classes whose instances hold what they were made of, and it cannot be replaced.
_HIDING = (
    int, float, complex, str, bytes, operator.itemgetter, operator.attrgetter, operator.methodcaller,
    contextvars.ContextVar
)  # fmt: skip
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class NativeFunctions(ForeignCalls):
    """Makes calls of native functions and classes for the watching semantics."""

    def _function(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(fn, "__name__", "") == "__new__" and args and isinstance(args[0], type):
            args = (args[0], *self.made_of(args[0], args[1:]))
        for step in _STEPS:
            if (result := step(self, fn, args, kwargs)) is not OTHER:
                return result
        return self.unknown(fn, args, kwargs)

    # -- steps: each makes the call, or returns OTHER --------------------------------------------------------------

    def _weak_reference(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a weak reference, make one, or use a weak container."""
        if isinstance(fn, weakref.ReferenceType):
            target = fn()
            if self.recording.owner(fn) is not None:
                self._weak("reads a weak reference that was there before the call")
            if target is not None and not self.recording.lost:  # a claim keeps it alive
                self.recording.claim(target, AccessPath.const(target))
            return target
        if isinstance(fn, type) and issubclass(fn, weakref.ReferenceType | weakref.finalize) and args:
            if len(args) > 1 or kwargs or self.access_path_known(args[0]) is False:
                self._weak(f"makes a weak reference by {fn.__qualname__}")
            return self._plainly(fn, args, kwargs)
        if getattr(fn, "__module__", None) in ("weakref", "_weakrefset") and args:
            self._weak(f"uses the weak container {type(args[0]).__qualname__}")
            return self._plainly(fn, args, kwargs)
        return OTHER

    def _plainly(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a native call with untraced numbers, at any depth."""
        parts = PlainParts(self.recording)
        given, named = tuple(map(parts.of, args)), {key: parts.of(value) for key, value in kwargs.items()}
        try:
            result = self.out(fn, *given, **named)
        except BaseException:
            parts.put_back()
            raise
        return parts.put_back(result)

    def _class_question(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Register a class with an abstract one, ask for an object's class or identity, compare identities."""
        if fn is abc.ABCMeta.register:
            return self._register_class(fn, args, kwargs)
        if fn is type and len(args) == 1 and isinstance(args[0], Traced):
            return type(plain(args[0]))
        if _only_stores(fn, args):
            return self.out(fn, *args, **kwargs)
        if is_one_of(fn, IDENTITIES) and (asked := identity_of(self.recording, fn, args)) is not NotImplemented:
            return asked
        if is_one_of(fn, IDENTICAL) and len(args) == 2:
            return self.watch.compare(None, IDENTICAL[fn], *args)
        if is_one_of(fn, LOOKING) or getattr(fn, "__name__", "") in _CLASS_QUESTIONS:
            return self.out(fn, *args, **kwargs)
        return OTHER

    def _register_class(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if len(args) == 2 and not kwargs and is_registered_already(self.recording, *args):
            self.watch.note_subclass_check(args[1], args[0])
            return args[1]
        self.recording.refuse(
            "class-registered",
            "registers a class with an abstract one",
            "isinstance() answers differently from then on, and asks the classes' own code.",
            "Register it outside of the step.",
        )
        return self.out(fn, *args, **kwargs)

    def _mode(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Ask whether modes see a call. A function that activates a mode is refused, and made by a later step."""
        if is_one_of(fn, _MODE_QUESTIONS):
            with torch.overrides._pop_mode_temporarily():  # the program must not notice the watch
                return self.out(fn, *args, **kwargs)
        if is_one_of(getattr(fn, "__func__", fn), _ENTERING):
            refuse_mode(self.recording, *args[:1])
        return OTHER

    def _by_python(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Compute what a function of numbers, a getter of ``operator``, ``cast`` or ``vars`` does, by hooks."""
        if is_one_of(fn, ARITHMETIC):
            return self._arithmetic(fn, args, kwargs)
        if fn is typing.cast:
            return args[1]
        if fn is collections._count_elements:  # type: ignore[attr-defined]
            return self.count_elements(*args)
        if isinstance(fn, operator.itemgetter | operator.attrgetter) and len(args) == 1 and not kwargs:
            return self.getter(fn, args[0])
        if isinstance(fn, operator.methodcaller) and len(args) == 1 and not kwargs:
            return self.by_name(fn, args[0])
        if fn is vars and len(args) == 1:
            return self.watch.load_attr(None, args[0], "__dict__")
        return OTHER

    def _taking_elements(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what takes the elements of its arguments: containers and iterators of Python, ``sum`` and the like."""
        if fn is memoryview:
            return self.extern(fn, args, kwargs, ARRAYS)
        consumes = isinstance(fn, type) and fn.__module__ in ("itertools", "builtins", "collections")
        if is_one_of(fn, CONSUMING) or (consumes and not issubclass(fn, BaseException)):
            return self._consume(fn, args, kwargs)
        return OTHER

    def _foreign_function(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Leave functions of foreign modules, and those that are given arrays, to the host."""
        if self.is_foreign_function(fn) or self.takes_arrays(args, kwargs):
            return self.extern(fn, args, kwargs)
        return OTHER

    def _native_class(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make an object of a class with a native ``__new__``: it is private, its arguments are passed unchanged."""
        if not isinstance(fn, type):
            return OTHER
        given = self.made_of(fn, args)
        if issubclass(fn, CONTAINERS) and not hasattr(fn, "_fields"):  # a named tuple holds its arguments
            given = tuple(map(self.consumed, given))
        return self.out(fn, *given, **kwargs)

    def _dataclass(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Enter functions of ``dataclasses``; set an attribute of a frozen instance, which raises."""
        if is_one_of(fn, _DATACLASSES):
            return self.watch.enter(None, fn, args, kwargs)
        if is_one_of(fn, (setattr, delattr)) and _is_frozen(*args[:2]):
            return fn(*args)
        return OTHER

    def _torch_machinery(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what enters a transform of ``torch.func``, or disables the hooks of saved tensors."""
        if getattr(fn, "__module__", "") == "torch._C._functorch":
            return self.framework.transform(fn, args, kwargs)
        if getattr(fn, "__name__", "").startswith("_saved_tensors_hooks_"):
            return self.out(fn, *args, **kwargs)  # there are none
        return OTHER

    def _users_cache(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Leave a function with a cache of the program's own to the host."""
        return self.extern(fn, args, kwargs) if is_users_cache(fn) else OTHER

    def _inspection(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Refuse what looks at variables, guard what looks at defaults. A later step makes the call."""
        if is_one_of(fn, RETURNING_VARIABLES):
            self.recording.refuse(
                "frame-inspection",
                f"calls {fn.__name__}()",
                "it looks at variables behind the back of the watch.",
                "Name the variables instead.",
            )
        if is_one_of(fn, RETURNING_DEFAULTS) and args:
            for function in functions_of(args[0]):
                self.watch.claim_defaults(function)
        return OTHER

    def _query(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that does nothing that a graph would have to do."""
        if not _only_queries(fn, args):
            return OTHER
        note_attention(getattr(fn, "__name__", ""))
        self._pin_all(args, kwargs)
        return self.out(fn, *map(plain, args), **{key: plain(value) for key, value in kwargs.items()})

    def _visible_to_modes(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch that reports each of its calls to modes."""
        if not is_visible_to_modes(fn):
            return OTHER
        self._pin_all(args, kwargs)
        seen = self.framework.seen
        result = self.out(fn, *map(plain, args), **{key: plain(value) for key, value in kwargs.items()})
        if self.framework.seen == seen:
            refuse_native(self.recording, fn, f"torch.{fn.__name__}")
        return result

    # -- what several steps ask ------------------------------------------------------------------------------------

    def access_path_known(self, value: Any) -> bool:
        """Whether an object is from before the call and has an access path."""
        if isinstance(value, types.FunctionType | type | types.ModuleType):
            return True
        return self.recording.owner(value) is not None

    def _weak(self, what: str) -> None:
        file = self.recording.place.file
        if not (is_installed(file) or file.startswith(_STANDARD_LIBRARY)):
            self.recording.refuse_weak(what)

    def made_of(self, cls: type, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of which native code makes a new object of ``cls``."""
        if finalizer_of(cls) is not None:
            what = f"makes a {cls.__qualname__}, whose class has a __del__"
            self.recording.refuse_ending(what, "Make the object outside of the step.")
            PlainParts(self.recording).all_of(args)
        hidden = issubclass(cls, BaseException) and native_base(cls) not in PLAIN_EXCEPTIONS
        if hidden:  # a group copies its list, OSError picks a class by a number
            for part in args:
                self.expose(part)
        if hidden or issubclass(cls, _HIDING):
            return tuple(self.recording.pin(a, f"a {cls.__qualname__} is made of it") for a in args)
        return args

    def unknown(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any], why: str = "") -> Any:
        """Make a native call about which nothing is known: an extern call, or a refusal if the function is torch's.

        ``why``: a graph could make such calls, but not this one.
        """
        module = getattr(fn, "__module__", None) or type(getattr(fn, "__self__", fn)).__module__
        name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or type(fn).__qualname__
        owner = getattr(fn, "__self__", None)
        known = isinstance(owner, CONTAINERS) or is_torch_script(fn)
        often = searches(fn, (*args, *kwargs.values()))
        if module.partition(".")[0] not in ("torch", *REPLACING) and not known and not often:
            return self.extern(fn, args, kwargs)
        refuse_native(self.recording, fn, f"{module}.{_PYBIND.sub('', name)}", why)
        leave_alone()
        if often:  # what it asks often need not be watched: there will be no graph of this run
            args, kwargs = tuple(map(unhooked, args)), {key: unhooked(value) for key, value in kwargs.items()}
        parts = PlainParts(self.recording)
        parts.of(owner)
        given, named = tuple(map(parts.of, args)), {key: parts.of(value) for key, value in kwargs.items()}
        try:
            with self.framework.absent(), _uncompiled(fn):
                result = self.out(_branch if fn is torch.cond else fn, *given, **named)
        except BaseException:
            parts.put_back()
            raise
        for leaf in tensors_within(result):
            known = self.recording.number(leaf) is not None
            if is_one_of(type(leaf), _PLAIN_TENSORS) and not known and self.recording.owner(leaf) is None:
                self.recording.new_tensor(leaf)  # avoids a second refusal
        return parts.put_back(result)


_STEPS: tuple[Callable[[NativeFunctions, Any, tuple[Any, ...], dict[str, Any]], Any], ...] = (
    NativeFunctions._weak_reference,
    NativeFunctions._class_question,
    NativeFunctions._mode,
    NativeFunctions._by_python,
    NativeFunctions._taking_elements,
    NativeFunctions._foreign_function,
    NativeFunctions._native_class,
    NativeFunctions._dataclass,
    NativeFunctions._torch_machinery,
    NativeFunctions._users_cache,
    NativeFunctions._inspection,
    NativeFunctions._query,
    NativeFunctions._visible_to_modes,
)


def _only_stores(fn: Any, args: tuple[Any, ...]) -> bool:
    """Whether it is the ``__new__`` of a named tuple, as collections.namedtuple generates it, or of an exception."""
    if getattr(fn, "__name__", "") != "__new__" or not args or not isinstance(args[0], type):
        return False
    if issubclass(args[0], BaseException) and not issubclass(args[0], BaseExceptionGroup):
        return isinstance(fn, types.BuiltinFunctionType)
    return issubclass(args[0], tuple) and (getattr(fn, "__module__", None) or "").startswith("namedtuple_")


def _only_queries(fn: Any, args: tuple[Any, ...]) -> bool:
    """Whether a native function does nothing that a graph would have to do."""
    if _ignored(fn):
        return not acts(fn)
    if isinstance(fn, functools._lru_cache_wrapper):
        return not is_refused_code(fn)
    if sets_cudnn(fn, args):
        return True
    return torch_query(fn) and (fn.__name__ not in ("__enter__", "__exit__") or is_region(*args[:1]))


def _branch(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """Return what ``torch.cond`` returns."""
    return (true_fn if pred else false_fn)(*operands)


def _uncompiled(fn: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which operators that call functions do not compile them: watched functions ask hooks."""
    if not calls_functions(fn):
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _ignored(fn: Any) -> bool:
    module = getattr(fn, "__module__", None)
    return isinstance(module, str) and any(module == name or module.startswith(name + ".") for name in IGNORED)


def _is_frozen(obj: Any, name: str) -> bool:
    """Whether a frozen dataclass forbids setting and deleting this attribute."""
    params = getattr(type(obj), "__dataclass_params__", None)
    if params is None or not params.frozen:
        return False
    return "__dataclass_params__" in vars(type(obj)) or name in type(obj).__dataclass_fields__
