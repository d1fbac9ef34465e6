"""Finds code of the program that dictionaries and sets run when they look up a key: ``__hash__`` and ``__eq__``.

A watched container calls these methods more often than the container alone would. That is harmless if the code changes
nothing. If it may change something, only the container's own operation may call it. ``own_code`` determines what the
code may change. Knows nothing of traces.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchjanus.core.kinds import isinstance
from torchjanus.rewrite.hooks.lookup import MISSING, on_type
from torchjanus.semantics.known.live_views import ITEMS, KEYS
from torchjanus.semantics.known.own_code import does_more_than_read
from torchjanus.semantics.known.trusted import is_trusted_class
from torchjanus.trace.values import Traced

__all__ = ["KeyCode", "kinds_of", "parts_of_key", "samples_of"]

_ASKED = ("__hash__", "__eq__")
_PLAIN_IDS = frozenset(
    map(id, (int, float, complex, bool, str, bytes, type(None), range, torch.Tensor, torch.Size, tuple, frozenset))
)
_DEPTH = 8  # the greatest depth of keys within keys
_NATIVE = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType)


class KeyCode:
    """Which containers run code of the program that may change something, in one run."""

    def __init__(self) -> None:
        self._judged: dict[int, tuple[type, bool]] = {}  # by the id of a class
        # By the id of a container from before the call: the container, its length, and a key of each class in it. A
        # store is noted before it is made, so the length may be one more.
        self._kinds: dict[int, tuple[Any, int, dict[int, Any]]] = {}

    def of_key(self, key: Any) -> Any:
        """Return the part of a key whose class has such code that may change something, or None."""
        for part in parts_of_key(key):
            if id(type(part)) not in _PLAIN_IDS and self._changes(part):
                return part
        return None

    def of_container(self, container: Any, kept: bool, key: Any = None) -> Any:
        """Return a key of a container whose class has such code, or None. ``kept``: the container is from before the
        call, so its keys are inspected once. ``key`` may be added to it next."""
        if not kept:
            return self._first(samples_of(container))
        known, length = self._kinds.get(id(container)), len_of(container)
        if known is None or known[0] is not container or not 0 <= length - known[1] <= 1:
            known = (container, length, samples_of(container))
        samples = known[2]
        for part in parts_of_key(key):
            samples.setdefault(id(type(part)), part)
        self._kinds[id(container)] = (container, length, samples)
        return self._first(samples)

    def _first(self, samples: dict[int, Any]) -> Any:
        for number, part in samples.items():
            if number not in _PLAIN_IDS and self._changes(part):
                return part
        return None

    def _changes(self, value: Any) -> bool:
        cls = type(value)
        known = self._judged.get(id(cls))
        if known is None or known[0] is not cls:
            known = self._judged[id(cls)] = cls, _judge(value)
        return known[1]


def len_of(container: Any) -> int:
    """Return the number of keys by the container's native length."""
    length: int = _native(container).__len__(container)
    return length


def _native(container: Any) -> Any:
    return next(kind for kind in (dict, set, frozenset, KEYS, ITEMS) if isinstance(container, kind))


def kinds_of(keys: Iterable[Any]) -> dict[int, type]:
    """Return the classes of some keys by id. A metaclass may make two classes equal, or unhashable."""
    held = list(keys)
    return dict(zip(map(id, map(type, held)), map(type, held), strict=True))


def parts_of_key(key: Any, depth: int = _DEPTH) -> Iterator[Any]:
    """Yield a key, or the keys within it that it hashes."""
    if isinstance(key, Traced) or not isinstance(key, tuple | frozenset):
        yield key
    elif depth:
        for part in tuple.__iter__(key) if isinstance(key, tuple) else frozenset.__iter__(key):
            yield from parts_of_key(part, depth - 1)


def samples_of(container: Any) -> dict[int, Any]:
    """Return a key of each class in a container or view, by the id of the class. Tuples and sets are taken apart."""
    keys = list(_native(container).__iter__(container))
    samples = dict(zip(map(id, map(type, keys)), keys, strict=True))
    if any(isinstance(key, tuple | frozenset) for key in samples.values()):
        for key in keys:
            if isinstance(key, tuple | frozenset):
                samples.update((id(type(part)), part) for part in parts_of_key(key))
    return samples


def _judge(value: Any) -> bool:
    cls = type(value)
    if is_trusted_class(cls):
        return False
    asked = [on_type(cls, name) for name in _ASKED]
    if not all(one is None or one is MISSING or issubclass(type(one), (types.FunctionType, *_NATIVE)) for one in asked):
        return True  # another callable in their place may do anything
    functions = [method for method in asked if type(method) is types.FunctionType]
    return bool(functions) and does_more_than_read(functions, value)
