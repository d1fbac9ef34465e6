"""The ``Staged`` semantics: what is known runs now; what is not becomes a graph (Snek, section 5: staging by type, when
the program runs). Calls are here."""

from __future__ import annotations

import builtins
import functools
import inspect
import types
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.overrides import resolve_name
from torch.utils import _pytree as pytree

from torchjanus.core.errors import SourceUnavailable, refused
from torchjanus.core.kinds import isinstance, on_type
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.lifted import lifted_form
from torchjanus.semantics.known.not_entered import NATIVE_MODULES, module_reason
from torchjanus.semantics.staged.flow import Flow
from torchjanus.semantics.staged.loops import Loops
from torchjanus.semantics.staged.merging import is_plain
from torchjanus.semantics.staged.natives import NATIVES, is_impure
from torchjanus.semantics.staged.torch_calls import EFFECTS
from torchjanus.semantics.staged.unknown.journal import MUTATORS
from torchjanus.semantics.staged.unknown.values import Poison, StagedList, StagedNumber, is_staged

__all__ = ["Staged"]

_ENTERED_OF_TORCH = "torch.nn.modules"
_APPLY = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]  # a class method
_CACHED = type(functools.lru_cache(abs))
_SCRIPTED = (torch.jit.ScriptFunction, torch.jit.ScriptModule, torch._C.ScriptMethod)  # they may write in place


class Staged(Flow):
    """A semantics under which a program makes the graph of a ``Loops``. One for each staging."""

    def enters(self, fn: FunctionType) -> bool:
        """Whether a function is run lifted."""
        module = fn.__globals__.get("__name__") or ""
        if module.startswith("torch.") or module == "torch":
            return module.startswith(_ENTERED_OF_TORCH)
        if module.startswith("torchjanus.") or module_reason(module, NATIVE_MODULES) is not None:
            return False
        try:
            lifted_form(fn)
        except SourceUnavailable:
            return False
        return True

    def call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call: Python functions of the program are entered, native ones are staged by ``NATIVES`` or called."""
        staging = self.at(at)
        if isinstance(fn, Poison):
            fn._raise()
        if self.applied is not None:
            found = self.applied(fn, args, kwargs)
            if found is not NotImplemented:
                self.at(at)
                return found
        native = NATIVES.get(fn) if _hashable(fn) else None
        if native is not None:
            found = native(self, at, *args, **kwargs)
            if found is not NotImplemented:
                return found
        if type(fn) is MethodType:
            if fn.__func__ is _APPLY:
                return staging.custom(fn, args, kwargs)
            return self.call(at, fn.__func__, (fn.__self__, *args), kwargs)
        if type(fn) is functools.partial:
            return self.call(at, fn.func, (*fn.args, *args), {**fn.keywords, **kwargs})
        if type(fn) is FunctionType and self.enters(fn):
            return self._enter(at, fn, args, kwargs)
        if isinstance(fn, nn.Module) and type(fn).__call__ is nn.Module.__call__:
            return self._module(at, fn, args, kwargs)
        if isinstance(fn, type):
            return self._make(at, fn, args, kwargs)
        method = inspect.getattr_static(type(fn), "__call__", None)
        if type(method) is FunctionType and self.enters(method):
            return self._enter(at, method, (fn, *args), kwargs)
        return self._native(at, fn, args, kwargs, staging)

    def _enter(self, at: Site, fn: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = lifted_form(fn)(*args, **kwargs)
        self.at(at)  # if it raises, the place is where it does
        return result

    def _module(self, at: Site, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        if any(getattr(module, name) for name in hooks):
            raise refused("staged-effect", f"a {type(module).__name__} with hooks", "Hooks of modules are not staged.",
                          "Remove them, or call what they do.", self.at(at).place)  # fmt: skip
        return self.call(at, module.forward, args, kwargs)

    def _make(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        starter = on_type(cls, "__init__")
        plain = type(cls) is type and is_plain(cls)
        if plain and type(starter) is FunctionType and self.enters(starter):
            made: Any = object.__new__(cls)
            self._enter(at, starter, (made, *args), kwargs)
            return made
        return self._native(at, cls, args, kwargs, self.staging)

    def _native(self, at: Site, fn: Any, args: Any, kwargs: Any, staging: Loops) -> Any:
        """Call native code, or add a node where torch is given staged values. Raises Refused for calls with effects
        that a graph would not repeat."""
        owner = getattr(fn, "__self__", None)
        name = getattr(fn, "__name__", "")
        if owner is not None and name in MUTATORS and isinstance(owner, list | dict | set):
            self.changes(at, owner)
            return fn(*args, **kwargs)
        self.reads_memory(at, fn, owner, *args, *kwargs.values())
        for one in (owner, *args):
            self.advances(at, one)
        of_torch = (getattr(fn, "__module__", None) or "").partition(".")[0] == "torch"
        if isinstance(fn, (_CACHED, *_SCRIPTED)) or is_impure(fn) or (of_torch and name in EFFECTS):
            raise refused("staged-effect", f"{name}()", "A staged function is run once, its graph many times.",
                          "Do it outside of the staged function.", staging.place)  # fmt: skip
        if isinstance(fn, type) and issubclass(fn, torch.Tensor) and fn is not nn.Parameter:
            raise refused("staged-effect", f"{fn.__name__}()", "The constructor hands out memory that is not set.",
                          "Use torch.tensor or torch.zeros.", staging.place)  # fmt: skip
        if isinstance(fn, torch._ops.OpOverload | torch._ops.OpOverloadPacket):  # may take no tensor
            return staging.operation(fn, args, kwargs)
        if any(isinstance(one, StagedNumber | StagedList) for one in pytree.tree_leaves((args, kwargs))):
            if isinstance(owner, torch.Tensor):  # torch does not take such numbers before it asks whose call it is
                return staging.operation(getattr(torch.Tensor, name), (owner, *args), kwargs)
            if of_torch or resolve_name(fn) is not None:
                return staging.operation(fn, args, kwargs)
        return fn(*args, **kwargs)

    def raised(self, at: Site, exception: Any) -> Any:
        if isinstance(exception, type) and issubclass(exception, BaseException):
            exception = exception()
        self.at(at).thrown[id(exception)] = exception
        return exception

    def format(self, at: Site, value: Any, conversion: str, spec: str) -> str:
        if is_staged(value):
            raise refused("staged-effect", "the text of a staged value", "", "", self.at(at).place)
        self.reads_memory(at, value)
        return super().format(at, value, conversion, spec)

    def frame_reader(self, at: Site, owner: dict[str, Any], fn: Any) -> Any:
        if fn in (builtins.super, builtins.dir, builtins.vars):
            return fn
        raise refused("staged-effect", f"{getattr(fn, '__name__', fn)}()", "It looks at frames, and lifted code has "
                      "others.", "Do without it.", self.at(at).place)  # fmt: skip


def _hashable(fn: Any) -> bool:
    return (
        type(fn) in (types.BuiltinFunctionType, type, FunctionType, types.BuiltinMethodType)
        and type(fn).__hash__ is not None
    )
