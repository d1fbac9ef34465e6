"""Attribute and item access by Python's protocols: properties, descriptors, ``__getattr__``, ``__getitem__``,
``super``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torchjanus.core.kinds import is_one_of
from torchjanus.rewrite import Site
from torchjanus.semantics.protocols.leaves import MISSING, mro_of, namespace_of, on_type
from torchjanus.semantics.protocols.special_methods import PLAIN_DESCRIPTORS, SpecialMethods, is_plain

__all__ = ["Attributes"]

# Attribute access on instances of these types runs native code only.
PLAIN_TYPES = frozenset(
    id(kind)
    for kind in {int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset, type(None), range, slice}
    | {FunctionType, MethodType, BuiltinFunctionType}
)
_GETATTRIBUTE = object.__getattribute__


class Attributes(SpecialMethods):
    """Reads, stores and deletions of ``obj.name`` and ``obj[key]``."""

    # ---- reads ----

    def attr(self, at: Site, obj: Any, name: str) -> Any:
        tp = type(obj)
        if id(tp) in PLAIN_TYPES or tp is ModuleType:
            return self.load_attr(at, obj, name)
        if tp is super:
            return self.super_attr(at, obj, name)
        getter = on_type(tp, "__getattribute__")
        self.note_lookup(tp, "__getattribute__")
        if type(getter) is FunctionType:
            if self.native_reason(getter) is not None:
                return self.load_attr(at, obj, name)
        else:
            getter = None if getter is _GETATTRIBUTE else self.dunder(tp, "__getattribute__")
        try:
            return self.plain_attr(at, obj, name) if getter is None else self.invoke(at, getter, obj, name)
        except AttributeError as error:
            fallback = self.dunder(tp, "__getattr__")
            if fallback is None:
                complete_attribute_error(error, obj, name)
                raise
        # Outside the handler: what __getattr__ raises has no context, as in Python.
        try:
            return self.invoke(at, fallback, obj, name)
        except AttributeError as error:
            complete_attribute_error(error, obj, name)
            raise

    def plain_attr(self, at: Site, obj: Any, name: str) -> Any:
        """Return what ``object.__getattribute__`` does: descriptors, then the instance. Raises AttributeError."""
        tp = type(obj)
        raw = on_type(tp, name)
        if raw is MISSING:
            self.note_lookup(tp, name)
        elif not is_plain(raw):
            getter = self.getter(raw)
            if getter is not None:
                fn, arguments = getter
                if is_data_descriptor(raw) or not self.hides(obj, name):
                    self.note_lookup(tp, name)
                    try:
                        return self.invoke(at, fn, *arguments(obj, tp))
                    except AttributeError:
                        fallback = on_type(tp, "__getattr__")
                        if type(fallback) is not FunctionType or self.native_reason(fallback) is None:
                            raise
                    # The class's own __getattr__ is left native. A module of torch.jit finds forward() by it.
                    return self.call_native(at, fallback, (obj, name), {})
        if issubclass(tp, type):  # isinstance() may ask the object for its __class__
            raw = on_type(obj, name)
            if raw is not MISSING and not is_plain(raw) and not issubclass(type(raw), property):
                getter = self.getter(raw)
                if getter is not None:
                    fn, arguments = getter
                    self.note_lookup(obj, name)
                    return self.invoke(at, fn, *arguments(None, obj))
        return self.load_attr(at, obj, name)

    def hides(self, obj: Any, name: str) -> bool:
        """Whether an attribute of the object itself hides the class's attribute of this name."""
        return in_instance(obj, name)

    def super_attr(self, at: Site, obj: Any, name: str) -> Any:
        """Return ``super().name``, looked up after the current class in the instance's MRO."""
        owner = obj.__self_class__
        if owner is not None and name != "__class__":
            after = itertools.dropwhile(lambda base: base is not obj.__thisclass__, mro_of(owner))
            for base in itertools.islice(after, 1, None):
                raw = namespace_of(base).get(name, MISSING)
                if raw is MISSING:
                    continue
                getter = None if is_plain(raw) else self.getter(raw)
                instance = obj.__self__ if obj.__self__ is not owner else None
                if getter is None or (instance is None and issubclass(type(raw), property)):
                    break
                fn, arguments = getter
                self.note_lookup(base, name)
                return self.invoke(at, fn, *arguments(instance, owner))
        return self.load_attr(at, obj, name)

    # ---- writes ----

    def set_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        if not self._by_method(at, "__setattr__", setattr, obj, name, value):
            self.set_plain_attr(at, obj, name, value)

    def set_plain_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        """Store an attribute as ``object.__setattr__`` does."""
        if not self._by_descriptor(at, "__set__", obj, name, value):
            self.store_attr(at, obj, name, value)

    def del_attr(self, at: Site, obj: Any, name: str) -> None:
        if not self._by_method(at, "__delattr__", delattr, obj, name):
            self.del_plain_attr(at, obj, name)

    def del_plain_attr(self, at: Site, obj: Any, name: str) -> None:
        """Delete an attribute as ``object.__delattr__`` does."""
        if not self._by_descriptor(at, "__delete__", obj, name):
            self.drop_attr(at, obj, name)

    def _by_method(self, at: Site, slot: str, native: Callable[..., Any], obj: Any, name: str, *value: Any) -> bool:
        """Let the class's own method make the write, watched or by the ``native`` function. Return whether it has
        one."""
        method = self.dunder(type(obj), slot)
        if method is not None:
            self.invoke(at, method, obj, name, *value)
        elif type(on_type(type(obj), slot)) is FunctionType:
            self.call_native(at, native, (obj, name, *value), {})
        else:
            return False
        return True

    def _by_descriptor(self, at: Site, slot: str, obj: Any, name: str, *value: Any) -> bool:
        """Let the class's descriptor of this name make the write. Return whether it runs code of the program."""
        raw = on_type(type(obj), name)
        if raw is MISSING:
            self.note_lookup(type(obj), name)
        elif not is_one_of(type(raw), PLAIN_DESCRIPTORS) and (writer := self.writer(raw, slot)) is not None:
            fn, itself = writer
            self.note_lookup(type(obj), name)
            self.invoke(at, fn, *((raw, obj, *value) if itself else (obj, *value)))
            return True
        return False

    # ---- items ----

    def item(self, at: Site, obj: Any, key: Any) -> Any:
        tp = type(obj)
        getter = self.dunder(tp, "__getitem__")
        if getter is not None:
            return self.invoke(at, getter, obj, key)
        if issubclass(tp, type) and obj is not type and on_type(tp, "__getitem__") is MISSING:
            self.note_lookup(obj, "__class_getitem__")
            if self.is_reached(obj, "__class_getitem__"):
                return self.call(at, self.attr(at, obj, "__class_getitem__"), (key,), {})
        return self.load_item(at, obj, key)

    def set_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        setter = self.dunder(type(obj), "__setitem__")
        if setter is None:
            self.store_item(at, obj, key, value)
        else:
            self.invoke(at, setter, obj, key, value)

    def del_item(self, at: Site, obj: Any, key: Any) -> None:
        deleter = self.dunder(type(obj), "__delitem__")
        if deleter is None:
            self.drop_item(at, obj, key)
        else:
            self.invoke(at, deleter, obj, key)


def complete_attribute_error(error: AttributeError, obj: Any, name: str) -> None:
    """Set name and object of an error that Python code raised, as CPython does: its suggestions of names use them."""
    if error.name is None and error.obj is None:
        error.name, error.obj = name, obj


def is_data_descriptor(raw: Any) -> bool:
    tp = type(raw)
    return on_type(tp, "__set__") is not MISSING or on_type(tp, "__delete__") is not MISSING


def in_instance(obj: Any, name: str) -> bool:
    """Whether the instance itself has the attribute. Does not ask its class."""
    try:
        namespace = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return False
    return name in namespace
