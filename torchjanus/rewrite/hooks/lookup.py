"""Looks up special methods as Python does: on the class and its bases, never through their metaclass.

Classes are read by accessors of the type machinery. ``cls.__mro__`` and ``cls.__dict__`` would run a metaclass's
``__getattribute__``, and ``issubclass`` its ``__subclasscheck__``.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from types import ModuleType, WrapperDescriptorType
from typing import Any, cast

from torchjanus.core.kinds import MISSING, mro_of, namespace_of, on_type

__all__ = [
    "MISSING", "asks_for_attributes", "attributes_of", "bound_to", "derives", "imported_names", "is_python_class",
    "mro_of", "namespace_of", "on_type", "own_dict",
]  # fmt: skip

_flags = cast(Callable[[type], int], type.__dict__["__flags__"].__get__)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_variables = cast(Callable[[ModuleType], dict[str, Any]], vars(ModuleType)["__dict__"].__get__)
_attribute: Callable[[Any, str], Any] = object.__getattribute__
_UNUSUAL = (threading.local, BaseException, functools.partial)  # classes whose objects get a dictionary when asked
_derives: Callable[[type, type], bool] = type.__subclasscheck__


def is_python_class(tp: type) -> bool:
    """Whether the class is a heap type: made by a class statement, or by a C extension that asked for a heap type."""
    return bool(_flags(tp) & _HEAP_TYPE)


def bound_to(obj: Any, found: Any) -> Any:
    """Return ``found``, which ``on_type`` found on the object's class, bound to the object if it is a descriptor."""
    bind = on_type(type(found), "__get__")
    return found if bind is MISSING else bind(found, obj, type(obj))


def asks_for_attributes(tp: type) -> bool:
    """Whether each attribute read of an instance of this class runs code of the program."""
    return type(on_type(tp, "__getattribute__")) is not WrapperDescriptorType


def attributes_of(obj: Any) -> Any:
    """Return the object's own ``__dict__`` without asking the program's ``__getattribute__``; None if it has none."""
    if issubclass(type(obj), _UNUSUAL):
        if issubclass(type(obj), threading.local):
            return obj.__dict__  # each thread has its own
        if _has_no_dictionary_yet(obj):
            return None
    try:
        return _attribute(obj, "__dict__")
    except AttributeError:
        return None


def _has_no_dictionary_yet(obj: BaseException | functools.partial[Any]) -> bool:
    """Whether to ask for the object's ``__dict__`` would make one, which shows when the object is pickled."""
    if issubclass(type(obj), BaseException):  # not isinstance: a class may have a __class__ of the program's
        return len(BaseException.__reduce__(cast(BaseException, obj))) < 3
    return functools.partial.__reduce__(cast("functools.partial[Any]", obj))[2][3] is None


def own_dict(obj: Any) -> Any:
    """Return ``obj.__dict__`` without asking the program's ``__getattribute__``. Raises AttributeError."""
    tp = type(obj)
    if asks_for_attributes(tp) and not issubclass(tp, type):
        return object.__getattribute__(obj, "__dict__")
    return obj.__dict__


def derives(tp: type, base: type) -> bool:
    """Whether ``base`` is among the bases of ``tp``. Virtual subclasses do not count."""
    return _derives(base, tp)


def imported_names(module: str, level: int, names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the variables of the module that ``from module import`` names, where the importing module's variables are
    ``names`` and ``level`` is the number of leading dots. Return an empty dictionary if there is no such module."""
    if level:
        spec = names.get("__spec__")
        package = names.get("__package__") or (spec.parent if spec is not None else None)
        if not isinstance(package, str):
            return {}
        module = importlib.util.resolve_name("." * level + module, package)
    found = sys.modules.get(module)
    return _variables(found) if isinstance(found, ModuleType) else {}
