"""Functions of the user that only compute with arrays and numbers: the host makes their calls as a whole.

Non-maximum suppression is an example: a loop over NumPy arrays whose trip count depends on them. If it were watched,
each of its operations would be an extern call and each trip count a path. The code of a function shows whether it can
reach only its arguments, NumPy, some builtins and other such functions. Such a function is called like native code.
Knows nothing of traces.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from torchjanus.core.kinds import getattr, isinstance
from torchjanus.semantics.known.foreign_effects import ARRAYS, changes_arrays
from torchjanus.trace.effects import WORLD, Effects

__all__ = ["host_effects"]

_BUILTINS = frozenset(
    """abs all any bool divmod enumerate float int len list max min pow range reversed round set slice sorted sum tuple
    zip""".split()
)
# Instructions that reach beyond a function's own variables, or leave it early.
_REACHING = frozenset(
    """STORE_GLOBAL DELETE_GLOBAL STORE_ATTR DELETE_ATTR IMPORT_NAME IMPORT_FROM LOAD_NAME STORE_NAME LOAD_CLASSDEREF
    LOAD_BUILD_CLASS SEND GET_AWAITABLE RAISE_VARARGS SETUP_WITH BEFORE_WITH LOAD_LOCALS
    LOAD_SUPER_ATTR WITH_EXCEPT_START""".split()
)
_OF_GENERATORS = frozenset({"RETURN_GENERATOR", "YIELD_VALUE"})
_GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


def host_effects(fn: types.FunctionType) -> Effects | None:
    """Return the effects of a call of ``fn`` with arrays; None if it may reach anything else. Its globals are looked up
    each time, since they may have been rebound."""
    return _effects(fn, ())


def _effects(fn: types.FunctionType, around: tuple[types.FunctionType, ...]) -> Effects | None:
    if fn in around or fn.__closure__ or fn.__kwdefaults__ or fn.__defaults__:
        return None
    read = _reads(fn.__code__)
    if read is None:
        return None
    names, writes = read
    for name in names:
        value = fn.__globals__.get(name, getattr(builtins, name, None))
        if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] == "numpy":
            continue
        if name in _BUILTINS and value is getattr(builtins, name):
            continue
        if not isinstance(value, types.FunctionType):
            return None
        inner = _effects(value, (*around, fn))
        if inner is None:
            return None
        writes = writes or inner.world
    return WORLD if writes else ARRAYS


@functools.lru_cache(1024)
def _reads(code: types.CodeType) -> tuple[frozenset[str], bool] | None:
    """Return the globals that a function reads, and whether it may change an array; None if it does more."""
    if code.co_freevars or any(inner.co_flags & _GENERATOR and inner.co_name != "<genexpr>" for inner in _codes(code)):
        return None
    names, writes = set(), False
    for instruction in (i for inner in _codes(code) for i in dis.get_instructions(inner)):
        if instruction.opname in _OF_GENERATORS:  # only generator expressions are left here
            continue
        if instruction.opname in _REACHING or instruction.opname.endswith("_WITH"):
            return None
        if instruction.opname == "LOAD_GLOBAL":
            names.add(str(instruction.argval))
        elif instruction.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"):
            writes = True
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            writes = writes or changes_arrays(str(instruction.argval))
        elif instruction.opname == "BINARY_OP" and instruction.argrepr.endswith("="):
            writes = True
        elif instruction.opname in ("KW_NAMES", "LOAD_CONST") and "out" in _texts(instruction.argval):
            writes = True
    return frozenset(names), writes


def _texts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield the code of the function and of the functions defined in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
