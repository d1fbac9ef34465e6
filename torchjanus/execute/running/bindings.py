"""Finds torch's own Python function for an operator: a call of it takes half the time of a call by the overload.

Such a function is used only where a dispatch mode has seen it call the very same overload with the very same arguments,
for arguments of these types. It does not depend on values which overload a function calls. Knows nothing of graphs but
the arguments of their nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from torchjanus.core.caches import Recent
from torchjanus.core.trees import leaves_of, map_leaves
from torchjanus.execute.running.gate import below_autograd

__all__ = ["Called", "called"]

Called = tuple[Callable[..., Any], dict[str, Any]]  # a function, and keywords to be given to it besides

_HOMES = (torch._C._VariableFunctions, torch._C._nn, torch._C.TensorBase)

# Functions of other names, with the keywords that make them the same operation.
_OTHERS: dict[str, Called] = {"_to_copy": (torch._C.TensorBase.to, {"copy": True})}

_known: Recent[Called] = Recent(4096)  # by overload and the types of its arguments


def called(target: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> Called:
    """Return what to call for ``target`` with these arguments of a node."""
    plainly: Called = (target._op, {})  # what the overload calls, without its Python frame
    if target.namespace != "aten":
        return plainly
    try:
        given, named = map_leaves((args, kwargs), _example)
    except _Unknown:
        return plainly
    types = (target, _types(given), *((name, _types(value)) for name, value in named.items()))
    return _known.get(types, lambda: _found(target, given, named) or plainly)


def _found(target: torch._ops.OpOverload, args: Any, kwargs: Any) -> Called | None:
    name = target._schema.name.partition("::")[2]
    others = [_OTHERS[name]] if name in _OTHERS else []
    functions: list[Called] = [(function, {}) for home in _HOMES if (function := getattr(home, name, None)) is not None]
    # Functions that make a tensor of none are under the influence of the default device.
    if not (functions or others) or not any(one is _TENSOR for one in leaves_of((args, kwargs))):
        return None
    wanted = _seen(target._op, args, kwargs)
    if wanted is None:
        return None
    for function, more in (*functions, *others):
        if _same(_seen(partial(function, **more), args, kwargs), wanted):
            return function, more
    return None


class _Stop(BaseException):
    """Ends a call that has been seen."""


class _Looking(TorchDispatchMode):
    """Notes the first operator that is called, and calls none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen = func, args, kwargs or {}
        raise _Stop


def _seen(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the operator that the function calls, with its arguments; None if it raises before that."""
    looking = _Looking()
    try:
        with below_autograd(), looking:
            function(*args, **kwargs)
    except _Stop:
        return looking.seen
    except Exception:
        return None
    return None


def _same(one: Any, other: Any) -> bool:
    """Whether two calls are the same, down to the types of numbers."""
    if isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor):
        return one is other
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other)


class _Unknown(Exception):
    """The type of an argument is not known."""


_TENSOR = torch.empty(2, 2)
_EXAMPLES: tuple[tuple[Any, Any], ...] = (
    (torch.Tensor, _TENSOR),
    (bool | torch.SymBool, True),
    (int | torch.SymInt, 2),
    (float | torch.SymFloat, 1.5),
)


def _example(value: Any) -> Any:
    """Return an argument of the same type. Raises _Unknown."""
    if not hasattr(value, "all_input_nodes"):
        return value
    made = value.meta.get("val")
    for kinds, example in _EXAMPLES:
        if isinstance(made, kinds):
            return example
    raise _Unknown


def _types(value: Any) -> Any:
    """Return what tells arguments of other types apart."""
    if isinstance(value, list | tuple):
        return tuple(_types(one) for one in value)
    return value if isinstance(value, str) else type(value)
