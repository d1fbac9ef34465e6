"""Native functions of numbers and iterables: their results are expressions where their arguments are."""

from __future__ import annotations

import functools
import math
import operator
import types
from collections.abc import Iterable
from typing import Any

import torch

from torchjanus.semantics.natives import (
    COMPUTING,
)
from torchjanus.semantics.texts import Texts
from torchjanus.trace.values import Apply, Traced, plain, trace_value

__all__ = ["NativeValues"]

_DIVMOD = (operator.floordiv, operator.mod)


class NativeValues(Texts):
    """Arithmetic, and consumption of iterables."""

    # -- numbers and text -----------------------------------------------------------------------------------------

    def _arithmetic(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if fn in (str, repr) and len(args) == 1 and not kwargs:
            return self.as_text(args[0], fn.__name__[0])
        if fn is format and args and not kwargs:
            return self.formatted(args[0], args[1] if len(args) > 1 else "")
        if any(isinstance(a, torch.Tensor) for a in args):
            if fn in (float, int):
                return self.framework.call(getattr(torch.Tensor, f"__{fn.__name__}__"), args, {})
            return fn(*args, **kwargs)
        if any(isinstance(a, Traced) for a in args) and not kwargs:
            value = fn(*map(plain, args))
            if fn is divmod:
                pair = tuple(a.expr if isinstance(a, Traced) else a for a in args)
                return tuple(trace_value(v, Apply(f, pair)) for v, f in zip(value, _DIVMOD, strict=True))
            expr = Apply(fn, tuple(a.expr if isinstance(a, Traced) else a for a in args))
            if type(value) in (int, float, str):
                return trace_value(value, expr)
            if isinstance(value, bool):
                return self.recording.hold(expr, value)
        given = tuple(self.consumed(a) for a in args)
        if fn in (min, max, math.fsum, math.prod) and len(given) == 1 and not isinstance(given[0], str):
            parts = list(given[0])
            if fn in (min, max) and len(parts) > 1 and not kwargs and all(isinstance(p, int | float) for p in parts):
                return self._arithmetic(fn, tuple(parts), {})
            given = (parts,)
        why = f"read by {fn.__name__}()"
        bare = {k: v if callable(v) else self._pinned(v, why) for k, v in kwargs.items()}
        return fn(*(self._pinned(a, why) for a in given), **bare)

    def _consume(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = tuple(self.consumed(a) for a in args)
        for value in given:
            origin = self.recording.owner(value)
            if origin is not None and fn in (next, iter, enumerate, zip, map, list, tuple):
                if hasattr(type(value), "__next__"):
                    self.unknown(fn, (), {}) if False else self.recording.refuse(
                        f"takes from an iterator ({type(value).__name__}) that was there before the call",
                        "that is a side effect outside of the graph.",
                        "Take the element outside of the step and pass it in.",
                    )
        if fn in (any, all) and len(given) == 1:
            return self._quantify(fn, given[0])
        if fn in (map, filter, functools.reduce) and given:
            given = (self._watched(given[0]), *given[1:])
        if fn is sum and given and not kwargs:
            return self._sum(list(given[0]), *given[1:])
        if is_one_of(fn, COMPUTING):
            why = f"read by {getattr(fn, '__name__', fn)}()"
            given = tuple(self._pinned(list(a) if _is_iterator(a) else a, why) for a in given)
        return fn(*given, **{k: self.recording.pin(self.consumed(v), "keyword") for k, v in kwargs.items()})

    def _quantify(self, fn: Any, values: Iterable[Any]) -> bool:
        """``any`` and ``all``, which stop at the first element that decides."""
        for value in values:
            if self.heap.truth(None, value) is (fn is any):
                return fn is any
        return fn is all

    def _watched(self, fn: Any) -> Any:
        """A native callback, called as the program itself would call it."""
        if fn is None:
            return functools.partial(self.heap.truth, None)
        if isinstance(fn, types.BuiltinFunctionType | types.BuiltinMethodType | type):
            return lambda *args: self.call(fn, args, {})
        return fn

    def _sum(self, parts: list[Any], start: Any = 0) -> Any:
        total = start
        for part in parts:
            total = self.heap.native_binary(None, "+", total, part)
        return total


def _is_iterator(value: Any) -> bool:
    return hasattr(type(value), "__next__")


def is_one_of(fn: Any, known: frozenset[Any]) -> bool:
    try:
        return fn in known
    except TypeError:
        return False
