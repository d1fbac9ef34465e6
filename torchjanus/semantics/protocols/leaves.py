"""The leaves of Python's protocols: what remains of an operation when no Python-level code is involved.

A semantics that records or changes heap accesses overrides leaves. The protocols above the leaves stay Python's.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import BuiltinFunctionType, CellType, FunctionType, WrapperDescriptorType
from typing import Any

from torchjanus.core.caches import Identities
from torchjanus.core.errors import SourceUnavailable
from torchjanus.rewrite import CENSUS, Site
from torchjanus.rewrite.hooks import BINARY, COMPARE, INPLACE, TEXT, UNARY, Semantics, rewritten
from torchjanus.rewrite.hooks.lookup import MISSING, bound_to, derives, mro_of, namespace_of, on_type
from torchjanus.semantics.known.not_entered import NATIVE_MODULES, module_reason

__all__ = ["MISSING", "Leaves", "bound_to", "derives", "mro_of", "namespace_of", "native_slot", "on_type"]


def native_slot(tp: type, name: str) -> Any:
    """Return the first ``name`` in the class's MRO that is a slot of a class written in C."""
    for base in mro_of(tp):
        found = namespace_of(base).get(name, MISSING)
        if type(found) is WrapperDescriptorType and found.__name__ == name:
            return found
    raise AssertionError(f"object has no {name}")


class Leaves(Semantics):
    """The leaves, and the decision which Python functions are entered."""

    def __init__(self) -> None:
        self._reasons: Identities[str | None] = Identities()  # by code

    # ---- which functions are entered ----

    def leave_native(self, fn: FunctionType) -> str | None:
        """Return why ``fn`` is called as it is, or None if its rewritten twin runs. Asked once for each code object."""
        reason = module_reason(fn.__globals__.get("__name__"), NATIVE_MODULES)
        if reason is None:
            try:
                rewritten(fn)
            except SourceUnavailable:
                return "no source"
        return reason

    def native_reason(self, fn: FunctionType) -> str | None:
        """Return ``leave_native(fn)``, cached by code object."""
        return self._reasons.get(fn.__code__, lambda: self._reason(fn))

    def _reason(self, fn: FunctionType) -> str | None:
        reason = self.leave_native(fn)
        if reason is not None:
            CENSUS.note(fn.__code__, reason)
        return reason

    def dunder(self, tp: type, name: str) -> Any:
        """Return the special method, which takes the object first, if it is a Python function that is entered."""
        found = on_type(tp, name)
        if type(found) is FunctionType and self.native_reason(found) is None:
            self.note_lookup(tp, name)
            return found
        return None

    def note_lookup(self, tp: type, name: str) -> None:
        """A protocol looked up this name on a class. Does nothing here."""

    def note_subclass_check(self, tp: type, kind: Any) -> None:
        """The program asked whether a class derives from ``kind``. Does nothing here."""

    def invoke(self, at: Site, fn: Any, *args: Any) -> Any:
        """Call something that a protocol has found."""
        return self.call(at, fn, args, {})

    # ---- heap ----

    def load_attr(self, at: Site, obj: Any, name: str) -> Any:
        """Return ``obj.name`` without its class's Python-level ``__getattribute__`` and ``__getattr__``."""
        tp = type(obj)
        if self.dunder(tp, "__getattr__") is None and self.dunder(tp, "__getattribute__") is None:
            return getattr(obj, name)
        return native_slot(tp, "__getattribute__")(obj, name)

    def store_attr(self, at: Site, obj: Any, name: str, value: Any) -> None:
        """Do ``obj.name = value`` without its class's Python-level ``__setattr__``."""
        tp = type(obj)
        if type(on_type(tp, "__setattr__")) is WrapperDescriptorType:
            setattr(obj, name, value)
        else:
            native_slot(tp, "__setattr__")(obj, name, value)

    def drop_attr(self, at: Site, obj: Any, name: str) -> None:
        tp = type(obj)
        if type(on_type(tp, "__delattr__")) is WrapperDescriptorType:
            delattr(obj, name)
        else:
            native_slot(tp, "__delattr__")(obj, name)

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        return obj[key]

    def store_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        obj[key] = value

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        del obj[key]

    def load_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        return value

    def store_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        return value

    def drop_global(self, at: Site, owner: dict[str, Any], name: str) -> None:
        """The variable has been deleted."""

    def load_cell(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        return value

    def store_cell(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        return value

    def drop_cell(self, at: Site, cell: CellType, name: str) -> None:
        """The variable has been deleted."""

    # ---- calls ----

    def call_native(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call what is not entered: native code, or a Python function that is left native."""
        return fn(*args, **kwargs)

    def enter(self, at: Site, fn: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a Python function by its rewritten twin."""
        return rewritten(fn)(*args, **kwargs)

    def make_instance(self, at: Site, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a native ``cls.__new__``. The caller runs ``__init__``."""
        maker = on_type(cls, "__new__")
        return (maker if type(maker) is BuiltinFunctionType else cls.__new__)(cls, *args, **kwargs)

    # ---- values ----

    def kind_of(self, value: Any) -> type:
        """Return the class that native code takes the value for."""
        return type(value)

    def same_number(self, answer: Any, number: Any) -> Any:
        """Return ``number``, which native code made of the answer of a special method."""
        return number

    def truth(self, at: Site, value: Any) -> bool:
        return bool(value)

    def native_iter(self, at: Site, obj: Any) -> Any:
        """Return what a loop iterates over natively."""
        return obj

    def native_next(self, at: Site, iterator: Iterator[Any]) -> Any:
        return next(iterator)

    def native_binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return BINARY[op](a, b)

    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return INPLACE[op](a, b)

    def native_unary(self, at: Site, op: str, a: Any) -> Any:
        return UNARY[op](a)

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        return COMPARE[op](a, b)

    def native_format(self, at: Site, value: Any, spec: str) -> str:
        return format(value, spec)

    def native_text(self, at: Site, value: Any, conversion: str) -> str:
        """Return the result of ``str``, ``repr`` or ``ascii``, given the first letter of the function."""
        return TEXT[conversion](value)

    # ---- hooks that are leaves already ----

    def get_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        return self.load_global(at, owner, name, value)

    def set_global(self, at: Site, owner: dict[str, Any], name: str, value: Any) -> Any:
        return self.store_global(at, owner, name, value)

    def del_global(self, at: Site, owner: dict[str, Any], name: str) -> None:
        self.drop_global(at, owner, name)

    def get_cell(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        return self.load_cell(at, cell, name, value)

    def set_cell(self, at: Site, cell: CellType, name: str, value: Any) -> Any:
        return self.store_cell(at, cell, name, value)

    def del_cell(self, at: Site, cell: CellType, name: str) -> None:
        self.drop_cell(at, cell, name)
