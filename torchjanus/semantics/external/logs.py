"""What a log record contains beside its message: the line that logs, the error being handled, the call stack.

Log calls are made at commit, when the program's frames are gone. Knows nothing of how they are scheduled.
"""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

from torchjanus.core.caches import Interned
from torchjanus.core.kinds import getattr, hasattr
from torchjanus.rewrite.hooks import program_frames
from torchjanus.semantics.record.recording import Recording

__all__ = ["warnings_shown", "with_program_line"]

_NAMES = frozenset({"debug", "info", "warning", "error", "critical", "log", "exception"})


def warnings_shown() -> tuple[Any, ...]:
    """Return which warnings are shown now, and how."""
    return list(warnings.filters), warnings.showwarning, warnings._showwarnmsg_impl  # type: ignore[attr-defined]


def with_program_line(recording: Recording, fn: Any, kwargs: dict[str, Any]) -> Any:
    """Return the function that is called at commit for ``fn``, so that a log record has the program's line."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__name__", "")
    logs = module == "logging" and name in _NAMES
    if module == "traceback" or (logs and kwargs.get("exc_info", name == "exception")):
        if sys.exc_info()[1] is not None:
            recording.refuse(
                "handled-error",
                "asks for the error that is being handled",
                "there is none any more when the call is made.",
                "Log the error's text: f'{error!r}'.",
            )
    if not logs or not hasattr(fn, "__code__"):
        return fn
    if kwargs.get("stacklevel", 1) != 1 or kwargs.get("stack_info"):
        recording.refuse(
            "caller-of-log",
            "logs in its caller's name",
            "the caller is not there at commit.",
            "Leave out stacklevel and stack_info.",
        )
        return fn
    for frame in program_frames():
        if str(frame.f_globals.get("__name__")).partition(".")[0] != "logging":
            return _called_from(fn, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
    return fn


_TEMPLATE = (lambda *args, **kwargs: fn(*args, **kwargs)).__code__  # type: ignore[name-defined]  # noqa: F821, PLW0108


def _called_from(fn: Callable[..., Any], file: str, line: int, function: str) -> Callable[..., Any]:
    """Return a function that calls ``fn`` from this line. There is one per line: it identifies the call."""

    def make() -> Callable[..., Any]:
        code = _TEMPLATE.replace(co_filename=file, co_firstlineno=line, co_name=function, co_qualname=function)
        made = types.FunctionType(code, {"fn": fn, "__name__": getattr(fn, "__module__", "")}, function)
        return functools.wraps(fn)(made)

    return _CALLS.get((fn, file, line, function), make)


_CALLS: Interned[Callable[..., Any]] = Interned()
