"""Comparisons and hashes that native code requests while it works on the elements of containers and on keys.

``(a, 1) == (b, 1)``, ``min(a, b)``, ``{a: 1}`` and the methods that ``dataclass`` generates compare objects by methods
of their classes. Where such a method is written in Python it is watched: the elements are compared one by one, as the
program itself would compare them, and the hash of a key becomes an assumption.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import types
from collections.abc import Iterable
from typing import Any

import torch

from torchjanus.core.kinds import getattr, hasattr, isinstance
from torchjanus.rewrite.hooks import COMPARE
from torchjanus.rewrite.hooks.lookup import MISSING, mro_of, namespace_of, on_type
from torchjanus.semantics.known.foreign import is_foreign_object
from torchjanus.semantics.known.live_views import ITEMS, KEYS
from torchjanus.semantics.known.trusted import is_trusted_class
from torchjanus.semantics.native.containers import CONTAINERS, NativeContainers, WatchHooks
from torchjanus.semantics.native.identities import watch_lookup
from torchjanus.semantics.native.key_code import KeyCode, kinds_of, parts_of_key, samples_of
from torchjanus.semantics.protocols.operators import COMPARE as METHODS
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.record.write_record import ABSENT
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.trace.values import Traced

__all__ = ["Comparisons", "compares_by_python", "generated_fields", "has_python_method"]

_SEQUENCES = (list, tuple, collections.deque)
_NATIVE = (int, float, complex, bool, str, bytes, type(None), range, torch.Tensor, torch.Size)
_NATIVE_IDS = frozenset(map(id, _NATIVE))  # a metaclass may have no hash


class Comparisons(NativeContainers):
    """Makes comparisons in place of native code, each of them watched."""

    def __init__(self, recording: Recording, framework: FrameworkRecorder, watch: WatchHooks) -> None:
        super().__init__(recording, framework, watch)
        self._kinds: dict[int, tuple[Any, int, dict[int, type]]] = {}
        self._key_code = KeyCode()
        self._put: dict[int, list[Any]] = {}  # keys that Python code hashes or compares, by hash

    def by_parts(self, op: str, a: Any, b: Any) -> Any:
        """Return ``a op b`` if native code would call Python methods of the elements' classes; else ABSENT."""
        if type(a) is type(b) and (names := generated_fields(type(a), "__eq__" if op == "!=" else METHODS[op])):
            return self.in_order_of(op, self.fields(a, names), self.fields(b, names))
        if isinstance(a, types.SimpleNamespace) and isinstance(b, types.SimpleNamespace) and op in ("==", "!="):
            return self.watch.compare(
                None, op, self.watch.attr(None, a, "__dict__"), self.watch.attr(None, b, "__dict__")
            )
        if op not in ("==", "!=") and self._are_ordered_by_parts(op, a, b):
            return self.in_order_of(op, a, b)
        for one in (a, b):
            if isinstance(one, dict | set | frozenset) and self.runs_changing_code(one):
                return ABSENT
        if not (_has_python_parts(a) or _has_python_parts(b) or _is_foreign_within(a) or _is_foreign_within(b)):
            if has_python_method(type(a), METHODS[op]) or has_python_method(type(b), METHODS[op]):
                self._refuse_python_method(a if has_python_method(type(a), METHODS[op]) else b, METHODS[op])
            return ABSENT
        for kind in _SEQUENCES:
            if isinstance(a, kind) and isinstance(b, kind):
                answer = self.in_order_of(op, a, b)
                return self.watch.branch(None, answer) if kind is collections.deque else answer
        if isinstance(a, dict) and isinstance(b, dict) and op in ("==", "!="):
            left, right = self.consumed(a), self.consumed(b)
            self.runs_unwatched_methods(left, right)
            if len(left) != len(right):
                return op == "!="
            for key, one in list(left.items()):  # a copy: the comparisons may change the dictionary
                other = right.get(key, ABSENT)  # hashes and compares as often as Python does
                if other is ABSENT or not self.equal(one, other):
                    return op == "!="
            return op == "=="
        if isinstance(a, CONTAINERS) and isinstance(b, CONTAINERS):
            self._refuse_python_method(a, METHODS[op])
        return ABSENT

    def fields(self, value: Any, names: Iterable[str]) -> list[Any]:
        return [self.watch.attr(None, value, name) for name in names]

    def in_order_of(self, op: str, a: Any, b: Any) -> Any:
        """Return ``a op b`` of two sequences: of the first elements that differ, maybe a tensor, else of the
        lengths."""
        left, right = list(self.iterable(a)), list(self.iterable(b))
        if op in ("==", "!=") and len(left) != len(right):
            return op == "!="
        for number, (one, other) in enumerate(zip(left, right, strict=False), start=1):
            if not self.equal(one, other):
                # The comparisons may have made the lists shorter.
                if number > min(_length(a), _length(b)):
                    break
                return op == "!=" if op in ("==", "!=") else self.watch.compare(None, op, one, other)
            if number >= min(_length(a), _length(b)):
                break
        return bool(COMPARE[op](_length(a), _length(b)))

    def ordered(self, op: str, a: Any, b: Any) -> bool:
        """Return ``a < b`` or ``a > b`` as a sort does: tuples and lists element by element."""
        if self._are_ordered_by_parts(op, a, b):
            return self.watch.branch(None, self.in_order_of(op, a, b))
        return self.watch.branch(None, self.watch.compare(None, op, a, b))

    def _are_ordered_by_parts(self, op: str, a: Any, b: Any) -> bool:
        """Whether both are tuples, or both are lists, whose classes inherit the native comparison."""
        kind = next((kind for kind in (tuple, list) if isinstance(a, kind) and isinstance(b, kind)), None)
        own = None if kind is None else getattr(kind, METHODS[op])
        return own is not None and all(on_type(type(one), METHODS[op]) is own for one in (a, b))

    # -- keys -----------------------------------------------------------------------------------------------------

    def runs_changing_code(self, container: Any, *keys: Any) -> bool:
        """Whether the container has to do an operation itself, since the operation runs code of the program that may
        change something. The trace is then refused. ``keys`` are looked up, stored or removed."""
        found = None
        for key in keys:
            found = self._key_code.of_key(key) if found is None else found
        if found is None and isinstance(container, dict | set | frozenset):
            kept = self.recording.owner(container) is not None
            found = self._key_code.of_container(container, kept, keys)
        if found is None:
            return False
        self.recording.refuse(
            "key-own-code",
            f"a dictionary or set asks a {type(found).__qualname__} for its hash, or compares it, by code that may "
            "change something",
            "a graph asks for neither as often as Python does.",
            "Let __hash__ and __eq__ only read, or use numbers, texts or tuples of them as keys.",
        )
        return True

    def hold_hash(self, value: Any) -> None:
        """Assume that what the Python-level hash method of a key reads stays the same."""
        if self.runs_changing_code(None, value):
            return
        method = on_type(type(value), "__hash__")
        names = generated_fields(type(value), "__hash__")
        if names is not None:
            for part in self.fields(value, names):
                self.key(part)
        elif self.watch.enterable(method):
            self.watch.note_lookup(type(value), "__hash__")
            self.recording.pin(self.watch.call(None, method, (value,), {}), "the hash of a key")
        else:
            self._refuse_python_method(value, "__hash__")

    def runs_unwatched_methods(self, *containers: Any) -> bool:
        """Whether native code calls unwatched Python methods of these containers' keys; the trace is refused."""
        return any(
            self.keys_run_unwatched_methods(samples_of(container).values())
            for container in containers
            if isinstance(container, dict | set | frozenset | KEYS | ITEMS)
        )

    def keys_run_unwatched_methods(self, keys: Iterable[Any]) -> bool:
        """Whether native code calls unwatched Python methods of these keys; the trace is refused."""
        for key in keys:
            name = next((name for name in ("__hash__", "__eq__") if has_python_method(type(key), name)), None)
            if name is not None:
                if not self.runs_changing_code(None, key):
                    self._refuse_python_method(key, name)
                return True
        return False

    def note_new_keys(self, *keys: Any) -> None:
        """Native code makes a container with these keys: it hashes them and compares those with equal hashes."""
        for key in keys:
            if id(type(key)) in _NATIVE_IDS or isinstance(key, Traced):
                self.hold_key(key)
            elif any(
                has_python_method(type(part), name) for part in parts_of_key(key) for name in ("__hash__", "__eq__")
            ):
                if self.runs_changing_code(None, key):
                    return
                self.key(key)
                earlier = self._put.setdefault(hash(key), [])
                for other in earlier:
                    if other is not key:
                        self.equal(other, key)
                earlier.append(key)
            else:
                self.hold_key(key)

    def watch_lookup(self, container: Any, key: Any) -> None:
        """Watch the lookup of a key, which is compared with the keys of the same hash."""
        if self.runs_changing_code(container, key):
            return
        kinds = self._kinds_of(container)
        if self.recording.identities and self.recording.owner(container) is None:
            watch_lookup(self.recording, container, key)
        hashed = {number for number, kind in kinds.items() if has_python_method(kind, "__hash__")}
        if not hashed and not any(has_python_method(kind, "__eq__") for kind in (type(key), *kinds.values())):
            return
        for other in list(container):
            if other is not key:
                if id(type(other)) in hashed:
                    self.key(other)
                if hash(other) == hash(key):
                    self.equal(other, key)

    def _kinds_of(self, container: Any) -> dict[int, type]:
        """Return the classes of a container's keys, cached for containers from before the call, which may be large."""
        if self.recording.owner(container) is None:  # made in this call: its id may be reused
            return kinds_of(container)
        known = self._kinds.get(id(container))
        if known is None or known[0] is not container or known[1] != len(container):
            known = self._kinds[id(container)] = container, len(container), kinds_of(container)
        return known[2]

    # -- what cannot be watched -----------------------------------------------------------------------------------

    def refuse_python_methods(self, fn: Any, *values: Any) -> None:
        """Refuse the trace if native code that gets these values might call one of their Python methods."""
        for value in values:
            if _has_python_parts(value) or has_any_python_method(type(value)):
                self._refuse_python_method(value, getattr(fn, "__name__", "native code"))

    def _refuse_python_method(self, value: Any, what: str) -> None:
        self.recording.refuse(
            "native-asks-python",
            f"native code asks a {type(value).__qualname__} for what only Python code answers ({what})",
            "that code is not watched: what it reads may change.",
            "Compute it in Python, in the step itself.",
        )


def _length(value: Any) -> int:
    """Return the native length of a sequence, whatever its class defines."""
    return next(kind for kind in _SEQUENCES if isinstance(value, kind)).__len__(value)


def has_python_method(cls: type, name: str) -> bool:
    """Whether instances of the class have this method written in Python, and not by a trusted library."""
    if id(cls) in _NATIVE_IDS or issubclass(cls, type | enum.Enum):
        return False
    return type(on_type(cls, name)) is types.FunctionType and not is_trusted_class(cls)


def has_any_python_method(cls: type) -> bool:
    """Whether native code might compare instances of the class, or convert them to numbers, by a Python method."""
    return any(has_python_method(cls, name) for name in _ASKED)


_ASKED = (
    *METHODS.values(),
    *(f"__{name}__" for name in "int index float complex trunc floor ceil round abs add radd mul rmul divmod".split()),
)


def compares_by_python(value: Any) -> bool:
    """Whether comparing this value runs Python methods of its own class or of its elements'."""
    return any(has_python_method(type(value), name) for name in METHODS.values()) or _has_python_parts(value)


def _has_python_parts(value: Any, depth: int = 8) -> bool:
    """Whether an element of this container, nested to this depth, is compared by a Python method."""
    if id(type(value)) in _NATIVE_IDS or isinstance(value, Traced) or not isinstance(value, CONTAINERS):
        return False
    parts = (*value.keys(), *value.values()) if isinstance(value, dict) else value
    kinds = kinds_of(parts)
    if any(has_python_method(kind, name) for kind in kinds.values() for name in METHODS.values()):
        return True
    return depth > 0 and any(_has_python_parts(part, depth - 1) for part in parts if isinstance(part, CONTAINERS))


def _is_foreign_within(value: Any, depth: int = 8) -> bool:
    """Whether an element of this container, nested to this depth, can only be compared by foreign code."""
    if id(type(value)) in _NATIVE_IDS or isinstance(value, Traced) or not isinstance(value, CONTAINERS):
        return False
    parts = list(value.values()) if isinstance(value, dict) else value
    if any(is_foreign_object(part, False) for part in parts):
        return True
    return depth > 0 and any(_is_foreign_within(part, depth - 1) for part in parts if isinstance(part, CONTAINERS))


def generated_fields(cls: type, name: str) -> tuple[str, ...] | None:
    """Return the fields that a method generated by ``dataclass`` reads; None if ``dataclass`` did not generate it."""
    for base in mro_of(cls):
        found = namespace_of(base).get(name, MISSING)
        if found is MISSING:
            continue
        if not dataclasses.is_dataclass(base) or type(found) is not types.FunctionType:
            return None
        if found.__code__.co_filename != "<string>" and not hasattr(found, "__wrapped__"):
            return None  # written by the user
        fields = dataclasses.fields(base)
        if name == "__hash__":
            return tuple(f.name for f in fields if (f.compare if f.hash is None else f.hash))
        return tuple(f.name for f in fields if (f.repr if name == "__repr__" else f.compare))
    return None
