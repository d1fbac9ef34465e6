"""What is known of the functions by which processes communicate: which tensors each reads, and which it writes.

Knows nothing of graphs and of when a call is made.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.core.kinds import getattr, isinstance

__all__ = ["Facts", "facts_of", "is_of_store"]


@dataclass(frozen=True, slots=True)
class Facts:
    """The parameters of one collective that are tensors, or lists of tensors: those it writes, and those it only reads.

    ``starts``: it always returns a handle. ``objects``: parameters that are lists of Python objects, which it fills.
    ``returns``: it returns a number.
    """

    written: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    starts: bool = False
    objects: tuple[str, ...] = ()
    returns: bool = False


_FACTS = {
    "all_reduce": Facts(("tensor",)),
    "broadcast": Facts(("tensor",)),
    "reduce": Facts(("tensor",)),
    "all_gather": Facts(("tensor_list",), ("tensor",)),
    "all_gather_single": Facts(("output_tensor",), ("input_tensor",)),
    "all_gather_into_tensor": Facts(("output_tensor",), ("input_tensor",)),
    "gather": Facts(("gather_list",), ("tensor",)),
    "scatter": Facts(("tensor",), ("scatter_list",)),
    "reduce_scatter": Facts(("output",), ("input_list",)),
    "reduce_scatter_single": Facts(("output",), ("input",)),
    "reduce_scatter_tensor": Facts(("output",), ("input",)),
    "all_to_all": Facts(("output_tensor_list",), ("input_tensor_list",)),
    "all_to_all_single": Facts(("output",), ("input",)),
    "send": Facts((), ("tensor",)),
    "recv": Facts(("tensor",), returns=True),
    "isend": Facts((), ("tensor",), starts=True),
    "irecv": Facts(("tensor",), starts=True),
    "barrier": Facts(),
    "all_gather_object": Facts(objects=("object_list",)),
    "broadcast_object_list": Facts(objects=("object_list",)),
}

_OF_STORES = frozenset(
    """add append check compare_set delete_key get has_extended_api multi_get multi_set num_keys queue_len queue_pop
    queue_push set set_timeout wait""".split()
)


def is_of_store(owner: Any, name: str) -> bool:
    """Whether this is a method of a store by which processes exchange keys and values."""
    if name not in _OF_STORES or not torch.distributed.is_available():
        return False
    return isinstance(owner, torch._C._distributed_c10d.Store)


@functools.cache
def _by_code() -> dict[types.CodeType, Facts]:
    if not torch.distributed.is_available():
        return {}
    known = ((getattr(torch.distributed, name, None), facts) for name, facts in _FACTS.items())
    return {inspect.unwrap(fn).__code__: facts for fn, facts in known if isinstance(fn, types.FunctionType)}


def facts_of(fn: Callable[..., Any]) -> Facts | None:
    """Return what is known of a function of torch.distributed, with or without its wrappers; None of any other."""
    if not isinstance(fn, types.FunctionType):
        return None
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return None if code is None else _by_code().get(code)
