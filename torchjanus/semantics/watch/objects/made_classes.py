"""Classes that the step makes, and what makes an object or a function another kind of thing: what code runs meanwhile.

A class statement is carried out by native code, which calls methods of metaclasses, of bases and of what is in the body
in the midst of its own work. Where those are the program's, they are not watched: no graph is made of the run. The same
is done where the class of an object, the bases of a class or the code of a function is replaced: what was assumed of
these before is not asked again.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from torchjanus.core.kinds import isinstance
from torchjanus.hooks.lookup import MISSING, mro_of, namespace_of, on_type
from torchjanus.semantics.known.trusted import is_trusted_class

__all__ = ["replaces_kind", "unwatched_code"]

_OF_METACLASSES = ("__prepare__", "__new__", "__init__", "mro")
_KINDS = {"__class__": "class", "__bases__": "bases", "__code__": "code"}


def _owner(cls: type, name: str) -> type | None:
    """The class of the program's that has this method, where it is asked for first."""
    owner = next((base for base in mro_of(cls) if name in namespace_of(base)), None)
    return None if owner is None or is_trusted_class(owner) else owner


def unwatched_code(made: Any) -> str | None:
    """What code of the program's native code has called while it made the class, in words; None if there was none."""
    return next(_called(made), None) if isinstance(made, type) else None


def _called(made: type) -> Iterator[str]:
    meta = type(made)
    for name in _OF_METACLASSES:
        owner = _owner(meta, name)
        if owner is not None:
            yield f"{owner.__qualname__}.{name}()"
    owner = _owner(type(meta), "__call__")
    if owner is not None:
        yield f"{owner.__qualname__}.__call__()"
    for base in mro_of(made)[1:]:
        if "__init_subclass__" in namespace_of(base):
            if not is_trusted_class(base):
                yield f"{base.__qualname__}.__init_subclass__()"
            break
    for value in namespace_of(made).values():
        if type(value) is not FunctionType and on_type(type(value), "__set_name__") is not MISSING:
            owner = _owner(type(value), "__set_name__")
            if owner is not None:
                yield f"{owner.__qualname__}.__set_name__()"
    for base in namespace_of(made).get("__orig_bases__", ()):
        owner = _owner(type(base), "__mro_entries__")
        if owner is not None:
            yield f"{owner.__qualname__}.__mro_entries__()"


def replaces_kind(obj: Any, name: str, value: Any) -> str | None:
    """Whether setting this attribute makes the object another kind of thing: what of it is replaced, in words."""
    if name == "__class__" and value is not type(obj):
        return _KINDS[name]
    if name == "__bases__" and isinstance(obj, type) and value != obj.__bases__:
        return _KINDS[name]
    if name == "__code__" and isinstance(obj, FunctionType) and value is not obj.__code__:
        return _KINDS[name]
    return None
