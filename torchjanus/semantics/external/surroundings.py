"""Finds what calls that print, log and warn reach beside their arguments: files, handlers, filters, record factories.

Which of the program's own code is found there becomes an assumption, so that a later file or handler is noticed.
"""

from __future__ import annotations

import copyreg
import io
import logging
import signal
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import getattr, isinstance, module_of
from torchjanus.semantics.known.foreign_effects import is_users_cache
from torchjanus.semantics.known.own_code import Reach, is_own, of_logger, reach
from torchjanus.semantics.record.recording import Recording

__all__ = ["code_reached", "writes_by_python"]

_OF_WARNINGS = ("warnings", "_warnings")
_OF_SIGNALS = ("signal", "_signal", "os", "posix", "nt")
_SIGNALLING = frozenset("raise_signal kill killpg pthread_kill alarm setitimer pause sigwait".split())
_LEVELS = {
    "debug": 10,
    "info": 20,
    "warning": 30,
    "warn": 30,
    "error": 40,
    "critical": 50,
    "exception": 40,
    "fatal": 50,
}


def code_reached(recording: Recording, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Reach:
    """Return the program's own code that a call may run, through its arguments or its environment."""
    around: tuple[Any, ...] = ()
    if is_users_cache(func):
        return reach((func,))  # caching promises that it does not change its arguments
    module = getattr(func, "__module__", None)
    if func is print:
        if kwargs.get("file") is None:
            around = (sys.stdout,)
            _assume(recording, sys, of_output)
        elif kwargs["file"] is sys.stderr:
            _assume(recording, sys, of_errors)
    elif module in _OF_WARNINGS:
        around = (warnings.showwarning, sys.stderr)
        _assume(recording, warnings, of_warnings)
        _assume(recording, sys, of_errors)
    elif module == "logging":
        logger = _logger_of(func, args)
        around = (logger,)
        _assume(recording, logger, of_log)
    elif getattr(func, "__name__", None) in _SIGNALLING and module in _OF_SIGNALS:
        around = tuple(map(signal.getsignal, signal.valid_signals()))
    elif module in ("pickle", "_pickle", "copy", "torch.serialization"):
        around = (copyreg.dispatch_table,)
    given = (*args, *kwargs.values())
    if func is print or module in ("logging", *_OF_WARNINGS):  # showing a tensor does not change it
        given = tuple(value for value in given if not isinstance(value, torch.Tensor))
    reached = reach((func, *given, *around))
    if module == "logging" and reached.changes and not _is_enabled(recording, func, args):
        return Reach()
    return reached


def _assume(recording: Recording, owner: Any, tells: Any) -> None:
    access_path = recording.owner(owner) or AccessPath.const(owner)
    recording.found(access_path.then(Step.OF, tells), tells(owner))


def _logger_of(func: Any, args: tuple[Any, ...]) -> logging.Logger:
    given = getattr(func, "__self__", None)
    if isinstance(given, logging.Logger):
        return given
    return args[0] if args and isinstance(args[0], logging.Logger) else logging.root


def _is_enabled(recording: Recording, func: Any, args: tuple[Any, ...]) -> bool:
    """Whether a logger shows records of the call's level. That it does not becomes an assumption."""
    logger, name = _logger_of(func, args), getattr(func, "__name__", "")
    level = _LEVELS.get(name)
    if level is None or logger.isEnabledFor(level):
        return True
    _assume(recording, logger, _least_level)
    return False


def _least_level(logger: logging.Logger) -> bytes:
    return b"%d %d" % (logger.getEffectiveLevel(), logger.manager.disable)


def writes_by_python(file: Any) -> bool:
    """Whether a file's ``write()`` is a function of the program."""
    return isinstance(getattr(type(file), "write", None), types.FunctionType) and is_own(module_of(type(file)))


# -- the program's code in the environment, as bytes
# --------------------------------------------------------------------


def of_output(system: Any) -> bytes:
    """Return the code reached from ``sys.stdout``."""
    return _as_bytes(_codes(system.stdout))


def of_errors(system: Any) -> bytes:
    """Return the code reached from ``sys.stderr``."""
    return _as_bytes(_codes(system.stderr))


def of_warnings(module: Any) -> bytes:
    """Return the code reached from the function that shows warnings."""
    return _as_bytes(_codes(module.showwarning))


def of_log(logger: logging.Logger) -> bytes:
    """Return the code reached from what a logger calls for a record."""
    return _as_bytes(code for part in of_logger(logger) for code in _codes(part))


def _as_bytes(codes: Any) -> bytes:
    return " ".join(map(str, codes)).encode()


def _codes(value: Any, deep: bool = True) -> Iterator[int]:
    """Yield the ids of the program's functions and classes that are found at the first level."""
    if type(value) is types.MethodType:
        value = value.__func__
    if type(value) is types.FunctionType:
        if is_own(value.__module__):
            yield id(value.__code__)
        return
    if is_own(module_of(type(value))):
        yield id(type(value))
    if type(value) is list:
        for part in value:
            yield from _codes(part, deep)
    elif deep:
        if issubclass(type(value), io.TextIOWrapper):
            yield from _codes(value.buffer, False)
            yield from _codes(getattr(value.buffer, "raw", None), False)
        if issubclass(type(value), logging.Handler):
            for part in vars(value).values():
                yield from _codes(part, issubclass(type(part), io.TextIOWrapper))
