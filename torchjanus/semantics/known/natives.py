"""What is known of Python's own functions: which only inspect, which consume containers, which change them.

JANUS 4.3.1 has such a whitelist of callees. A native callee on no list is an extern call or refused.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
import inspect
import itertools
import logging
import math
import operator
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch

from torchjanus.core.kinds import getattr, isinstance
from torchjanus.semantics.known.closed import is_query, is_refused_code

__all__ = ["ARITHMETIC", "CONSUMING", "DEFERRED", "FACTORIES", "LOOKING", "torch_query"]

# Inspect only types and identities: nothing to record, numbers are passed untraced.
LOOKING: frozenset[Any] = frozenset(
    {
        builtins.isinstance,
        issubclass,
        type,
        callable,
        id,
        super,
        object,
        property,
        staticmethod,
        classmethod,
        slice,
        torch.is_tensor,
        functools.partial,
        functools.wraps,
        functools.update_wrapper,
        types.MethodType,
        types.SimpleNamespace,
        builtins.__build_class__,
        sys.exc_info,
        globals,
        sys.exception,
        object.__new__,
        object.__init__,
        list.__new__,
        dict.__new__,
        tuple.__new__,
        set.__new__,
        collections.OrderedDict.__new__,
        dataclasses.fields,
        dataclasses.is_dataclass,
        dataclasses._is_dataclass_instance,  # type: ignore[attr-defined]
    }
    | {f for name, f in vars(inspect).items() if name.startswith("is") and isinstance(f, types.FunctionType)}
)

# Pure functions of numbers and texts: with a traced argument the result is an expression.
ARITHMETIC: frozenset[Any] = frozenset(
    {abs, round, pow, divmod, float, int, bool, str, min, max, format, complex, repr}
    | {f for f in vars(math).values() if isinstance(f, types.BuiltinFunctionType)}
    | {
        f
        for name, f in vars(operator).items()
        if isinstance(f, types.BuiltinFunctionType)
        and name not in {"setitem", "delitem", "getitem", "call", "contains", "is_", "is_not", "length_hint"}
    }
)

# Read their container arguments completely and make something new of the elements, which stay traced.
CONSUMING: frozenset[Any] = frozenset(
    {
        list,
        tuple,
        set,
        frozenset,
        dict,
        enumerate,
        zip,
        map,
        filter,
        reversed,
        iter,
        range,
        sorted,
        sum,
        any,
        all,
        next,
        hash,
        chr,
        ord,
        collections.OrderedDict,
        collections.deque,
        collections.defaultdict,
        collections.Counter,
        functools.reduce,
        operator.contains,
        operator.getitem,
        torch.Size,
    }
    | {f for f in vars(itertools).values() if isinstance(f, type)}
    | {itertools.chain.from_iterable, itertools.tee, dict.fromkeys}
)

# Those of them that compute with the elements: traced numbers inside must be pinned.
COMPUTING: frozenset[Any] = frozenset({sorted, set, frozenset, range, hash, chr, ord, bytes, bytearray})

# Those of them that hash their argument or its elements.
HASHING: frozenset[Any] = frozenset({set, frozenset, hash, dict.fromkeys})

# Make tensors of numbers.
FACTORIES = (
    """arange as_tensor asarray bartlett_window blackman_window empty empty_strided eye full hamming_window hann_window
    kaiser_window linspace logspace normal ones rand randint randn randperm range scalar_tensor tensor tril_indices
    triu_indices zeros"""
).split()

# Calls whose results are not used: made at commit, in program order.
DEFERRED: frozenset[Any] = frozenset({
    print, warnings.warn, logging.Logger.debug, logging.Logger.info, logging.Logger.warning, logging.Logger.error,
    logging.Logger.critical, logging.Logger.log, logging.Logger.exception, logging.debug, logging.info,
    logging.warning, logging.error, logging.critical
})  # fmt: skip

_STATEFUL = (
    "manual_seed", "seed", "set_rng_state", "set_default", "from_numpy", "frombuffer", "from_file", "load", "save",
    "initial_seed", "get_rng_state", "set_num_threads", "use_deterministic", "set_flush", "set_float32"
)  # fmt: skip


def torch_query(func: Callable[..., Any]) -> bool:
    """Whether this is a function of torch that only queries, or sets an ambient mode that each node records."""
    module = getattr(func, "__module__", None) or ""
    name: str = getattr(func, "__name__", "") or ""
    if isinstance(func, types.BuiltinFunctionType | types.BuiltinMethodType):
        owner = getattr(func, "__self__", None)
        if isinstance(owner, torch.Generator):
            return False
        if not module and isinstance(owner, types.ModuleType):
            module = owner.__name__
    if module.partition(".")[0] != "torch" or any(part in name for part in _STATEFUL):  # excludes torchvision
        return False
    # A Python function that gets here has no source: a class or a decorator of torch has made it.
    return is_query(func) or (isinstance(func, types.FunctionType) and not is_refused_code(func))
