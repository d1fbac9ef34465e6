"""Decides whether the program might handle an error of an extern call: whether a ``try`` or a ``with`` is around it.

A call that is made at commit raises when the program's handlers are no longer active. So a call whose error might be
handled is made where it stands. Knows nothing of how calls are scheduled.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import itertools
import logging
import sys
import threading
import warnings
from bisect import bisect_right
from types import CodeType, GeneratorType
from typing import Any

from torchjanus.core.kinds import is_one_of, isinstance, module_of
from torchjanus.rewrite.hooks import program_frames
from torchjanus.semantics.known.own_code import Reach

__all__ = ["is_handled", "may_raise", "may_suppress"]

_LETTING_PASS = (contextlib.nullcontext, contextlib.redirect_stdout, contextlib.redirect_stderr, contextlib.closing,
                 contextlib.chdir, warnings.catch_warnings, threading.Condition, threading.Semaphore)  # fmt: skip


def is_handled(until: CodeType, suppressing: bool) -> bool:
    """Whether a ``try`` statement of the program is around its present line, in any frame up to the one that runs
    ``until``. ``suppressing``: whether a ``with`` statement counts, too."""
    return any(_handles(frame.f_code, frame.f_lasti, suppressing) for frame in program_frames(until))


def may_suppress(manager: Any) -> bool:
    """Whether the context manager might suppress errors."""
    cls = type(manager)
    if issubclass(cls, contextlib.suppress):
        return True
    if cls is contextlib._GeneratorContextManager:  # made by a function with @contextmanager
        frame = manager.gen.gi_frame if type(manager.gen) is GeneratorType else None
        return frame is None or (not _is_library(frame.f_globals.get("__name__")) and _excepts(frame.f_code))
    return not (is_one_of(cls, _LETTING_PASS) or _is_library(module_of(cls)))


def may_raise(func: Any, kwargs: dict[str, Any], own: Reach) -> bool:
    """Whether a call whose result is unused might raise in one step and not in another.

    ``own`` is the program's own code that it may run. Printing, logging and warning by Python's own means are taken not
    to raise.
    """
    if own.functions:
        return True
    if func is print:
        return not any(kwargs.get("file") is one for one in (None, sys.stdout, sys.stderr))
    return getattr(func, "__module__", None) not in ("logging", "warnings", "_warnings") and not _is_of_logger(func)


def _is_of_logger(func: Any) -> bool:
    return issubclass(type(getattr(func, "__self__", None)), logging.Logger)


def _is_library(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in ("torch", "torchjanus", "_thread", "io", "_io")


def _handles(code: CodeType, at: int, suppressing: bool) -> bool:
    starts, entries = _table(code)
    seen = set()
    while at not in seen:  # an outer handler covers an inner one
        seen.add(at)
        place = bisect_right(starts, at) - 1
        if place < 0 or at >= entries[place][0]:
            return False
        _, at, kind = entries[place]
        if kind == "try" or (kind == "with" and suppressing):
            return True
    return False


@functools.lru_cache(maxsize=1000)
def _table(code: CodeType) -> tuple[list[int], list[tuple[int, int, str]]]:
    """Return the starts of the instruction ranges with handlers, and for each its end, handler and kind."""
    entries = sorted(dis._parse_exception_table(code), key=lambda entry: entry.start)  # type: ignore[attr-defined]
    kinds = _kinds(code)
    return [e.start for e in entries], [(e.end, e.target, kinds.get(e.target, "")) for e in entries]


@functools.lru_cache(maxsize=1000)
def _kinds(code: CodeType) -> dict[int, str]:
    """Return the kinds of the handlers in the source, by offset. The compiler's other handlers clean up."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "EXTENDED_ARG")]
    return {
        step.offset: "with" if following.opname == "WITH_EXCEPT_START" else "try"
        for step, following in itertools.pairwise(steps)
        if step.opname == "PUSH_EXC_INFO"
    }


def _excepts(code: CodeType) -> bool:
    """Whether a generator might continue after an error is thrown into it."""
    names = [step.opname for step in dis.get_instructions(code)]
    return any(name in ("CHECK_EXC_MATCH", "CHECK_EG_MATCH", "WITH_EXCEPT_START") for name in names) or any(
        one == "PUSH_EXC_INFO" and other == "POP_TOP" for one, other in itertools.pairwise(names)
    )
