"""Extern calls from a frame that stands for the program's line: native code that warns names the line that called it.

Python also remembers in the module of that line which of its warnings have been shown. Knows nothing of when calls are
made.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

from torchjanus.core.errors import Place
from torchjanus.rewrite.hooks.frames import CALLING, program_frames

__all__ = ["Caller", "FromLine", "called", "caller_at", "code_at"]

Caller = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

_TEMPLATE = (lambda fn, args, kwargs: fn(*args, **kwargs)).__code__
# Functions of these modules do not warn in the name of the line that calls them.
_SILENT = frozenset(
    "_io _random _thread builtins collections io itertools logging math random threading time warnings".split()
)


class FromLine:
    """A function that is called from a line of the program."""

    __slots__ = ("_caller", "fn")

    def __init__(self, fn: Any, caller: Caller) -> None:
        self.fn = fn
        self._caller = caller

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._caller(self.fn, args, kwargs)


def called(fn: Any) -> Any:
    """Return the function that the program calls."""
    return fn.fn if type(fn) is FromLine else fn


def code_at(file: str, line: int) -> types.CodeType:
    """Return the code of a function ``(fn, args, kwargs)`` that makes a call as if it stood at this line."""
    return _TEMPLATE.replace(co_filename=file, co_firstlineno=line, co_name=CALLING, co_qualname=CALLING)


def caller_at(place: Place, fn: Any) -> Caller | None:
    """Return a function that makes a call of ``fn`` from this place in code that is running now, or None if such a call
    does not warn."""
    owner = getattr(fn, "__self__", None)
    module = getattr(fn, "__module__", None) or type(owner).__module__
    if module in _SILENT or place.line < 1:
        return None
    names = next((f.f_globals for f in program_frames() if f.f_code.co_filename == place.file), None)
    if names is None:
        return None
    return types.FunctionType(code_at(place.file, place.line), names, CALLING)
