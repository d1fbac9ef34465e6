"""Python versions of the reductions that ``copy.copy()`` and ``copy.deepcopy()`` ask native code for (PEP 307).

``copy`` is written in Python and is watched like other code. These functions take the place of
``object.__reduce_ex__``, the ``__reduce__`` of containers and some ``__copy__`` methods.
"""

from __future__ import annotations

import collections
import copyreg
import types
from builtins import iter  # a program may rebind builtins.iter
from collections.abc import Callable
from typing import Any

from torchjanus.core.kinds import MISSING, on_type

__all__ = ["COPIERS", "reducer_of"]

Parts = tuple[Any, ...]


def _stateful(value: Any, protocol: int) -> Parts:
    """Return the parts of an object with a ``__getstate__`` written in Python, as ``object.__reduce_ex__`` does."""
    state = value.__getstate__()
    items = iter(value) if isinstance(value, list) else None
    entries = iter(value.items()) if isinstance(value, dict) else None
    return copyreg.__newobj__, (type(value),), state, items, entries  # type: ignore[attr-defined]


def _plain(value: Any, protocol: int) -> Parts:
    """Return the parts of an object that inherits ``object.__getstate__``: its attributes and its slots."""
    state = (value.__dict__ or None) if hasattr(value, "__dict__") else None
    slots = {name: getattr(value, name) for name in _slots_of(type(value)) if hasattr(value, name)}
    items = iter(value) if isinstance(value, list) else None
    entries = iter(value.items()) if isinstance(value, dict) else None
    state = (state, slots) if slots else state
    return copyreg.__newobj__, (type(value),), state, items, entries  # type: ignore[attr-defined]


def _asked(value: Any, protocol: int) -> Parts:
    """Return the result of a ``__reduce__`` written in Python, which ``object.__reduce_ex__`` calls."""
    made: Parts = value.__reduce__()
    return made


def _ordered(items: Any, protocol: int) -> Parts:
    return type(items), (), items.__dict__ or None, None, iter(items.items())


def _set(items: Any, protocol: int) -> Parts:
    return type(items), (list(items),), None


def _deque(items: Any, protocol: int) -> Parts:
    return type(items), () if items.maxlen is None else ((), items.maxlen), None, iter(items)


def _defaultdict(items: Any, protocol: int) -> Parts:
    factory = items.default_factory
    return type(items), () if factory is None else (factory,), None, None, iter(items.items())


def _namespace(space: Any, protocol: int) -> Parts:
    return type(space), (), space.__dict__


def _copied_deque(items: Any) -> Any:
    return type(items)(items) if items.maxlen is None else type(items)(items, items.maxlen)


def _copied_defaultdict(items: Any) -> Any:
    return type(items)(items.default_factory, items)


_NATIVE: dict[int, Callable[[Any, int], Parts]] = {
    id(collections.OrderedDict): _ordered,
    id(set): _set,
    id(collections.deque): _deque,
    id(collections.defaultdict): _defaultdict,
    id(types.SimpleNamespace): _namespace,
}

# Python versions of native ``__copy__`` methods.
COPIERS: dict[Any, Callable[[Any], Any]] = {
    collections.deque.__copy__: _copied_deque,
    collections.defaultdict.__copy__: _copied_defaultdict,
}


def reducer_of(value: Any) -> Callable[[Any, int], Parts] | None:
    """Return what is watched for ``value.__reduce_ex__(protocol)``, or None if only native code can do it."""
    cls: Any = type(value)
    if id(cls) in _NATIVE:
        return _NATIVE[id(cls)]
    if isinstance(value, type) or cls.__reduce_ex__ is not object.__reduce_ex__:
        return None
    if isinstance(cls.__reduce__, types.FunctionType):
        return _asked
    if cls.__reduce__ is not object.__reduce__ or any(
        on_type(cls, name) is not MISSING for name in ("__getnewargs__", "__getnewargs_ex__")
    ):
        return None
    if isinstance(cls.__getstate__, types.FunctionType):
        return _stateful
    return _plain if _has_only_attributes(value) else None


def _has_only_attributes(value: Any) -> bool:
    """Whether the object inherits ``object.__getstate__`` and holds no native memory. A lock holds some, and raises."""
    cls: Any = type(value)
    if cls.__getstate__ is not object.__getstate__:
        return False
    try:
        object.__reduce_ex__(value, 4)
    except TypeError:
        return False
    return True


def _slots_of(cls: type) -> list[str]:
    names: list[str] = copyreg._slotnames(cls)  # type: ignore[attr-defined]
    return names
