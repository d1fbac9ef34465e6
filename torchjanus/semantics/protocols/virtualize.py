"""Runs a function under a semantics of the user's own: the public function ``virtualize``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Generic, ParamSpec, TypeVar

from torch import nn

from torchjanus.core.errors import NOWHERE, Place, Unsupported
from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks import Semantics, hide_frames, rewritten, using
from torchjanus.semantics.protocols.driving import driven
from torchjanus.semantics.protocols.imperative import Imperative
from torchjanus.semantics.protocols.leaves import on_type

__all__ = ["Virtualized", "virtualize"]

# A call of such a function only makes the object that runs it later.
RUNS_LATER = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

P = ParamSpec("P")
R = TypeVar("R")


def virtualize(fn: Callable[P, R], semantics: Semantics | None = None) -> Virtualized[P, R]:
    """Return a callable that runs ``fn``, rewritten, under ``semantics`` (by default ``Imperative``: Python as it is).

    ``fn`` is a function, a method, a lambda, or any object with a ``__call__`` written in Python. Where it has no
    source, its first call raises SourceUnavailable: there is nothing to rewrite. Raises Unsupported if ``fn`` cannot
    be called.

        def double(x):
            return x + x

        virtualize(double)(2)           # 4, by rewritten code

    ``docs/semantics.md`` shows how to write a semantics.
    """
    if not callable(fn):
        raise Unsupported(f"virtualize() takes a function, a method or a callable object, not {fn!r}.")
    return Virtualized(fn, Imperative() if semantics is None else semantics)


class Virtualized(Generic[P, R]):
    """``fn`` under a semantics. It looks like ``fn`` to introspection. It can be pickled if both can be."""

    def __init__(self, fn: Callable[P, R], semantics: Semantics) -> None:
        functools.update_wrapper(self, fn)
        self._fn = fn
        self._semantics = semantics

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        target, leading = underlying(self._fn)
        run = rewritten(target)
        try:
            with using(self._semantics):
                result = run(*leading, *args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise
        if target.__code__.co_flags & RUNS_LATER:
            return driven(result, self._semantics)  # type: ignore[no-any-return]
        return result  # type: ignore[no-any-return]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind as a method of a class, like the wrapped function."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        return Virtualized, (self._fn, self._semantics)

    def __repr__(self) -> str:
        return f"<virtualized {self._fn!r}>"


def home_of(fn: Any) -> Place:
    """Return where a callable is defined, or NOWHERE if it is not written in Python."""
    while type(fn) is functools.partial:
        fn = fn.func
    try:
        code = underlying(fn.forward if isinstance(fn, nn.Module) else fn)[0].__code__
    except Unsupported:
        return NOWHERE
    return Place(code.co_filename, code.co_firstlineno)


def underlying(fn: Any) -> tuple[FunctionType, tuple[Any, ...]]:
    """Return the Python function that a callable calls in the end, and its leading arguments. Raises Unsupported."""
    if isinstance(fn, FunctionType):
        return fn, ()
    if type(fn) is functools.partial and not fn.keywords:
        inner, leading = underlying(fn.func)
        return inner, (*leading, *fn.args)
    if isinstance(fn, MethodType):
        inner, leading = underlying(fn.__func__)
        return inner, (fn.__self__, *leading)
    if not isinstance(fn, type):
        method = on_type(type(fn), "__call__")
        if isinstance(method, FunctionType):
            return method, (fn,)
    why = "has keywords" if type(fn) is functools.partial else "is not written in Python"
    raise Unsupported(f"{fn!r} {why}: there is no source to rewrite. Call it in a function of your own, and take that.")
