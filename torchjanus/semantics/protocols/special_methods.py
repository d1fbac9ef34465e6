"""What a class has under a special method's name, where that is no Python function of its own.

``__getattr__ = dict.get``, ``__len__ = functools.partial(...)``, ``__call__ = SomeClass``: a method of a C class under
another name, a partial, a class, an object that can be called, a descriptor that gives one. There is one variant for
all of them: what is found is bound to the object as Python binds it, and what that gives is called like any other
callee. So Python code behind it is reached, a container's method is that container's, and the rest is native code.
"""

from __future__ import annotations

import sys
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any

from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.hooks.lookup import MISSING, bound_to, is_python_class, mro_of, namespace_of, on_type
from torchjanus.rewrite import Site
from torchjanus.semantics.known.not_entered import NATIVE_MODULES, module_reason
from torchjanus.semantics.protocols.leaves import Leaves

__all__ = ["PLAIN_DESCRIPTORS", "Assigned", "SpecialMethods", "is_plain"]

# On a class, these are looked at by native code only: their __get__ runs no Python code.
PLAIN_DESCRIPTORS = frozenset(
    {FunctionType, BuiltinFunctionType, staticmethod, classmethod}
    | {
        WrapperDescriptorType,
        MethodDescriptorType,
        GetSetDescriptorType,
        MemberDescriptorType,
        ClassMethodDescriptorType,
    }
)
# A class written in C has these under the name of the slot that they stand for.
_OF_SLOTS = frozenset(map(id, (WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType)))
_PROPERTY_GET, _PROPERTY_SET, _PROPERTY_DELETE = property.__get__, property.__set__, property.__delete__


def is_plain(raw: Any) -> bool:
    """Whether reading this off a class, or through it off an object, runs no Python code."""
    if type(raw) is classmethod and sys.version_info < (3, 13):
        return is_one_of(type(raw.__func__), PLAIN_DESCRIPTORS) or on_type(type(raw.__func__), "__get__") is MISSING
    return is_one_of(type(raw), PLAIN_DESCRIPTORS)


class Assigned:
    """What was found on a class under a special method's name: to be called with the object first, as a function is."""

    __slots__ = ("found",)

    def __init__(self, found: Any) -> None:
        self.found = found

    @property
    def __name__(self) -> str:
        return getattr(self.found, "__name__", type(self.found).__name__)


class SpecialMethods(Leaves):
    """Special methods of any kind, found and bound."""

    def dunder(self, tp: type, name: str) -> Any:
        found = on_type(tp, name)
        if type(found) is FunctionType:
            return super().dunder(tp, name)
        if found is MISSING or found is None or (id(type(found)) in _OF_SLOTS and found.__name__ == name):
            return None
        if not self.is_assigned(tp, name, found):
            return None
        self.come_upon(tp, name)
        return Assigned(found)

    def is_assigned(self, tp: type, name: str, found: Any) -> bool:
        """Whether a class of the program's has this under the name, and not one that is written in C or left native."""
        if type(found).__name__ == "instancemethod":  # pybind11's methods
            return False
        owner = next(base for base in mro_of(tp) if name in namespace_of(base))
        return is_python_class(owner) and module_reason(owner.__module__, NATIVE_MODULES) is None

    def is_reached(self, cls: type, name: str) -> bool:
        """Whether what a class itself has under the name, wrapped or not, runs code of the program's."""
        found = on_type(cls, name)
        inner = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if type(inner) is FunctionType:
            return self.native_reason(inner) is None
        return found is not MISSING and found is not None and self.is_assigned(cls, name, found)

    def bind(self, at: Site, found: Any, receiver: Any) -> Any:
        """What was found on the receiver's class, bound to it."""
        getter = None if is_plain(found) else self.getter(found)
        if getter is None:
            return bound_to(receiver, found)
        fn, arguments = getter
        return self.invoke(at, fn, *arguments(receiver, type(receiver)))

    def getter(self, raw: Any) -> tuple[Any, Any] | None:
        """How to read through a descriptor that runs code of the program's: the function, and its arguments by
        (instance, class)."""
        if type(raw) is classmethod:  # before Python 3.13, one of anything that binds itself
            inner = self.getter(raw.__func__)
            return None if inner is None else (inner[0], lambda instance, owner: inner[1](owner, owner))
        accessor = self.accessor(raw, "__get__", "fget", _PROPERTY_GET)
        if accessor is not None:
            return accessor, lambda instance, owner: (instance,)
        fn = self.dunder(type(raw), "__get__")
        # This one Python calls as it was found, unbound.
        called = fn.found if type(fn) is Assigned else fn
        return None if fn is None else (called, lambda instance, owner: (raw, instance, owner))

    def accessor(self, raw: Any, slot: str, name: str, native: Any) -> Any:
        """A property's function of this name, if it is not left native; None, too, if this is no property."""
        tp = type(raw)
        if tp is not property and not (issubclass(tp, property) and on_type(tp, slot) is native):
            return None
        fn = getattr(property, name).__get__(raw)
        if fn is None or (type(fn) is FunctionType and self.native_reason(fn) is not None):
            return None
        return fn

    def setter(self, raw: Any) -> tuple[Any, bool] | None:
        """How to write through a descriptor: the function, and whether it is given the descriptor first."""
        fn = self.accessor(raw, "__set__", "fset", _PROPERTY_SET)
        if fn is not None:
            return fn, False
        fn = self.dunder(type(raw), "__set__")
        return None if fn is None else (fn, True)

    def deleter(self, raw: Any) -> tuple[Any, bool] | None:
        """How to delete through a descriptor, likewise."""
        fn = self.accessor(raw, "__delete__", "fdel", _PROPERTY_DELETE)
        if fn is not None:
            return fn, False
        fn = self.dunder(type(raw), "__delete__")
        return None if fn is None else (fn, True)
