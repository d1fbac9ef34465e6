"""Describe the operands of untraced computations (a mode, a flag, a class), to compare them between iterations.

Equal descriptions imply equal results in all iterations. Where that is not certain there is no description. This module
knows values, not iterations.
"""

from __future__ import annotations

import builtins
import enum
import itertools
import math
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, token_of
from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.trace.values import Fetch, Size, Traced, leaves, plain

__all__ = ["structure_of", "structure_of_call", "structure_of_lookup"]

MOST = 64  # limit on the elements of a container that is described
_PLAIN = frozenset(map(id, (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, type(...))))
_FOUND = frozenset(map(id, (list, dict, set, frozenset)))
_DESCRIBED = frozenset(map(id, (tuple, list, set, frozenset)))
# Native functions whose result depends on their arguments only.
_PURE = frozenset(
    id(fn)
    for fn in (int, float, str, bytes, bool, complex, len, abs, min, max, sum, round, divmod, pow, ord, chr, any, all)
) | {id(fn) for fn in (issubclass, math.sqrt, math.exp, math.log, math.cos, math.sin, math.tanh, math.floor, math.ceil)}
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_SUBJECTS = (str, bytes, int, float, tuple, frozenset)  # their methods are such functions
_OF_TENSORS = frozenset(
    """dim ndimension numel nelement size stride is_floating_point is_complex is_contiguous element_size
    get_device""".split()
)
_LOOKS = frozenset({"get", "index", "count", "__getitem__", "__contains__", "__len__"})

# Returns the access path of a container from before the call that the run has not changed, or None.
Owner = Callable[[Any], AccessPath | None]


def structure_of(value: Any, owner: Owner) -> Any:
    """Return a description of a value, None where equal descriptions would not imply equal values."""
    kind = type(value)
    if id(kind) in _PLAIN:
        return token_of(value)
    if isinstance(value, Traced):
        found = list(leaves(value.expr))
        if any(isinstance(leaf, Fetch) for leaf in found):
            return None
        if found and all(isinstance(leaf, Size) for leaf in found):  # each iteration may have a tensor of its own
            return ("of sizes", token_of(plain(value)))
        return ("traced", value.expr.token)
    if isinstance(value, type | enum.Enum):
        return ("object", id(value))
    if id(kind) in _FOUND and (access_path := owner(value)) is not None:
        return ("found", access_path.token)
    if kind is slice:
        return _all("slice", (value.start, value.stop, value.step), owner)
    if id(kind) in _DESCRIBED and len(value) <= MOST:
        return _all(kind.__name__, value, owner)
    if kind is dict and len(value) <= MOST:
        return _all("dict", itertools.chain.from_iterable(value.items()), owner)
    return None


def structure_of_call(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, owner: Owner) -> Any:
    """Return a description of a native call with its ``result``, or None."""
    name = getattr(fn, "__name__", "")
    tensors = [value for value in (getattr(fn, "__self__", None), *args) if isinstance(value, torch.Tensor)]
    if name in _OF_TENSORS and len(tensors) == 1:  # iterations that match use tensors with equal metadata
        return _all(name, (result, *(value for value in args if value is not tensors[0])), owner)
    if fn is builtins.isinstance and len(args) == 2:
        return _all("isinstance", (type(args[0]), args[1]), owner)
    subject = getattr(fn, "__self__", None) if is_one_of(type(fn), _BOUND) else None
    if not is_one_of(type(subject), _SUBJECTS) and id(fn) not in _PURE:
        return None
    named = itertools.chain.from_iterable(kwargs.items())
    given = _all("call", (*args, *named), owner)
    return None if given is None else (name, token_of(subject) if is_one_of(type(subject), _SUBJECTS) else None, given)


def structure_of_lookup(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: Owner) -> Any:
    """Return a description of a lookup in a container from before the call, or None."""
    subject = getattr(fn, "__self__", None)
    if not is_one_of(type(subject), (list, dict, set, frozenset)) or fn.__name__ not in _LOOKS:
        return None
    access_path = owner(subject)
    given = _all("look", (*args, *itertools.chain.from_iterable(kwargs.items())), owner)
    return None if access_path is None or given is None else (fn.__name__, access_path.token, given)


def _all(what: str, values: Any, owner: Owner) -> Any:
    found = [structure_of(value, owner) for value in values]
    return None if None in found else (what, *found)
