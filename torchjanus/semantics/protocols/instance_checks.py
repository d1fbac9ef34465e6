"""``isinstance`` and ``issubclass`` where the program's own code answers: metaclasses, ``__class__``, protocols.

In: the semantics that enters such code, and the arguments of the call. Out: eager's answer. Each class that was asked
about is noted, since another answer later would change what the program does.
"""

from __future__ import annotations

import abc
import builtins
import typing
from builtins import len  # a program may rebind them
from typing import Any

from torchjanus.core.kinds import getattr, is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.protocols.leaves import derives, on_type

__all__ = ["check_instance"]

Args = tuple[Any, ...]
_CLASS = vars(object)["__class__"]
_INSTANCE_CHECK = vars(type)["__instancecheck__"]
_ABSTRACT_CHECK = vars(abc.ABCMeta)["__instancecheck__"]


def check_instance(semantics: Any, at: Site, fn: Any, args: Args) -> Any:
    """Call ``isinstance`` or ``issubclass``, with a metaclass's Python-level check."""
    name = "__instancecheck__" if fn is builtins.isinstance else "__subclasscheck__"
    if len(args) == 2:
        value, cls = args
        semantics.note_lookup(value if isinstance(value, type) else type(value), "__class__")
        if name == "__instancecheck__" and type(value) is cls:
            return True
        if type(cls) is tuple:
            if any(semantics.dunder(type(each), name) is not None for each in cls):
                return any(check_instance(semantics, at, fn, (value, each)) for each in cls)
        else:
            method = semantics.dunder(type(cls), name)
            if method is not None:
                return semantics.branch_value(at, semantics.invoke(at, method, cls, value))
        kinds = cls if type(cls) is tuple else (cls,)
        if name == "__instancecheck__" and _computes_class(semantics, type(value)) and all(map(_is_plain, kinds)):
            return any(_is_instance_by_attribute(semantics, at, value, kind) for kind in kinds)
        for each in kinds:
            _read_protocol_members(semantics, at, value, each)
            semantics.note_subclass_check(value if name == "__subclasscheck__" else type(value), each)
    return semantics.call_native(at, fn, args, {})


def _computes_class(semantics: Any, tp: type) -> bool:
    """Whether code of the program computes ``__class__`` of an object of this type."""
    if semantics.dunder(tp, "__getattribute__") is not None:
        return True
    raw = on_type(tp, "__class__")
    return raw is not _CLASS and semantics.getter(raw) is not None


def _is_instance_by_attribute(semantics: Any, at: Site, value: Any, kind: type) -> bool:
    """Return ``isinstance`` by the check of ``type``: ``__class__`` is read where the type does not match."""
    semantics.note_subclass_check(type(value), kind)
    abstract = isinstance(kind, abc.ABCMeta)
    if derives(type(value), kind) and not abstract:
        return True
    try:
        said = semantics.attr(at, value, "__class__")
    except AttributeError:
        if abstract:
            raise
        return False
    if abstract:
        return any(issubclass(each, kind) for each in (said, type(value)))
    return said is not type(value) and isinstance(said, type) and derives(said, kind)


def _read_protocol_members(semantics: Any, at: Site, value: Any, cls: Any) -> None:
    """Read the attributes of a ``typing.Protocol``: a value matches if it, or it as a class, has all of them."""
    if type(cls) is type(typing.Protocol):
        names = getattr(cls, "__protocol_attrs__", None) or typing._get_protocol_attrs(cls)  # type: ignore[attr-defined]
        for name in sorted(names):
            semantics.call_hasattr(at, hasattr, (value, name))


def _is_plain(kind: Any) -> bool:
    return isinstance(kind, type) and is_one_of(
        on_type(type(kind), "__instancecheck__"), (_INSTANCE_CHECK, _ABSTRACT_CHECK)
    )
