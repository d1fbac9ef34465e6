"""What plain computations are made of, said so that it can be compared with another round's: a mode, a flag, a class.

Equal words mean that the same came out, whichever round asked; where that cannot be said there are none. Knows values,
not rounds.
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

from torchjanus.core.access_path import Origin, token_of
from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.trace.values import Fetch, Size, Traced, leaves, plain

__all__ = ["told_of", "told_of_call", "told_of_look"]

MOST = 64  # elements of a container that are looked at
_PLAIN = frozenset(map(id, (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, type(...))))
_FOUND = frozenset(map(id, (list, dict, set, frozenset)))
_TOLD = frozenset(map(id, (tuple, list, set, frozenset)))
# Native code that makes values of values, and looks at nothing else.
_PURE = frozenset(
    id(fn)
    for fn in (int, float, str, bytes, bool, complex, len, abs, min, max, sum, round, divmod, pow, ord, chr, any, all)
) | {id(fn) for fn in (issubclass, math.sqrt, math.exp, math.log, math.cos, math.sin, math.tanh, math.floor, math.ceil)}
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_SUBJECTS = (str, bytes, int, float, tuple, frozenset)  # whose methods are such
_OF_TENSORS = frozenset(
    """dim ndimension numel nelement size stride is_floating_point is_complex is_contiguous element_size
    get_device""".split()
)
_LOOKS = frozenset({"get", "index", "count", "__getitem__", "__contains__", "__len__"})

# Where a container that was there before the call was found, as long as nobody has changed it.
Owner = Callable[[Any], Origin | None]


def told_of(value: Any, owner: Owner) -> Any:
    """None where nothing can be said."""
    if isinstance(value, Traced):
        found = list(leaves(value.expr))
        if any(isinstance(leaf, Fetch) for leaf in found):
            return None
        if found and all(isinstance(leaf, Size) for leaf in found):  # of tensors that may be each round's own
            return ("of sizes", token_of(plain(value)))
        return ("traced", value.expr.token)
    kind = type(value)
    if id(kind) in _PLAIN:
        return token_of(value)
    if isinstance(value, type | enum.Enum):
        return ("object", id(value))
    if id(kind) in _FOUND and (origin := owner(value)) is not None:
        return ("found", origin.token)
    if kind is slice:
        return _all("slice", (value.start, value.stop, value.step), owner)
    if id(kind) in _TOLD and len(value) <= MOST:
        return _all(kind.__name__, value, owner)
    if kind is dict and len(value) <= MOST:
        return _all("dict", itertools.chain.from_iterable(value.items()), owner)
    return None


def told_of_call(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any, owner: Owner) -> Any:
    """Of a call of native code that gave ``result``."""
    name = getattr(fn, "__name__", "")
    tensors = [value for value in (getattr(fn, "__self__", None), *args) if isinstance(value, torch.Tensor)]
    if name in _OF_TENSORS and len(tensors) == 1:  # alike rounds work on tensors that are alike
        return _all(name, (result, *(value for value in args if value is not tensors[0])), owner)
    if fn is builtins.isinstance and len(args) == 2:
        return _all("isinstance", (type(args[0]), args[1]), owner)
    subject = getattr(fn, "__self__", None) if is_one_of(type(fn), _BOUND) else None
    if not is_one_of(type(subject), _SUBJECTS) and id(fn) not in _PURE:
        return None
    named = itertools.chain.from_iterable(kwargs.items())
    given = _all("call", (*args, *named), owner)
    return None if given is None else (name, token_of(subject) if is_one_of(type(subject), _SUBJECTS) else None, given)


def told_of_look(fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], owner: Owner) -> Any:
    """Of a call that looks something up in a container from before the call."""
    subject = getattr(fn, "__self__", None)
    if not is_one_of(type(subject), (list, dict, set, frozenset)) or fn.__name__ not in _LOOKS:
        return None
    origin = owner(subject)
    given = _all("look", (*args, *itertools.chain.from_iterable(kwargs.items())), owner)
    return None if origin is None or given is None else (fn.__name__, origin.token, given)


def _all(what: str, values: Any, owner: Owner) -> Any:
    found = [told_of(value, owner) for value in values]
    return None if None in found else (what, *found)
