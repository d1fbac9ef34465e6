"""Keys that native code hashes and compares: what is assumed of them, and what is not known."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import operator
import pathlib
import types
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import isinstance
from torchjanus.semantics.containers.shadows import Shadows
from torchjanus.semantics.known.details import tuple_like
from torchjanus.semantics.known.foreign import is_numpy_scalar
from torchjanus.semantics.known.trusted import is_settled, is_trusted_class
from torchjanus.semantics.native.class_namespaces import ClassNamespaces
from torchjanus.semantics.native.identities import as_key, held_as_key, hold_identity, varying_object
from torchjanus.semantics.native.watch_hooks import WatchHooks
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.torch.framework import FrameworkRecorder
from torchjanus.trace.facts import IdentityTest
from torchjanus.trace.values import Read, Traced, TracedFloat, TracedObject

__all__ = ["NativeKeys"]

# Objects of these classes are equal if their texts are.
_SHOWN = (
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    fractions.Fraction,
    pathlib.PurePath,
    uuid.UUID,
)


class NativeKeys(ABC):
    """Keys of containers in the native calls of one watched run, and what the parts of native calls ask of one
    another."""

    def __init__(self, recording: Recording, framework: FrameworkRecorder, watch: WatchHooks) -> None:
        self.recording = recording
        self.framework = framework
        self.out = framework.out
        self.watch = watch
        self.shadows = Shadows(recording)
        recording.holders.append(self.shadows.clear)
        self.classes = ClassNamespaces(recording)

    @abstractmethod
    def call(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a native call for real and record it."""

    @abstractmethod
    def in_order(self, values: list[Any], key: Any = None, reverse: Any = False) -> list[Any]:
        """Return ``sorted(values, key=key, reverse=reverse)``."""

    @abstractmethod
    def extreme(self, fn: Any, values: list[Any], key: Any) -> Any:
        """Return ``min`` or ``max`` by a key, of at least one value."""

    @abstractmethod
    def expose(self, value: Any, *, pin: bool = True) -> None:
        """Read a whole container, since native code is about to do so. ``pin``: hold the numbers in it constant."""

    @abstractmethod
    def hold_hash(self, value: Any) -> None:
        """Assume that what the Python-level hash method of a key reads stays the same."""

    @abstractmethod
    def runs_changing_code(self, container: Any, *keys: Any) -> bool:
        """Whether the container has to do an operation with these keys itself. The trace is then refused."""

    @abstractmethod
    def runs_unwatched_methods(self, *containers: Any) -> bool:
        """Whether native code calls unwatched Python methods of these containers' keys; the trace is refused."""

    @abstractmethod
    def keys_run_unwatched_methods(self, keys: Iterable[Any]) -> bool:
        """Whether native code calls unwatched Python methods of these keys; the trace is refused."""

    @abstractmethod
    def note_new_keys(self, *keys: Any) -> None:
        """Native code makes a container with these keys: it hashes them and compares those with equal hashes."""

    @abstractmethod
    def watch_lookup(self, container: Any, key: Any) -> None:
        """Watch the comparisons by Python methods in a lookup of a key."""

    @abstractmethod
    def unknown(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a native call about which nothing is known. The trace is refused."""

    def place(self, value: Any, why: str = "used as a key") -> Any:
        """Return a key for a shadow. A computed key keeps its expression, and so does an object that varies."""
        is_nan = isinstance(value, TracedFloat) and value.bare is not None
        if isinstance(value, Traced) and not is_nan:
            return value
        if (access_path := varying_object(self.recording, value)) is not None:
            return TracedObject(self.key(value, why), Read(access_path))
        self.read_parts(value)
        hold_identity(self.recording, value)
        return self.key(value, why)

    def read_parts(self, value: Any) -> None:
        """Read the elements of a tuple or frozen set from before the call, by which native code hashes and compares
        it. One that is a key of a container from before the call is constant: the keys of that are assumed."""
        if isinstance(value, tuple | frozenset):
            access_path = self.recording.owner(value)
            if access_path is not None and access_path.step is not Step.CONST:
                self.expose(value)
            elif access_path is None and isinstance(value, tuple):
                for part in value:
                    self.read_parts(part)

    def key(self, value: Any, why: str = "used as a key") -> Any:
        """Return a key for the heap, without traced numbers. Refuse the trace if its hash or equality is not known."""
        self.read_parts(value)
        if isinstance(value, tuple):
            parts = tuple(self.key(part, why) for part in value)
            same = all(new is old for new, old in zip(parts, value, strict=True))
            return value if same else tuple_like(value, parts)
        value = as_key(self.recording, value, why)
        if _hashed_by_python(type(value)):
            if self.recording.owner(value) is None:
                self.recording.refuse(
                    "key-new-object",
                    f"uses a new {type(value).__qualname__} as a key",
                    "native code compares it with other keys, by methods that are not watched.",
                    "Use numbers, texts or tuples of them as keys.",
                )
            else:
                self.hold_hash(value)
        self.hold_key(value, why)
        return value

    def keys_of(self, elements: Any, given: Any = None) -> Any:
        """Return the elements of an iterable as keys for the heap. A set or dictionary is returned itself where they
        are its own keys: native code takes over their hashes, and the size of the table decides on the order of the
        set that it makes. ``given``: what the program has given, if ``elements`` are a copy of it."""
        keys = [self.key(part) for part in elements]
        is_set = isinstance(elements, set | frozenset)
        own = is_set or (type(elements) is dict and type(elements if given is None else given) is dict)
        if own and all(map(operator.is_, keys, elements)):
            return elements
        return set(keys) if is_set else keys

    def hold_key(self, value: Any, why: str = "used as a key") -> None:
        """Assume what objects are equal to in a key that native code hashes and compares: that it is this very object,
        where nothing else is known of its class."""
        self.read_parts(value)
        if isinstance(value, tuple):
            for part in value:
                self.hold_key(part, why)
            return
        access_path = self.recording.owner(value)
        if access_path is None or held_as_key(self.recording, value) or _is_known(value):
            return
        if is_numpy_scalar(value):
            self.recording.pin(value, why)
        elif isinstance(value, _SHOWN):
            self.recording.pin(self.recording.found(access_path.then(Step.OF, repr), repr(value)), why)
        elif access_path.waits_for:
            self.recording.refuse(
                "key-native-object",
                f"uses a {type(value).__qualname__} that native code has given as a key",
                "what it is equal to only that code knows.",
                "Use numbers, texts or tuples of them as keys.",
            )
        else:
            self.recording.note_once(IdentityTest(access_path, AccessPath.const(value), True, self.recording.place))

    def hold_keys(self, container: Any) -> Any:
        """Hold the keys that native code put into a dictionary or set of this run. Return the container."""
        if isinstance(container, dict | set | frozenset) and not self.runs_unwatched_methods(container):
            for key in list(container):
                self.hold_key(key)
        return container


def _is_known(value: Any) -> bool:
    """Whether reading it, or its elements, or watching its own methods has assumed what the value is equal to."""
    if isinstance(value, frozenset) or (callable(value) and is_settled(value)):
        return True
    return _hashed_by_python(type(value))


def _hashed_by_python(cls: type) -> bool:
    """Whether instances are hashed by a method written in Python, and not by a trusted library."""
    return isinstance(cls.__hash__, types.FunctionType) and not is_trusted_class(cls) and not issubclass(cls, enum.Enum)
