"""What suspended generators and iterators of a run hold: they may leave the step, and go on after it.

Knows nothing of recipes.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import types
from collections.abc import Callable
from typing import Any

from torchjanus.core.kinds import is_one_of, isinstance, module_of
from torchjanus.semantics.containers.parts import is_rewritten

__all__ = ["is_native_iterator", "settle_iterator", "settle_variables"]

_HELD = (list, tuple, dict, types.GeneratorType)


def settle_variables(suspended: Any, bare: Callable[[Any], Any]) -> None:
    """Put what ``bare`` returns for it in place of each variable of a suspended generator or coroutine that runs
    rewritten code."""
    kind = "gi" if isinstance(suspended, types.GeneratorType) else "cr"
    frame = getattr(suspended, f"{kind}_frame")
    code = getattr(suspended, f"{kind}_code")
    if frame is None or not is_rewritten(code) or getattr(suspended, f"{kind}_running"):
        return
    variables = frame.f_locals
    for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        # The iterator of a generator expression stays as it is: its name is none that a program could use.
        if name.isidentifier() and name in variables and (settled := bare(variables[name])) is not variables[name]:
            variables[name] = settled
    if sys.version_info < (3, 13):  # from then on ``f_locals`` writes through
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))


def settle_iterator(iterator: Any, bare: Callable[[Any], Any]) -> None:
    """Settle the containers and generators that an iterator of ``builtins`` or ``itertools`` goes through."""
    for part in gc.get_referents(iterator):
        if is_one_of(type(part), _HELD) or is_native_iterator(part):
            bare(part)


def is_native_iterator(value: Any) -> bool:
    """Whether it is a ``zip``, a ``map``, the iterator of a list, or another of ``builtins`` or ``itertools``."""
    cls = type(value)
    return module_of(cls) in ("builtins", "itertools") and hasattr(cls, "__next__") and cls is not types.GeneratorType
