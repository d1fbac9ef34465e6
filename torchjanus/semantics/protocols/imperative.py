"""The identity semantics: a rewritten program does what it did before it was rewritten.

Python functions are called directly, by their twins, in the user's own frame. So recursion reaches the same depth, and
callees that look at their callers' frames see the user's.
"""

from __future__ import annotations

import functools
from types import FunctionType, MethodType
from typing import Any

from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks import rewritten
from torchjanus.semantics.protocols.protocols import NATIVE_CALLABLES, Protocols
from torchjanus.semantics.protocols.special_methods import Assigned

__all__ = ["Imperative"]


class Imperative(Protocols):
    """Rewritten code with Python's own meaning."""

    def callee(self, at: Site, fn: Any) -> Any:
        tp = type(fn)
        if tp is FunctionType:
            return rewritten(fn) if self.native_reason(fn) is None else fn
        if tp is MethodType:
            inner = fn.__func__
            if type(inner) is FunctionType:
                return MethodType(rewritten(inner), fn.__self__) if self.native_reason(inner) is None else fn
            return super().callee(at, fn)
        if id(tp) in NATIVE_CALLABLES:
            return super().callee(at, fn) if self.is_routed(fn) else fn
        if issubclass(tp, type):
            return super().callee(at, fn) if self.reaches_into(fn) else fn
        if tp is functools.partial:
            return super().callee(at, fn)
        method = self.dunder(tp, "__call__")
        if method is None:
            return fn
        return super().callee(at, fn) if type(method) is Assigned else MethodType(rewritten(method), fn)

    def callback(self, at: Site, fn: Any) -> Any:
        return self.callee(at, fn) if type(fn) in (FunctionType, MethodType) else fn
