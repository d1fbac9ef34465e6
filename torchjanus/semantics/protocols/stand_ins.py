"""Python versions of library functions that are watched in their place, with the same effect.

``zero_grad`` tests whether each parameter has a gradient. The answer depends on the previous call, so a step that skips
some parameters would have a path for each pair of calls. ``ast.iter_child_nodes`` is in the standard library, which is
not entered, but programs walk syntax trees with it. ``torch.allclose`` and ``torch.equal`` return a bool that no graph
can produce; as predicates on a tensor they are ordinary decisions. The constructors ``torch.FloatTensor``,
``torch.Tensor`` and ``Variable`` do not report the tensors that they make. Packed sequences are put back into order by
indices that are known to be valid. ``functools`` is not entered, but a cached property or a partial method may call the
user's code. ``reducing`` has the functions for ``copy``, ``inspecting`` those for ``inspect``.
"""

from __future__ import annotations

import ast
import collections
import functools
import operator
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.utils.rnn import invert_permutation

from torchjanus.core import kinds
from torchjanus.core.default_device import foreign_modes, sees_calls
from torchjanus.core.kinds import is_one_of
from torchjanus.semantics.protocols.heaps import HEAPS
from torchjanus.semantics.protocols.inspecting import READING
from torchjanus.semantics.protocols.reducing import COPIERS, reducer_of

__all__ = ["cached_property", "partial_method", "stand_in_for"]


def _optimizer_zero_grad(optimizer: Any, set_to_none: bool = True) -> None:
    if not set_to_none:
        torch.optim.Optimizer.zero_grad(optimizer, set_to_none)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _module_zero_grad(module: Any, set_to_none: bool = True) -> None:
    if not set_to_none:
        torch.nn.Module.zero_grad(module, set_to_none)
        return
    for parameter in module.parameters():
        parameter.grad = None


def cached_property(known: Any, instance: Any) -> Any:
    """Return what ``functools.cached_property.__get__`` returns."""
    if instance is None:
        return known
    held = instance.__dict__
    if known.attrname not in held:
        held[known.attrname] = known.func(instance)
    return held[known.attrname]


def partial_method(known: Any, instance: Any, owner: Any) -> Any:
    """Return what ``functools.partialmethod.__get__`` returns."""
    bind = getattr(known.func, "__get__", None)
    method = known.func if bind is None else bind(instance, owner)
    if method is not known.func:
        made = functools.partial(method, *known.args, **known.keywords)
        if hasattr(method, "__self__"):
            made.__self__ = method.__self__  # type: ignore[attr-defined]
        return made
    if instance is None:
        return functools.partialmethod.__get__(known, instance, owner)
    made = functools.partial(known.func, instance, *known.args, **known.keywords)
    made.__self__ = instance  # type: ignore[attr-defined]  # as a bound method has it
    return made


def _call(fn: Any, /, *args: Any, **kwargs: Any) -> Any:
    """``operator.call``."""
    return fn(*args, **kwargs)


def _new(tensor: torch.Tensor, /, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Return ``tensor.new()``, which treats a size differently from a tuple."""
    if len(args) == 1 and type(args[0]) is torch.Size and not kwargs:
        return tensor.new_empty(args[0])
    made: torch.Tensor = torch.Tensor.new(tensor, *args, **kwargs)
    return made


def _iter_child_nodes(node: Any) -> Iterator[ast.AST]:
    for name in node._fields:
        field = getattr(node, name, None)
        if isinstance(field, ast.AST):
            yield field
        elif isinstance(field, list):
            for item in field:
                if isinstance(item, ast.AST):
                    yield item


def _allclose(
    one: torch.Tensor, other: torch.Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False
) -> bool:
    return bool(torch.isclose(one, other, rtol, atol, equal_nan).all())


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or one.device != other.device:
        return torch.Tensor.equal(one, other)  # raises
    return one.size() == other.size() and bool((one == other).all())


def _invert_permutation(permutation: torch.Tensor | None) -> torch.Tensor | None:
    """Sort, which gives valid indices; scattering into uninitialised memory would not be known to."""
    return None if permutation is None else torch.argsort(permutation)


def _variable(data: torch.Tensor, requires_grad: bool = False) -> torch.Tensor:
    return data.detach().requires_grad_() if requires_grad else data.detach()


def _maker_for(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return a function that makes the same tensor as a legacy constructor, or the constructor itself."""
    first = args[0] if args else None
    plain = type(first) in (torch.Tensor, torch.nn.Parameter)
    if cls is torch.autograd.Variable:
        if not plain or len(args) > 2 or kwargs.keys() - {"requires_grad"}:
            return cls
        return cls if any((*args[1:], *kwargs.values())) and not first.is_floating_point() else _variable  # type: ignore[union-attr]
    if kwargs or torch._C._get_default_device() != "cpu":
        return cls
    dtype = torch.get_default_dtype() if cls is torch.Tensor else cls.dtype
    if not args:
        return functools.partial(torch.empty, 0, dtype=dtype, device="cpu")
    if isinstance(first, torch.Size) or all(isinstance(size, int) and not isinstance(size, bool) for size in args):
        return functools.partial(torch.empty, dtype=dtype, device="cpu")
    if len(args) > 1:
        return cls
    if isinstance(first, list | tuple | range | collections.deque):
        return functools.partial(torch.tensor, dtype=dtype, device="cpu")
    if plain and first.device.type == "cpu" and (cls is torch.Tensor or first.dtype is dtype):  # type: ignore[union-attr]
        return torch.ops.aten.alias.default
    return cls


def _is_legacy_constructor(fn: Any) -> bool:
    return fn is torch.Tensor or fn is torch.autograd.Variable or type(fn) is type(torch.FloatTensor)


_METHODS: dict[Any, Any] = {
    torch.optim.Optimizer.zero_grad: _optimizer_zero_grad,
    torch.nn.Module.zero_grad: _module_zero_grad,
}
_FUNCTIONS: dict[Any, Any] = {
    operator.call: _call,
    ast.iter_child_nodes: _iter_child_nodes,
    torch.allclose: _allclose,
    torch.equal: _equal,
    invert_permutation: _invert_permutation,
    **COPIERS,
    **READING,
}
_PLAIN = (types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType)
_TENSOR_METHODS: dict[str, Any] = {"allclose": _allclose, "equal": _equal, "new": _new}


def _is_protocol(*args: Any) -> bool:
    """Whether the arguments are one protocol number of pickle, at least 2 (PEP 307)."""
    return len(args) == 1 and type(args[0]) is int and args[0] >= 2


def stand_in_for(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what is watched in place of ``fn`` with these arguments, mostly ``fn`` itself."""
    made = _made_for(fn, args, kwargs)
    if made is fn:
        return fn
    # A mode or a class of the program's sees which functions of torch are called. No graph is made of such a run.
    return fn if foreign_modes() or any(map(sees_calls, _tensors_of(getattr(fn, "__self__", None), *args))) else made


def _tensors_of(*values: Any) -> Iterator[Any]:
    """Yield the values, and the parameters of optimizers and modules among them."""
    for value in values:
        yield value
        if kinds.isinstance(value, torch.optim.Optimizer):
            yield from (parameter for group in value.param_groups for parameter in group["params"])
        elif kinds.isinstance(value, torch.nn.Module):
            yield from value.__dict__.get("_parameters", {}).values()  # not by methods, which the program may override
            yield from _tensors_of(*value.__dict__.get("_modules", {}).values())


def _made_for(fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(fn, type) and _is_legacy_constructor(fn):
        return _maker_for(fn, args, kwargs)
    if type(fn) is types.MethodType and fn.__func__ in _METHODS:
        return types.MethodType(_METHODS[fn.__func__], fn.__self__)
    if type(fn) is types.BuiltinMethodType and fn.__name__ in _TENSOR_METHODS and isinstance(fn.__self__, torch.Tensor):
        return types.MethodType(_TENSOR_METHODS[fn.__name__], fn.__self__)
    if type(fn) is types.BuiltinMethodType and fn.__name__ == "__reduce_ex__" and not kwargs:
        reducer = reducer_of(fn.__self__) if _is_protocol(*args) else None
        return fn if reducer is None else types.MethodType(reducer, fn.__self__)
    if type(fn) is types.BuiltinFunctionType and fn in HEAPS:
        return HEAPS[fn] if args and isinstance(args[0], list) and not kwargs else fn
    return _FUNCTIONS.get(fn, fn) if is_one_of(type(fn), _PLAIN) else fn
