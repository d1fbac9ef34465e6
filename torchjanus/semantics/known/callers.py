"""Library functions that call functions which they are given, as plain data: which do, and which of them so often as
their results decide.

Such a library keeps a given function only as long as its own call, and does nothing with it but calling it: another
function that does the same may be given in its place. Knows nothing of hooks and parts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from types import FunctionType, MethodType
from typing import Any

import torch

from torchjanus.core.kinds import isinstance

__all__ = ["calls_given", "is_search", "searches"]

# By module; None: all public functions.
_CALLERS: dict[str, frozenset[str] | None] = {
    "torch.optim": frozenset({"step"}),
    "torch.autograd.functional": None,
    "torch.autograd.gradcheck": None,
    "scipy.optimize": None,
    "scipy.integrate": None,
    "scipy.differentiate": None,
    "torchdiffeq": frozenset({"odeint", "odeint_adjoint", "odeint_event"}),
    "torchquad": None,
    "hyperopt": frozenset({"fmin"}),
}
# Optimizers that ask their closure so often as the losses decide: no two runs of such a step are alike.
_SEARCHES = frozenset({inspect.unwrap(torch.optim.LBFGS.step).__code__})


def calls_given(fn: FunctionType) -> bool:
    """Whether a function of a library calls the functions that it is given, and does nothing else with them."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__name__", "")
    while isinstance(module, str) and module:
        if module in _CALLERS:
            names = _CALLERS[module]
            return not name.startswith("_") if names is None else name in names
        module = module.rpartition(".")[0]
    return False


def is_search(fn: Any) -> bool:
    """Whether it is an optimizer's method, decorated or not, that calls its closure a number of times that depends on
    the losses."""
    inner = inspect.unwrap(fn) if isinstance(fn, FunctionType) else None  # of native code, where a decorator names that
    return isinstance(inner, FunctionType) and inner.__code__ in _SEARCHES


def searches(fn: Any, given: Iterable[Any]) -> bool:
    """Whether a call calls functions of the program that it is given, so often as their results decide. Functions of
    torch's, but for such optimizers, are entered, and are none of these."""
    if is_search(fn):
        return True
    if not isinstance(fn, FunctionType) or not calls_given(fn):
        return False
    return any(isinstance(value, FunctionType | MethodType) for value in given)
