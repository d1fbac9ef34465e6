"""Special methods that are not Python functions of the class itself.

Examples are ``__getattr__ = dict.get``, ``__len__ = functools.partial(...)`` and ``__call__ = SomeClass``: a method of
a C class under another name, a partial, a class, a callable object, a descriptor. All are treated alike: what is found
is bound to the object as Python binds it, and the result is called like any other callee. So Python code behind it is
entered, methods of containers are recognised, and the rest is native code.
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

from torchjanus.core.kinds import getattr, is_one_of, isinstance, module_of
from torchjanus.rewrite import Site
from torchjanus.rewrite.hooks.lookup import MISSING, bound_to, is_python_class, mro_of, namespace_of, on_type
from torchjanus.semantics.known.not_entered import NATIVE_MODULES, module_reason
from torchjanus.semantics.protocols.leaves import Leaves

__all__ = ["PLAIN_DESCRIPTORS", "Assigned", "SpecialMethods", "is_plain"]

# Descriptors whose __get__ runs no Python code.
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
# Descriptors that a class written in C has under the name of the slot.
_OF_SLOTS = frozenset(map(id, (WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType)))
# By slot: the attribute of a property that holds its function, and the slot as ``property`` has it.
_OF_PROPERTY = {
    "__get__": ("fget", property.__get__), "__set__": ("fset", property.__set__),
    "__delete__": ("fdel", property.__delete__),
}  # fmt: skip


def is_plain(raw: Any) -> bool:
    """Whether reading this from a class, or through it from an object, runs no Python code."""
    if type(raw) is classmethod and sys.version_info < (3, 13):
        return is_one_of(type(raw.__func__), PLAIN_DESCRIPTORS) or on_type(type(raw.__func__), "__get__") is MISSING
    return is_one_of(type(raw), PLAIN_DESCRIPTORS)


class Assigned:
    """Something other than a function that was found as a special method. It is called with the object first."""

    __slots__ = ("found",)

    def __init__(self, found: Any) -> None:
        self.found = found

    @property
    def __name__(self) -> str:
        return getattr(self.found, "__name__", type(self.found).__name__)


class SpecialMethods(Leaves):
    """Finds and binds special methods of any kind."""

    def dunder(self, tp: type, name: str) -> Any:
        found = on_type(tp, name)
        if type(found) is FunctionType:
            return super().dunder(tp, name)
        if found is MISSING or found is None or (id(type(found)) in _OF_SLOTS and found.__name__ == name):
            return None
        if not self.is_assigned(tp, name, found):
            return None
        self.note_lookup(tp, name)
        return Assigned(found)

    def is_assigned(self, tp: type, name: str, found: Any) -> bool:
        """Whether a class of the program, neither written in C nor left native, has this under the name."""
        if type(found).__name__ == "instancemethod":  # pybind11's methods
            return False
        owner = next(base for base in mro_of(tp) if name in namespace_of(base))
        return is_python_class(owner) and module_reason(module_of(owner), NATIVE_MODULES) is None

    def is_reached(self, cls: type, name: str) -> bool:
        """Whether the attribute of a class, wrapped or not, runs code of the program."""
        found = on_type(cls, name)
        inner = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if type(inner) is FunctionType:
            return self.native_reason(inner) is None
        return found is not MISSING and found is not None and self.is_assigned(cls, name, found)

    def bind(self, at: Site, found: Any, receiver: Any) -> Any:
        """Return what was found on the receiver's class, bound to the receiver."""
        getter = None if is_plain(found) else self.getter(found)
        if getter is None:
            return bound_to(receiver, found)
        fn, arguments = getter
        return self.invoke(at, fn, *arguments(receiver, type(receiver)))

    def getter(self, raw: Any) -> tuple[Any, Any] | None:
        """Return how to read through a descriptor that runs code of the program: the function, and a function from
        (instance, class) to its arguments. Return None if the descriptor runs no such code."""
        if type(raw) is classmethod:  # before Python 3.13 a classmethod may wrap any descriptor
            inner = self.getter(raw.__func__)
            return None if inner is None else (inner[0], lambda instance, owner: inner[1](owner, owner))
        accessor = self.accessor(raw, "__get__")
        if accessor is not None:
            return accessor, lambda instance, owner: (instance,)
        fn = self.dunder(type(raw), "__get__")
        # Python calls this unbound.
        called = fn.found if type(fn) is Assigned else fn
        return None if fn is None else (called, lambda instance, owner: (raw, instance, owner))

    def accessor(self, raw: Any, slot: str) -> Any:
        """Return a property's function for this slot, or None if it is left native or if ``raw`` is no property."""
        tp = type(raw)
        name, native = _OF_PROPERTY[slot]
        if tp is not property and not (issubclass(tp, property) and on_type(tp, slot) is native):
            return None
        fn = getattr(property, name).__get__(raw)
        if fn is None or (type(fn) is FunctionType and self.native_reason(fn) is not None):
            return None
        return fn

    def writer(self, raw: Any, slot: str) -> tuple[Any, bool] | None:
        """Return the function that writes or deletes through a descriptor (``__set__``, ``__delete__``), and whether it
        takes the descriptor first; or None."""
        fn = self.accessor(raw, slot)
        if fn is not None:
            return fn, False
        fn = self.dunder(type(raw), slot)
        return None if fn is None else (fn, True)
