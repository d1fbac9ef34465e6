"""Classifies torch's functions for co-execution, by name. Closed by default: a step is not co-executed if it calls one
that is not known to be a pure function of its arguments, a query, a fetch or a factory.

Knows nothing of paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torchjanus.core.errors import NOWHERE
from torchjanus.core.trees import leaves_of
from torchjanus.ops.namespaces import is_operator, operator_name, unsupported_operator
from torchjanus.runtime.coexecution.recording.events import Kind
from torchjanus.semantics.known.framework_calls import HOOKING, METADATA, REFUSED, parts_of_name
from torchjanus.semantics.torch.selections import sized_by_contents

__all__ = ["DIFFERENTIATING", "FLOATS", "GIVING", "Called", "called", "kind_of"]

DIFFERENTIATING = frozenset({"backward", "grad"})
# Calls that can give a gradient to a tensor that required none at entry.
GIVING = frozenset(
    {"Tensor.requires_grad_", "Tensor.requires_grad.__set__", "Tensor.grad.__set__", "Tensor.grad.__delete__"}
)
FLOATS = (float, np.float64)  # torch computes with both alike
_STATES = frozenset({"_set_grad_enabled"})
_FETCHES = frozenset(
    """item tolist __bool__ __int__ __float__ __index__ __complex__ __format__ __repr__ __str__ is_nonzero equal
    allclose __contains__""".split()
)
_SHOWING = frozenset({"numpy", "__array__"})  # their results share memory with the tensor
_FROM_DATA = frozenset({"tensor", "as_tensor", "asarray"})
_LEAVES = (
    bool, int, float, complex, str, type(None), type(Ellipsis), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
)  # fmt: skip


class Called:
    """A call by name: ``name`` as a program spells it, ``short`` without owner, ``access``: a property's accessor."""

    __slots__ = ("access", "name", "short")

    def __init__(self, func: Callable[..., Any]) -> None:
        self.name, self.short, self.access = parts_of_name(func)


_called: dict[Callable[..., Any], Called] = {}


def called(func: Callable[..., Any]) -> Called:
    """Return the call's name, made once for each function."""
    found = _called.get(func)
    if found is None:
        found = _called[func] = Called(func)
    return found


def kind_of(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Kind | tuple[str, str]:
    """Return the kind of the call, as far as it is known before its result is; or why it is not co-executed: a reason's
    code, and what the call is."""
    one = called(func)
    short, name = one.short, one.name
    if is_operator(func):
        if operator_name(func).startswith("profiler::"):
            return Kind.STATE
        if unsupported_operator(func) is not None:
            return "coexecution-call", f"calls the operator {operator_name(func)}"
    elif name.startswith("torch._ops.profiler."):
        return Kind.STATE
    if short in _STATES:
        return Kind.STATE
    if short in HOOKING:
        return "coexecution-callback", f"registers a hook ({name})"
    if one.access in ("__set__", "__delete__") and short not in ("grad", "requires_grad"):
        return "coexecution-call", f"sets {name.removesuffix('.__set__')}"
    if short in _FROM_DATA:
        if any(isinstance(leaf, torch.Tensor) for leaf in leaves_of((args[1:], kwargs))) or _nested(args[:1]):
            return "coexecution-call", f"makes a tensor of elements of tensors ({name})"
        return Kind.HOST
    if any(type(part) is dict for part in (*args, *kwargs.values())):
        return "coexecution-call", f"gives {name} an argument of type dict"
    for leaf in leaves_of((args, kwargs)):
        if not _plain(leaf):
            return "coexecution-call", f"gives {name} an argument of type {type(leaf).__name__}"
    if short in _SHOWING or short in _FETCHES:
        return Kind.FETCH
    if short in REFUSED and short != "grad_fn":
        return "coexecution-memory", f"takes the memory of a tensor ({name})"
    if short in METADATA:
        return Kind.QUERY
    if sized_by_contents(short, args, kwargs, NOWHERE):
        return Kind.HOST
    return Kind.OPERATOR


def _plain(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) or type(leaf) in _LEAVES or type(leaf) in FLOATS


def _nested(data: Any) -> bool:
    """Whether a tensor lies within a list of Python data. A tensor alone is copied."""
    return isinstance(data[0] if data else None, list | tuple | torch.Tensor) and any(
        isinstance(leaf, torch.Tensor) for leaf in leaves_of(data)
    )
