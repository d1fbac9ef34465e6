"""Functions of ``inspect`` that may return objects of the program.

``getmembers`` and ``getattr_static`` read attributes, so equivalent Python functions are watched in their place.
Signatures hold the defaults of functions. Functions that return variables read them without the watch. Knows nothing of
recording.
"""

from __future__ import annotations

import enum
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["READING", "RETURNING_DEFAULTS", "RETURNING_VARIABLES", "functions_of"]


def _copy_of(fn: Any) -> Any:
    """Return a copy of the function that has no watched replacement."""
    return types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)


_native_members, _native_static = _copy_of(inspect.getmembers), _copy_of(inspect.getattr_static)


def _members(thing: Any, predicate: Any = None) -> list[tuple[str, Any]]:
    """Return ``inspect.getmembers(thing, predicate)``."""
    if isinstance(thing, enum.EnumMeta):
        listed: list[tuple[str, Any]] = _native_members(thing, predicate)
        return listed  # it reads the namespaces of the classes
    found = []
    for name in dir(thing):
        try:
            value = getattr(thing, name)
        except AttributeError:
            if not isinstance(thing, type):
                continue
            value = _native_static(thing, name)
        if not predicate or predicate(value):
            found.append((name, value))
    return found


def _static(thing: Any, name: str, *default: Any) -> Any:
    """Return ``inspect.getattr_static(thing, name, *default)``."""
    if isinstance(thing, type):
        return _of_class(thing, name, *default)
    cls = type(thing)
    if cls.__dictoffset__ == 0 or name not in thing.__dict__:
        return _of_class(cls, name, *default)
    over = _native_static(cls, name, None)
    if hasattr(type(over), "__get__") and (hasattr(type(over), "__set__") or hasattr(type(over), "__delete__")):
        return over
    return thing.__dict__[name]


def _of_class(cls: type, name: str, *default: Any) -> Any:
    raw = _native_static(cls, name, *default)
    if hasattr(type(raw), "__get__") or not hasattr(cls, name):
        return raw
    return getattr(cls, name)


# Functions that read attributes, and what is watched in their place.
READING: dict[Any, Callable[..., Any]] = {inspect.getmembers: _members, inspect.getattr_static: _static}

# Functions that return the defaults of functions, which are objects from before the call.
RETURNING_DEFAULTS: frozenset[Any] = frozenset({inspect.signature, inspect.getfullargspec, inspect.getcallargs})

# Functions that return variables or the contents of classes.
RETURNING_VARIABLES: frozenset[Any] = frozenset({
    _native_members, inspect.getmembers_static, inspect.classify_class_attrs, inspect.getargvalues,
    inspect.getclosurevars, inspect.getgeneratorlocals, inspect.getcoroutinelocals
})  # fmt: skip


def functions_of(thing: Any) -> Iterator[types.FunctionType]:
    """Yield the functions whose defaults the signature of ``thing`` contains."""
    seen = set[int]()
    while thing is not None and id(thing) not in seen:
        seen.add(id(thing))
        if isinstance(thing, types.FunctionType):
            yield thing
            thing = thing.__dict__.get("__wrapped__")
        elif isinstance(thing, types.MethodType):
            thing = thing.__func__
        elif isinstance(thing, functools.partial):
            thing = thing.func
        elif isinstance(thing, type):
            for name in ("__init__", "__new__"):
                yield from functions_of(inspect.getattr_static(thing, name, None))
            return
        else:
            thing = inspect.getattr_static(type(thing), "__call__", None)
