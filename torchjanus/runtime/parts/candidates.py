"""Which calls in a step may be parts, or contain parts, and whether gradients leave a call with their backward pass
still to come.

This module does not know how parts are learnt.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from torchjanus.core.errors import OWN_FOLDER
from torchjanus.core.kinds import isinstance
from torchjanus.core.trees import held_by
from torchjanus.semantics.known.trusted import is_installed, is_trusted_module
from torchjanus.semantics.protocols.leaves import MISSING, on_type

__all__ = [
    "bound_outside",
    "function_of",
    "has_objects",
    "is_entered",
    "is_open",
    "is_program",
    "is_update",
    "releases",
]

_SUSPENDED = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
# Functions of torch that update what is trained, by module and name.
_UPDATES = {
    "torch.optim": frozenset({"step", "zero_grad", "update_parameters"}),
    "torch.nn.utils.clip_grad": frozenset({"clip_grad_norm_", "clip_grad_value_"}),
}


MOST_NODES = 200  # of a backward graph that are looked at
# Functions of torch's through which a module calls its forward(), and which call other modules.
_ENTERED = (nn.Module._wrapped_call_impl, nn.Module._call_impl, nn.Sequential.forward)


def function_of(callee: Any) -> tuple[FunctionType, tuple[Any, ...]] | None:
    """Return the Python function that a call of ``callee`` runs, and the receiver; None for other callees, and for
    modules whose forward() is neither the program's nor calls other modules."""
    kind = type(callee)
    if kind is FunctionType:
        return callee, ()
    if kind is MethodType:
        inner = callee.__func__
        return (inner, (callee.__self__,)) if type(inner) is FunctionType else None
    if issubclass(kind, nn.Module):
        forward = on_type(kind, "forward")
        if type(forward) is not FunctionType or not (is_program(forward) or is_entered(forward)):
            return None
        method = on_type(kind, "__call__")
        return (method, (callee,)) if type(method) is FunctionType else None
    return None


def is_entered(fn: FunctionType) -> bool:
    """Whether it is a function of torch's that may contain parts, but is none."""
    return any(fn is one for one in _ENTERED)


def is_update(fn: FunctionType) -> bool:
    """Whether it is a function of torch that updates what is trained."""
    module = fn.__module__ or ""
    return any(
        (module == root or module.startswith(root + ".")) and fn.__name__ in names for root, names in _UPDATES.items()
    )


def is_program(fn: FunctionType) -> bool:
    """Whether it is a function of the program's own, or one that a decorator of a library has put around it."""
    while True:
        if fn.__code__.co_flags & _SUSPENDED:
            return False
        file = fn.__code__.co_filename
        if not (is_installed(file) or file.startswith(OWN_FOLDER) or is_trusted_module(fn.__globals__.get("__name__"))):
            return True
        inner = fn.__dict__.get("__wrapped__", MISSING)
        if type(inner) is not FunctionType:
            return False
        fn = inner


def is_open(values: Any) -> bool:
    """Whether there are tensors among the values that a call is given, or returns, whose backward pass is still to
    come: a graph of the call would have to be differentiable."""
    return any(isinstance(leaf, torch.Tensor) and _awaits(leaf) for leaf in held_by(values))


def releases(fn: FunctionType, variables: Iterable[str] | None = None) -> bool:
    """Whether the function sets one of the variables (its parameters) to None, or deletes it: what it held is gone then
    in eager, where a part holds it until the part is over."""
    code = fn.__code__
    given = frozenset(_parameters(code) if variables is None else variables)
    before = None
    for one in dis.get_instructions(code):
        if one.argval in given and one.opname in ("DELETE_FAST", "DELETE_DEREF"):
            return True
        if one.argval in given and one.opname in ("STORE_FAST", "STORE_DEREF") and before == ("LOAD_CONST", None):
            return True
        before = one.opname, one.argval
    return False


def bound_outside(code: CodeType, lines: tuple[int, int]) -> set[str]:
    """Return the variables that a function sets elsewhere than at these lines, the first and the last of them."""
    found = set(_parameters(code))
    for one in dis.get_instructions(code):
        if one.opname in ("STORE_FAST", "STORE_DEREF"):
            line = None if one.positions is None else one.positions.lineno
            if line is None or not lines[0] <= line <= lines[1]:
                found.add(one.argval)
    return found


def _parameters(code: CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    return code.co_varnames[:count]


def has_objects(values: Any, kept: tuple[Any, ...]) -> bool:
    """Whether there are objects among the values of which the program may see when they are gone. Those in ``kept``
    are not meant, nor are tensors, modules and optimizers, unless there is a weak reference of the program's."""
    plain = (torch.Tensor, nn.Module, torch.optim.Optimizer, int, float, complex, str, bytes, type(None))
    objects = (leaf for leaf in held_by(values) if not isinstance(leaf, plain))
    return any(all(leaf is not one for one in kept) for leaf in objects)


def _awaits(tensor: torch.Tensor) -> bool:
    """Whether the tensor has a backward graph that no backward pass has freed. Saved tensors are not unpacked: hooks of
    the program would run."""
    with torch._C.DisableTorchFunction():  # its class must not see the query
        waiting, seen, known = [tensor.grad_fn], 0, False
    while waiting and seen < MOST_NODES:
        node: Any = waiting.pop()
        if node is None:
            continue
        seen += 1
        for one in _saved(node):
            if one is not None and (one.data is not None or one.unpack_hook is not None):
                return True
            known = True
        waiting += [following for following, _ in node.next_functions]
    return seen > 0 and not known


def _saved(node: Any) -> Iterator[Any]:
    """Yield what a node of a backward graph saves, without unpacking it; None for a list of tensors that is freed."""
    for name in dir(type(node)):
        if name.startswith("_raw_saved_"):
            try:
                yield from pytree.tree_leaves(getattr(node, name))
            except RuntimeError:  # of a list, as of the indices of a selection: there is nothing to look at any more
                yield None
