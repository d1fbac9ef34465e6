"""Which Python functions are called natively instead of being entered. Knows nothing of how calls are recorded."""

from __future__ import annotations

import functools
import types
from typing import Any

from torch.utils.hooks import RemovableHandle

from torchjanus.core.kinds import isinstance
from torchjanus.semantics.external.native_calls import NativeCalls
from torchjanus.semantics.known.closed import has_own_compiler, is_refused_code
from torchjanus.semantics.known.trusted import IGNORED, SETTING_UP
from torchjanus.semantics.torch.checkpoints import is_checkpoint

__all__ = ["left_native", "without_dynamo"]

_DYNAMO_WRAPPERS = frozenset({"torch._compile", "torch._dynamo.eval_frame", "torch._dynamo.external_utils"})
# Methods that total_ordering adds to classes: each calls a method of the program.
_ORDERINGS = frozenset(
    value for name, value in vars(functools).items() if isinstance(value, types.FunctionType) and "_from_" in name
)


def left_native(natives: NativeCalls, fn: Any) -> str | None:
    """Return why a Python function is called natively instead of being entered, or None."""
    module = fn.__globals__.get("__name__")
    if module in _DYNAMO_WRAPPERS:
        return "a wrapper of torch.compile's: what it wraps is called"
    if isinstance(module, str) and fn not in _ORDERINGS:
        for name in IGNORED:
            if module == name or module.startswith(name + "."):
                return f"{name} is left out of graphs"
    if natives.is_framework(fn):
        return "recorded as one framework call"
    if is_refused_code(fn):
        return "refused: processes communicate in it, or it calls functions of the program's, unwatched"
    if fn in SETTING_UP:
        return "fills tables of torch's own"
    if is_checkpoint(fn):
        return "its function is called"
    if fn is RemovableHandle.remove:
        return "depends on whose handle it is"
    if natives.is_deferred(fn) or natives.is_foreign_function(fn):
        return "left to the host: an extern call"
    return None


def without_dynamo(fn: types.FunctionType) -> Any:
    """Return the function or method under Dynamo's enable and disable wrappers; stop at one with its own compiler."""
    found: Any = fn
    while isinstance(found, types.FunctionType) and found.__globals__.get("__name__") in _DYNAMO_WRAPPERS:
        inner = found.__dict__.get("_torchdynamo_orig_callable") or found.__dict__.get("__wrapped__")
        if not isinstance(inner, types.FunctionType | types.MethodType) or has_own_compiler(found):
            break
        found = inner
    return found
