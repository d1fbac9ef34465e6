"""Calls of torch that a mode makes for the program, as if from the program's line: a warning names the line of the
frame that called, and Python remembers in that module which warnings it has shown.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from torchjanus.core.errors import OWN_FOLDER
from torchjanus.host.program_lines import code_at
from torchjanus.semantics.torch.user_lines import Sentinel

__all__ = ["call_from_line", "watched_from_line"]

_REGISTRY = "__warningregistry__"
_OVERRIDES: str = torch.overrides.__file__


_code_at = lru_cache(maxsize=4096)(code_at)


def _caller_of(func: Callable[..., Any]) -> Any:
    own = getattr(func, "__code__", None)
    frame: Any = sys._getframe(2)
    while True:
        code = frame.f_code
        if code is not own and code.co_filename != _OVERRIDES and not code.co_filename.startswith(OWN_FOLDER):
            return frame
        frame = frame.f_back


def call_from_line(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make the call from a frame that stands for the one that has called ``func``, and return what it gives."""
    frame = _caller_of(func)
    return types.FunctionType(_code_at(frame.f_code.co_filename, frame.f_lineno), frame.f_globals)(func, args, kwargs)


def watched_from_line(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, bool]:
    """Do the same, and return also whether the call warns, be the warning shown or not."""
    frame = _caller_of(func)
    sentinel, names = Sentinel(), frame.f_globals
    registry: dict[Any, Any] = {sentinel: 0, **names.get(_REGISTRY, {})}  # before "version", which is asked for
    sentinel.compared = False
    space = {"__name__": names.get("__name__"), "__builtins__": names["__builtins__"], _REGISTRY: registry}
    try:
        made = types.FunctionType(_code_at(frame.f_code.co_filename, frame.f_lineno), space)(func, args, kwargs)
    finally:
        if warns := sentinel.compared:
            registry.pop(sentinel, None)
            known = names.setdefault(_REGISTRY, {})
            known.clear()
            known.update(registry)
    return made, warns
