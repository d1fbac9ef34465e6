"""Take snapshots of the program's local variables and of the objects that they hold, without running its code.

Variables are keyed by frame depth, name and the path within the object. Loop states and the detection of loop-carried
values are based on these snapshots.
"""

from __future__ import annotations

import collections
import inspect
import sys
import types
from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance, module_of
from torchjanus.semantics.record.liveness import live_after
from torchjanus.semantics.record.marks import KNOWN, VALUES, AppendOnlyList, ContentMarker, ContentMarks, attributes_of

__all__ = ["MANY", "OURS", "UNBOUND", "Other", "all_variables", "frames_of_program", "variables", "variables_of"]

DEEP = 3
MANY = 64  # limit on the elements of a container that is inspected
MOST = 4000  # limit on the variables of a snapshot
OURS = "torchjanus."
_FIRST = ("torchjanus.semantics.watch.run", "_watched")  # frames further out are not the program's
_EXPOSING_LOCALS = frozenset(
    {"locals", "vars", "dir", "eval", "exec", "_getframe"}
)  # their callers may hold the frame's dictionary itself


class _Unbound:
    """What a variable holds to which nothing is bound, or not any more: ``del x``, the end of ``except ... as x``."""

    def __repr__(self) -> str:
        return "unbound"


UNBOUND = _Unbound()


class Other:
    """The identity and class name of an object, which is not kept alive."""

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        self.kind = type(value).__name__


def frames_of_program() -> Iterator[Any]:
    """Yield the frames of the program, innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != _FIRST:
        if not str(frame.f_globals.get("__name__", "")).startswith(OURS):
            yield frame
        frame = frame.f_back


def variables(seen: set[int]) -> dict[Any, Any]:
    """Return the content of the variables by name: tensors and numbers as they are, other objects by id. ``seen``:
    receives the ids of the containers whose elements were inspected."""
    found: dict[Any, Any] = {}
    for depth, frame in enumerate(reversed(list(frames_of_program()))):
        if not _EXPOSING_LOCALS.isdisjoint(frame.f_code.co_names):
            found[depth, "anything", object()] = None  # unknown: differs from every other snapshot
            continue
        for name, value in variables_of(frame).items():
            for part, held in _parts((depth, name), value, DEEP, seen):
                if len(found) == MOST:
                    return found
                found[part] = held
    return found


def variables_of(frame: Any) -> dict[str, Any]:
    """Return the variables of a running function, and keep none of them alive."""
    found = dict(frame.f_locals)
    held = frame.f_locals
    if type(held) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_trace is None:
        held.clear()  # before Python 3.13 it would keep all values alive until the frame returns
    return found


def _parts(name: tuple[Any, ...], value: Any, deep: int, seen: set[int]) -> Iterator[tuple[Any, Any]]:
    # Objects that may have a finalizer are not kept: they must die when the program drops them.
    yield name, value if issubclass(type(value), VALUES) else id(value)
    parts: Any = ()
    if deep and is_one_of(type(value), (list, tuple)) and len(value) <= MANY:
        parts = enumerate(value)
    elif deep and type(value) is dict and len(value) <= MANY:
        parts = value.items()
    elif deep and module_of(type(value)).partition(".")[0] not in KNOWN:
        parts = attributes_of(value).items()
    if parts:
        seen.add(id(value))
    for key, part in list(parts):
        yield from _parts((*name, type(value).__name__, _key(key)), part, deep - 1, seen)


def _key(key: Any) -> Any:
    return key if is_one_of(type(key), (int, str)) else id(key)  # hashing others may run code of the program


def all_variables(
    making: Iterable[Any], escaped: Iterable[Any], known: Container[int], records: dict[Any, AppendOnlyList]
) -> dict[Any, Any]:
    """Return the content of the live variables by name: tensors and numbers as they are, ``Other`` for objects, and
    ``ContentMarks`` for content without a name.

    ``making``: containers that comprehensions are building; ``escaped``: new objects stored into old ones (variables
    need not hold either); ``known``: ids of objects from before the call, whose writes are recorded; ``records``: see
    ``ContentMarker``.
    """
    frames = list(reversed(list(frames_of_program())))
    escaped = list(escaped)
    snapshot = _Snapshot(ContentMarker((frame.f_code for frame in frames), records), known, frozenset(map(id, escaped)))
    for depth, frame in enumerate(frames):
        if not _EXPOSING_LOCALS.isdisjoint(frame.f_code.co_names):
            snapshot.found[depth, "anything", object()] = None
            continue
        live = live_after(frame.f_code, frame.f_lasti)
        given = frame.f_code.co_freevars if not depth else ()  # cells of the step function's maker
        held = variables_of(frame)
        for name, value in held.items():
            if name in live:
                snapshot.look((depth, name), value, DEEP, name not in given)
        snapshot.found |= {(depth, name): UNBOUND for name in live - held.keys()}
    for depth, container in enumerate(making):
        snapshot.look((-1 - depth, "making"), container, DEEP, True)
    for number, held in enumerate(escaped):
        snapshot.look((number, "escaped"), held, DEEP, True)
    return snapshot.found


class _Snapshot:
    """Traverses the live variables."""

    def __init__(self, marker: ContentMarker, known: Container[int], escaped: frozenset[int]) -> None:
        self.marker, self.known, self.escaped = marker, known, escaped
        self.found: dict[Any, Any] = {}
        self._unknown = object()  # differs from every other snapshot

    def look(self, name: tuple[Any, ...], value: Any, deep: int, own: bool) -> None:
        """Add a value and its parts, ``deep`` levels down. ``own``: whether the call may have made it."""
        cls = type(value)
        if len(self.found) >= MOST:
            self.found[0, "anything", self._unknown] = None
            return
        if issubclass(cls, VALUES):
            self.found[name] = value
            return
        self.found[name] = Other(value)
        own = (own or id(value) in self.escaped) and id(value) not in self.known
        parts, kind = self._parts(name, value) if deep else ((), cls.__name__)
        if own and (token := self.marker.unnamed(name, value, bool(parts))) is not None:
            self.found[(*name, kind, "marks")] = ContentMarks(token)
        for key, part in parts:
            self.look((*name, kind, _key(key)), part, deep - 1, own)

    def _parts(self, name: tuple[Any, ...], value: Any) -> tuple[list[tuple[Any, Any]], str]:
        """Return the parts that get names of their own, and the kind of container."""
        cls = type(value)
        if is_one_of(cls, (list, collections.deque)):
            self.found[(*name, "list", "length")] = len(value)
            if value and isinstance(value[-1], torch.Tensor):
                self.found[(*name, "list", "last")] = value[-1]
        if is_one_of(cls, (list, tuple, collections.deque)):
            return list(enumerate(value)) if len(value) <= MANY else [], "tuple" if cls is tuple else "list"
        if issubclass(cls, dict):
            return list(dict.items(value)) if len(value) <= MANY else [], "dict"
        if module_of(cls).partition(".")[0] in KNOWN or issubclass(cls, types.FunctionType):
            return [], cls.__name__
        return list(attributes_of(value, slots=True).items()), cls.__name__
