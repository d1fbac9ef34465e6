"""Which objects the program sees the end of: something happens when their last reference goes.

That is code of the program's (a ``__del__``, the callback of a weak reference, the handlers of a generator), or a file
that is written out and closed. What such an object is held by decides when it happens, so nothing of
torchjanus may hold one longer than the program does. Knows nothing of traces.
"""

from __future__ import annotations

import collections
import io
import tempfile
import weakref
from types import FunctionType, GeneratorType, ModuleType
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance, module_of, on_type
from torchjanus.rewrite.hooks.lookup import attributes_of
from torchjanus.semantics.known.trusted import is_trusted_class, is_trusted_module

__all__ = ["finalizer_of", "what_ends"]

_MOST = 100  # objects that one search visits
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, range)
_OPAQUE = (type, ModuleType, FunctionType)  # the program keeps them: what they refer to does not end with them
# The classes of Python's library whose finalizers do what a program sees: they delete files.
_DELETING = tuple(vars(tempfile)[name] for name in ("_TemporaryFileCloser",) if name in vars(tempfile))


def what_ends(value: Any, strictly: bool = False) -> str:
    """Return what the program sees when the last reference to ``value`` goes, in words that follow the name of the
    class; "" if that is nothing. What the object holds is gone with it, so it is looked at, too. ``strictly``: of a
    tensor, weak references without a callback count, too."""
    waiting, seen = [value], set[int]()
    while waiting and len(seen) < _MOST:
        one = waiting.pop()
        if isinstance(one, _PLAIN) or id(one) in seen:
            continue
        seen.add(id(one))
        if found := _ends(one, strictly and one is value):
            return found if one is value else f"which holds a {type(one).__qualname__}, {found}"
        if isinstance(one, dict):
            waiting += dict.values(one)
        elif isinstance(one, list | tuple | set | frozenset | collections.deque):
            waiting += list(one)
        elif not isinstance(one, (torch.Tensor, *_OPAQUE)) and isinstance(held := attributes_of(one), dict):
            waiting += held.values()
    return ""


def finalizer_of(cls: type) -> Any:
    """Return the ``__del__`` of a class if that is a function of the program's, or deletes a file; else None."""
    found = on_type(cls, "__del__")
    if type(found) is not FunctionType:
        return None
    return found if not is_trusted_class(cls) or is_one_of(cls, _DELETING) else None


def _ends(value: Any, strictly: bool) -> str:
    kind = type(value)
    if finalizer_of(kind) is not None:
        return "whose class has a __del__"
    if issubclass(kind, io.IOBase) and not _is_closed(value):
        return "which closes its file when it goes"
    if kind is GeneratorType:
        frame = value.gi_frame
        begun = frame is not None and frame.f_lasti > 0
        return "which runs its handlers when it goes" if begun and frame.f_code.co_exceptiontable else ""
    if issubclass(kind, _OPAQUE) or not weakref.getweakrefcount(value):
        return ""
    plain = strictly and issubclass(kind, torch.Tensor)
    known = is_trusted_class(kind) or issubclass(kind, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer))
    for reference in weakref.getweakrefs(value):
        if isinstance(reference, weakref.ProxyTypes):
            return "to which there is a weak proxy"  # whether it has a callback cannot be asked
        callback = reference.__callback__
        if callback is not None and _module_of(callback).startswith("torchjanus."):
            continue  # of the record of a run
        if not known or (plain if callback is None else _is_programs(callback)):
            return "to which there is a weak reference"
    return ""


def _is_closed(file: Any) -> bool:
    # Files in memory hold nothing outside.
    if issubclass(type(file), io.BytesIO | io.StringIO):
        return True
    try:
        return bool(file.closed)
    except ValueError:  # detached
        return True


def _is_programs(callback: Any) -> bool:
    """Whether the callback of a weak reference may do what the program sees. Those of weak tables, which are mostly
    those of libraries, do not."""
    return type(callback) is weakref.finalize or not is_trusted_module(_module_of(callback))


def _module_of(callback: Any) -> str:
    return str(getattr(callback, "__module__", None) or module_of(type(callback)))
