"""Asks for types and attributes of objects without running the program's code. This module does not know torch.

Python's own ``isinstance`` asks an object for its ``__class__`` where its type does not decide, ``in`` compares it, and
``getattr`` and ``hasattr`` call its class's ``__getattr__`` and properties: that may be code of the program, which
watching must not run.
"""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable, Collection, Mapping
from types import (
    BuiltinFunctionType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

__all__ = [
    "MISSING", "ClassTable", "getattr", "hasattr", "is_one_of", "isinstance", "module_of", "move_to_module", "mro_of",
    "namespace_of", "on_type",
]  # fmt: skip

# Comparing or hashing these runs no code of the program. By id of the class, since a metaclass may have no hash.
_FUNCTIONS = frozenset(
    map(id, (FunctionType, BuiltinFunctionType, MethodDescriptorType, MethodType, WrapperDescriptorType, type))
)
# Reading an attribute of these runs no code of the program.
_NATIVE = frozenset(map(id, (WrapperDescriptorType, MethodDescriptorType, BuiltinFunctionType, type(None))))
_QUIET = frozenset(
    map(
        id,
        (
            *(FunctionType, BuiltinFunctionType, MethodDescriptorType, MethodType, MethodWrapperType),
            *(WrapperDescriptorType, ModuleType, int, float, complex, bool, str, bytes, list, tuple, dict, set),
            *(frozenset, type(None), range, slice),
        ),
    )
)
MISSING: Any = object()
_order = cast(Callable[[type], tuple[type, ...] | None], type.__dict__["__mro__"].__get__)
namespace_of = cast(Callable[[type], Mapping[str, Any]], type.__dict__["__dict__"].__get__)
_module = cast(Callable[[type], Any], type.__dict__["__module__"].__get__)
# Set the name of the module that a class says it is of, without asking its metaclass.
move_to_module = cast(Callable[[type, str], None], type.__dict__["__module__"].__set__)
_getter_of = cast(Callable[[property], Any], property.__dict__["fget"].__get__)


def mro_of(tp: type) -> tuple[type, ...]:
    """Return the class's method resolution order; empty while its metaclass is still computing it."""
    return _order(tp) or ()


def module_of(tp: type) -> str:
    """Return the name of the module that a class says it is of, without asking its metaclass; "" if that is no text."""
    try:
        found = _module(tp)
    except AttributeError:
        return ""
    return found if type(found) is str else ""


def on_type(tp: type, name: str) -> Any:
    """Return what ``name`` is in the namespace of a class or its bases, without binding it, or MISSING."""
    for base in _order(tp) or ():
        found = namespace_of(base).get(name, MISSING)
        if found is not MISSING:
            return found
    return MISSING


if TYPE_CHECKING:
    from builtins import getattr as getattr  # noqa: PLC0414
    from builtins import hasattr as hasattr  # noqa: PLC0414
    from builtins import isinstance as isinstance  # noqa: PLC0414
else:
    _getattr = getattr

    def getattr(value: Any, name: str, *default: Any) -> Any:
        """Without a default, Python's own: the program's attribute. Otherwise look the attribute up without running
        code of the program; the default is returned where only such code could return it."""
        if not default or id(type(value)) in _QUIET:
            return _getattr(value, name, *default)
        found = _looked_up(value, name)
        return default[0] if found is MISSING else found

    def hasattr(value: Any, name: str, /) -> bool:
        """Whether there is such an attribute; true where only code of the program could decide."""
        found = _getattr(value, name, MISSING) if id(type(value)) in _QUIET else _looked_up(value, name, value)
        return found is not MISSING

    def isinstance(value: Any, kinds: Any, /) -> bool:
        """Whether the value's type derives from one of the kinds."""
        return issubclass(type(value), kinds)


def is_one_of(fn: Any, known: Collection[Any], /) -> bool:
    """Whether a callee is one of these functions and classes."""
    if id(type(fn)) in _FUNCTIONS:
        return fn in known
    for one in known:  # noqa: SIM110 - quicker than a generator
        if one is fn:
            return True
    return False


def _looked_up(value: Any, name: str, unmerged: Any = MISSING) -> Any:
    """Return an attribute, MISSING where there is none, and ``unmerged`` where only code of the program could return
    it."""
    cls = type(value)
    is_class = issubclass(cls, type)
    if _runs_python(on_type(cls, name)) or (is_class and _runs_python(on_type(value, name))):
        return unmerged
    own = type(on_type(cls, "__getattribute__")) is not WrapperDescriptorType
    if own or on_type(cls, "__getattr__") is not MISSING:
        try:
            return (type if is_class else object).__getattribute__(value, name)
        except AttributeError:
            return MISSING
    return builtins.getattr(value, name, MISSING)


def _runs_python(found: Any) -> bool:
    """Whether what a class has under a name is a descriptor that runs Python code, such as a property."""
    if found is MISSING or id(type(found)) in _QUIET:
        return False
    if isinstance(found, property):
        return id(type(_getter_of(found))) not in _NATIVE
    get = on_type(type(found), "__get__")
    return get is not MISSING and id(type(get)) not in _NATIVE


_Value = TypeVar("_Value")


class ClassTable(Generic[_Value]):
    """A table of classes by identity, of which entries live as long as the class. A metaclass of the program may count
    calls of its hash, compare two classes as equal, or have no hash."""

    def __init__(self) -> None:
        self.known: dict[int, _Value] = {}  # by id of the class, for lookups without a call
        self._refs: dict[int, weakref.ref[type]] = {}

    def put(self, cls: type, value: _Value) -> _Value:
        """Set the value of a class. Returns the value."""
        number, known, refs = id(cls), self.known, self._refs

        def gone(ref: weakref.ref[type]) -> None:  # before the id is reused
            if refs.get(number) is ref:
                del refs[number], known[number]

        refs[number], known[number] = weakref.ref(cls, gone), value
        return value
