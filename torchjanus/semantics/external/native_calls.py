"""Calls of native functions in a watched program, and what they mean for the trace.

A native callee cannot be entered. Some kinds are known (``natives``): some only inspect, some read containers, some
change them, some are recorded as framework calls. All others are extern calls, which the host makes.
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
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchjanus.core.access_path import AccessPath
from torchjanus.core.dynamo import leave_alone
from torchjanus.core.kinds import getattr, hasattr, is_one_of, isinstance
from torchjanus.ops.collectives import facts_of, is_of_store
from torchjanus.rewrite.hooks import rewritten
from torchjanus.semantics.containers.parts import PLAIN_EXCEPTIONS, native_base, unhooked
from torchjanus.semantics.external.data_parallel import is_forward
from torchjanus.semantics.external.foreign_calls import FOREIGN_ANSWERS, ForeignCalls
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
from torchjanus.semantics.known.natives import ARITHMETIC, CONSUMING, DEFERRED, FACTORIES, LOOKING, torch_query
from torchjanus.semantics.known.trusted import IGNORED, SETTING_UP, is_installed
from torchjanus.semantics.native.containers import CONTAINERS
from torchjanus.semantics.native.identities import IDENTICAL, IDENTITIES, identity_of
from torchjanus.semantics.protocols.inspecting import RETURNING_DEFAULTS, RETURNING_VARIABLES, functions_of
from torchjanus.semantics.torch.backward_code import is_autograd_node
from torchjanus.semantics.torch.checkpoints import Checkpoints, is_checkpoint
from torchjanus.semantics.torch.function_context import METHODS
from torchjanus.semantics.torch.packed_sequences import PACKING
from torchjanus.trace.values import Traced, plain

__all__ = ["NativeCalls"]

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
# Classes whose instances hold what they were made of where nobody can replace it.
_HIDING = (
    int, float, complex, str, bytes, operator.itemgetter, operator.attrgetter, operator.methodcaller,
    contextvars.ContextVar
)  # fmt: skip
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


@functools.cache
def _framework_functions() -> frozenset[int]:
    """Return the ids of all functions that a TorchFunctionMode sees: torch.overrides' list and additions."""
    known = {id(f) for fs in torch.overrides.get_overridable_functions().values() for f in fs}
    known.update(id(f) for f in (torch.autograd.backward, torch.autograd.grad))
    # Factories take no tensors, so they cannot be overridden, but a mode sees them.
    known.update(id(f) for name, f in vars(torch).items() if name.startswith(("_foreach_", "_fused_")))
    known.update(id(getattr(torch, name)) for name in FACTORIES if hasattr(torch, name))
    known.update(id(getattr(torch._VF, name)) for name in PACKING)
    return frozenset(known)


# Functions that take tensors from any iterable.
_OF_AUTOGRAD = (torch.autograd.backward, torch.autograd.grad, torch.Tensor.backward)

# Functions that infer the dtype of numbers in lists, which NumPy's scalars define.
_OF_LISTS = (torch.tensor, torch.as_tensor, torch.asarray)


class NativeCalls(ForeignCalls):
    """Makes native calls for the watching semantics and records what they mean."""

    # -- which kind -----------------------------------------------------------------------------------------------

    def is_framework(self, fn: Any) -> bool:
        return id(fn) in _framework_functions()

    def is_deferred(self, fn: Any) -> bool:
        return is_one_of(fn, DEFERRED)

    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call for real and record it."""
        if is_one_of(fn, _OF_AUTOGRAD):
            args = tuple(map(self._as_tuple, args))
            kwargs = {name: self._as_tuple(value) for name, value in kwargs.items()}
        if is_one_of(fn, (torch.autograd.backward, torch.autograd.grad)):
            return self._autograd(fn, args, kwargs)
        if (
            fn is torch.Tensor._make_subclass
            and args[0] is torch.nn.Parameter
            and is_one_of(type(args[1]), _PLAIN_TENSORS)
        ):
            return self.framework.new_parameter(args[1], *args[2:], **kwargs)
        if self.is_framework(fn):
            if self.takes_arrays(args, kwargs):
                return self.extern(fn, args, kwargs)
            args, kwargs = self.opened(args, kwargs)
            if is_one_of(fn, _OF_LISTS):
                if self.holds_arrays(args[:1]):
                    return self.extern(fn, args, kwargs)
                args = (*self.as_tensors(args[:1]), *args[1:])
            return self.framework.lines.call(self.out, self.recording.place, fn, args, kwargs)
        if getattr(fn, "__name__", "") == "apply" and _is_function(getattr(fn, "__self__", None)):
            return self.framework.code.apply(fn.__self__, args)
        if isinstance(fn, types.FunctionType):
            if is_one_of(fn, METHODS) or is_one_of(fn, SETTING_UP):
                return self.out(fn, *args, **kwargs)
            if (facts := facts_of(fn)) is not None:
                why = self.collectives.hindrance(fn, facts, args, kwargs)
                return self.unknown(fn, args, kwargs, why) if why else self.collectives.call(fn, facts, args, kwargs)
            if is_forward(fn) and args:
                why = self.data_parallel.hindrance(args[0])
                forward = self.data_parallel.forward
                return self.unknown(fn, args, kwargs, why) if why else forward(args[0], args[1:], kwargs)
            if is_refused_code(fn):
                return self.unknown(fn, args, kwargs)
            if is_checkpoint(fn) and (args or "function" in kwargs):
                function, rest = (args[0], args[1:]) if args else (kwargs.pop("function"), ())
                return Checkpoints(self.framework).run(fn, function, rest, kwargs)
            if fn is RemovableHandle.remove:
                return None if self.framework.code.unregister(args[0]) else rewritten(fn)(*args)
        if is_torch_script(fn) or is_refused_code(fn):
            return self.unknown(fn, args, kwargs)
        owner = getattr(fn, "__self__", None)
        name = getattr(fn, "__name__", "")
        if name == "wait" and self.collectives.knows(args[0] if args else owner) and len(args) < 2 and not kwargs:
            return self.collectives.wait(args[0] if args else owner)
        if args and is_of_store(args[0], name):
            return self.collectives.ask_store(name, args, kwargs)
        bound = isinstance(fn, types.BuiltinMethodType | types.MethodWrapperType) and owner is not None
        bound = bound and not type(owner).__name__.startswith("pybind11")  # there it only holds the function's record
        if args and any(self.is_foreign(value) for value in args) and is_one_of(fn, FOREIGN_ANSWERS):
            return self.call_on_foreign(fn, args, kwargs)
        if fn is torch.clear_autocast_cache:
            return self.framework.forget_casts()
        if fn is len and len(args) == 1 and not kwargs:
            return self._length(args[0])
        if fn is print:
            return self.prints.call(args, kwargs)
        if self.is_deferred(fn):
            return self.extern(fn, args, kwargs)
        if bound and not isinstance(owner, types.ModuleType | type) and self.is_foreign(owner):
            return self.foreign_method(fn, owner, name, args, kwargs)
        if bound and is_autograd_node(owner) and self.recording.owner(owner) is None:
            return self.framework.code.call_node_method(owner, name, args, kwargs)
        if bound:
            if not isinstance(owner, types.ModuleType | type):
                return self._method(fn, owner, name, args, kwargs)
        elif isinstance(fn, types.MethodDescriptorType | types.WrapperDescriptorType) and args:
            if self.is_foreign(args[0]):
                return self.foreign_method(fn, args[0], name, args[1:], kwargs)
            return self._unbound(fn, name, args, kwargs)
        return self._function(fn, args, kwargs)

    def _function(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
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
            return self.out(fn, *args, **kwargs)
        if fn is abc.ABCMeta.register:
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
        if getattr(fn, "__module__", None) in ("weakref", "_weakrefset") and args:
            self._weak(f"uses the weak container {type(args[0]).__qualname__}")
            return self.out(fn, *args, **kwargs)
        if fn is type and len(args) == 1 and isinstance(args[0], Traced):
            return type(plain(args[0]))
        if getattr(fn, "__name__", "") == "__new__" and args and isinstance(args[0], type):
            args = (args[0], *self.made_of(args[0], args[1:]))
            if issubclass(args[0], tuple) and (getattr(fn, "__module__", None) or "").startswith("namedtuple_"):
                return self.out(fn, *args, **kwargs)  # generated by collections.namedtuple: it only stores
        if is_one_of(fn, IDENTITIES) and (asked := identity_of(self.recording, fn, args)) is not NotImplemented:
            return asked
        if is_one_of(fn, IDENTICAL) and len(args) == 2:
            return self.watch.compare(None, IDENTICAL[fn], *args)
        if is_one_of(fn, LOOKING) or getattr(fn, "__name__", "") in _CLASS_QUESTIONS:
            return self.out(fn, *args, **kwargs)
        if is_one_of(fn, _MODE_QUESTIONS):
            with torch.overrides._pop_mode_temporarily():  # the program must not notice the watch
                return self.out(fn, *args, **kwargs)
        if is_one_of(getattr(fn, "__func__", fn), _ENTERING):
            refuse_mode(self.recording, *args[:1])
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
        if fn is memoryview:
            return self.extern(fn, args, kwargs, ARRAYS)
        if is_one_of(fn, CONSUMING) or (
            isinstance(fn, type)
            and fn.__module__ in ("itertools", "builtins", "collections")
            and not issubclass(fn, BaseException)
        ):
            return self._consume(fn, args, kwargs)
        if self.is_foreign_function(fn) or self.takes_arrays(args, kwargs):
            return self.extern(fn, args, kwargs)
        if isinstance(fn, type):
            # A class with a native __new__: the object is private, its arguments are passed unchanged.
            given = self.made_of(fn, args)
            if issubclass(fn, CONTAINERS) and not hasattr(fn, "_fields"):  # a named tuple holds its arguments
                given = tuple(map(self.consumed, given))
            return self.out(fn, *given, **kwargs)
        if is_one_of(fn, _DATACLASSES):
            return self.watch.enter(None, fn, args, kwargs)
        if is_one_of(fn, (setattr, delattr)) and _is_frozen(*args[:2]):
            return fn(*args)  # raises
        if getattr(fn, "__module__", "") == "torch._C._functorch":
            return self.framework.transform(fn, args, kwargs)
        if getattr(fn, "__name__", "").startswith("_saved_tensors_hooks_"):
            return self.out(fn, *args, **kwargs)  # enables or disables hooks; there are none
        if is_users_cache(fn):
            return self.extern(fn, args, kwargs)
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
        if self._only_queries(fn, args, kwargs):
            self._pin_all(args, kwargs)
            return self.out(fn, *map(plain, args), **{k: plain(v) for k, v in kwargs.items()})
        if is_visible_to_modes(fn):
            return self._call_visible(fn, args, kwargs)
        return self.unknown(fn, args, kwargs)

    def _only_queries(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a native function does nothing that a graph would have to do."""
        if _ignored(fn):
            return not acts(fn)
        if isinstance(fn, functools._lru_cache_wrapper):
            return not is_refused_code(fn)
        if sets_cudnn(fn, args):
            return True
        return torch_query(fn) and (fn.__name__ not in ("__enter__", "__exit__") or is_region(*args[:1]))

    def _call_visible(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch that reports each of its calls to modes."""
        self._pin_all(args, kwargs)
        seen = self.framework.seen
        result = self.out(fn, *map(plain, args), **{key: plain(value) for key, value in kwargs.items()})
        if self.framework.seen == seen:
            refuse_native(self.recording, fn, f"torch.{fn.__name__}")
        return result

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
        if module.partition(".")[0] != "torch" and not known and not often:
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

    # -- framework ------------------------------------------------------------------------------------------------

    def _as_tuple(self, value: Any) -> Any:
        """Return an iterable of tensors (``model.parameters()``, ``weights.values()``) as a list or tuple."""
        if isinstance(value, torch.Tensor | list | tuple) or not isinstance(value, Iterable):
            return value
        return tuple(self.watch.iterate(None, value))

    def _autograd(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = self.opened(args, kwargs)
        with torch._C.DisableTorchFunction():
            return self.framework.call(fn, args, kwargs)


def _branch(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    """Return what ``torch.cond`` returns."""
    return (true_fn if pred else false_fn)(*operands)


def _uncompiled(fn: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which operators that call functions do not compile them: watched functions ask hooks."""
    if not calls_functions(fn):
        return contextlib.nullcontext()
    stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


def _is_function(owner: Any) -> bool:
    return isinstance(owner, type) and issubclass(owner, torch.autograd.Function)


def _ignored(fn: Any) -> bool:
    module = getattr(fn, "__module__", None)
    return isinstance(module, str) and any(module == name or module.startswith(name + ".") for name in IGNORED)


def _is_frozen(obj: Any, name: str) -> bool:
    """Whether a frozen dataclass forbids setting and deleting this attribute."""
    params = getattr(type(obj), "__dataclass_params__", None)
    if params is None or not params.frozen:
        return False
    return "__dataclass_params__" in vars(type(obj)) or name in type(obj).__dataclass_fields__
