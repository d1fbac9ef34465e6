"""Calls of native code in a watched program, and what they mean for the trace.

Native code cannot be entered. The first step of ``_STEPS`` that knows the callee makes the call: torch's functions are
recorded as framework calls, some methods only inspect, read or change containers (``native_functions`` has functions
that are no methods). All others are extern calls, which the host makes.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from torchjanus.core.kinds import getattr, hasattr, is_one_of, isinstance
from torchjanus.core.unwarned import unnoticed
from torchjanus.ops.collectives import facts_of, is_of_store
from torchjanus.rewrite.hooks import rewritten
from torchjanus.semantics.external.data_parallel import is_forward
from torchjanus.semantics.external.foreign_calls import FOREIGN_ANSWERS
from torchjanus.semantics.external.native_functions import OTHER, NativeFunctions
from torchjanus.semantics.known.closed import is_refused_code, is_torch_script
from torchjanus.semantics.known.natives import DEFERRED, FACTORIES
from torchjanus.semantics.known.trusted import SETTING_UP
from torchjanus.semantics.torch.backward_code import is_autograd_node
from torchjanus.semantics.torch.checkpoints import Checkpoints, is_checkpoint
from torchjanus.semantics.torch.function_context import METHODS
from torchjanus.semantics.torch.packed_sequences import PACKING

__all__ = ["NativeCalls"]


@functools.cache
def _framework_functions() -> frozenset[int]:
    """Return the ids of all functions that a TorchFunctionMode sees: torch.overrides' list and additions."""
    with unnoticed():
        listed = torch.overrides.get_overridable_functions()
    known = {id(f) for fs in listed.values() for f in fs}
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
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)


class NativeCalls(NativeFunctions):
    """Makes native calls for the watching semantics and records what they mean."""

    def is_framework(self, fn: Any) -> bool:
        return id(fn) in _framework_functions()

    def is_deferred(self, fn: Any) -> bool:
        return is_one_of(fn, DEFERRED)

    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make the call for real and record it."""
        for step in _STEPS:
            if (result := step(self, fn, args, kwargs)) is not OTHER:
                return result
        return self._function(fn, args, kwargs)

    # -- steps: each makes the call, or returns OTHER --------------------------------------------------------------

    def _framework_call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function of torch that a TorchFunctionMode sees, or make a parameter."""
        if is_one_of(fn, _OF_AUTOGRAD):
            args = tuple(map(self._as_tuple, args))
            kwargs = {name: self._as_tuple(value) for name, value in kwargs.items()}
        if is_one_of(fn, (torch.autograd.backward, torch.autograd.grad)):
            return self._autograd(fn, args, kwargs)
        makes_parameter = fn is torch.Tensor._make_subclass and args[0] is torch.nn.Parameter
        if makes_parameter and is_one_of(type(args[1]), _PLAIN_TENSORS):
            return self.framework.new_parameter(args[1], *args[2:], **kwargs)
        if not self.is_framework(fn):
            return OTHER
        if self.takes_arrays(args, kwargs):
            return self.extern(fn, args, kwargs)
        args, kwargs = self.opened(args, kwargs)
        if is_one_of(fn, _OF_LISTS):
            if self.holds_arrays(args[:1]):
                return self.extern(fn, args, kwargs)
            args = (*self.as_tensors(args[:1]), *args[1:])
        made = self.framework.unparsed(fn, args, kwargs)
        return self.framework.lines.call(self.out, self.recording.place, made, args, kwargs)

    def _autograd_function(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call ``apply`` of an ``autograd.Function``."""
        if getattr(fn, "__name__", "") == "apply" and _is_function(getattr(fn, "__self__", None)):
            return self.framework.code.apply(fn.__self__, args)
        return OTHER

    def _known_code(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a Python function of torch that is not entered: collectives, checkpoints, code that is refused."""
        if not isinstance(fn, types.FunctionType):
            return OTHER
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
        return OTHER

    def _refused_code(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call TorchScript and other code that no graph can hold."""
        return self.unknown(fn, args, kwargs) if is_torch_script(fn) or is_refused_code(fn) else OTHER

    def _distributed(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Wait for a collective, or ask a store of ``torch.distributed``."""
        name = getattr(fn, "__name__", "")
        if name == "wait" and len(args) < 2 and not kwargs:
            work = args[0] if args else getattr(fn, "__self__", None)
            if self.collectives.knows(work):
                return self.collectives.wait(work)
        if args and is_of_store(args[0], name):
            return self.collectives.ask_store(name, args, kwargs)
        return OTHER

    def _builtin(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a builtin with a foreign argument, ``len``, ``print``, or a function that is left to the host."""
        if args and any(self.is_foreign(value) for value in args) and is_one_of(fn, FOREIGN_ANSWERS):
            return self.call_on_foreign(fn, args, kwargs)
        if fn is torch.clear_autocast_cache:
            return self.framework.forget_casts()
        if fn is len and len(args) == 1 and not kwargs:
            return self._length(args[0])
        if fn is print:
            return self.prints.call(args, kwargs)
        return self.extern(fn, args, kwargs) if self.is_deferred(fn) else OTHER

    def _native_method(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of a native class, bound or unbound."""
        owner, name = getattr(fn, "__self__", None), getattr(fn, "__name__", "")
        bound = isinstance(fn, types.BuiltinMethodType | types.MethodWrapperType) and owner is not None
        if bound and not type(owner).__name__.startswith("pybind11"):  # there it only holds the function's record
            if isinstance(owner, types.ModuleType | type):
                return OTHER
            if self.is_foreign(owner):
                return self.foreign_method(fn, owner, name, args, kwargs)
            if is_autograd_node(owner) and self.recording.owner(owner) is None:
                return self.framework.code.call_node_method(owner, name, args, kwargs)
            return self._method(fn, owner, name, args, kwargs)
        if isinstance(fn, types.MethodDescriptorType | types.WrapperDescriptorType) and args:
            if self.is_foreign(args[0]):
                return self.foreign_method(fn, args[0], name, args[1:], kwargs)
            return self._unbound(fn, name, args, kwargs)
        return OTHER

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


_STEPS: tuple[Callable[[NativeCalls, Any, tuple[Any, ...], dict[str, Any]], Any], ...] = (
    NativeCalls._framework_call,
    NativeCalls._autograd_function,
    NativeCalls._known_code,
    NativeCalls._refused_code,
    NativeCalls._distributed,
    NativeCalls._builtin,
    NativeCalls._native_method,
)


def _is_function(owner: Any) -> bool:
    return isinstance(owner, type) and issubclass(owner, torch.autograd.Function)
