"""What the program's local variables hold, and what those objects hold: by name, as far as it can be looked at without
running any code of the program's.

Knows frames and objects, neither numbers of tensors nor loops.
"""

from __future__ import annotations

import collections
import inspect
import sys
import types
from collections.abc import Container, Iterable, Iterator
from typing import Any

import torch

from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.liveness import live_after
from torchjanus.semantics.record.marks import KNOWN, VALUES, Growing, Marking, Marks, attributes_of

__all__ = ["MANY", "OURS", "Other", "all_variables", "frames_of_program", "variables"]

DEEP = 3
MANY = 64  # elements of a container that are looked at
MOST = 4000  # variables
OURS = "torchjanus."
_FIRST = ("torchjanus.semantics.watch.watch", "_watched")  # below it there is nothing of the program
_TELLING = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe"})  # who calls these may have the very dict


class Other:
    """An object of which nothing is kept but what tells it from others."""

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        self.kind = type(value).__name__


def frames_of_program() -> Iterator[Any]:
    """The frames of the program, from the innermost."""
    frame: Any = sys._getframe(1)
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != _FIRST:
        if not str(frame.f_globals.get("__name__", "")).startswith(OURS):
            yield frame
        frame = frame.f_back


def variables(seen: set[int]) -> dict[Any, Any]:
    """Each variable by name, and what is in it: tensors and numbers as they are, of others the id. ``seen``: takes the
    ids of those containers whose elements were looked at."""
    found: dict[Any, Any] = {}
    for depth, frame in enumerate(reversed(list(frames_of_program()))):
        if not _TELLING.isdisjoint(frame.f_code.co_names):
            found[depth, "anything", object()] = None  # a new name each time
            continue
        for name, value in _locals_of(frame).items():
            for part, held in _parts((depth, name), value, DEEP, seen):
                if len(found) == MOST:
                    return found
                found[part] = held
    return found


def _locals_of(frame: Any) -> dict[str, Any]:
    found = dict(frame.f_locals)
    held = frame.f_locals
    if type(held) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_trace is None:
        held.clear()  # before Python 3.13 the frame keeps it, and all that is in it, until it returns
    return found


def _parts(name: tuple[Any, ...], value: Any, deep: int, seen: set[int]) -> Iterator[tuple[Any, Any]]:
    # What may have a finalizer is not kept: it has to go when the program lets go of it.
    yield name, value if issubclass(type(value), VALUES) else id(value)
    parts: Any = ()
    if deep and is_one_of(type(value), (list, tuple)) and len(value) <= MANY:
        parts = enumerate(value)
    elif deep and type(value) is dict and len(value) <= MANY:
        parts = value.items()
    elif deep and type(value).__module__.partition(".")[0] not in KNOWN:
        parts = attributes_of(value).items()
    if parts:
        seen.add(id(value))
    for key, part in list(parts):
        yield from _parts((*name, type(value).__name__, _key(key)), part, deep - 1, seen)


def _key(key: Any) -> Any:
    return key if is_one_of(type(key), (int, str)) else id(key)  # others may have a hash of the program's


def all_variables(
    making: Iterable[Any], escaped: Iterable[Any], known: Container[int], records: dict[Any, Growing]
) -> dict[Any, Any]:
    """The variables that may still be read, and all that is in them: tensors and numbers as they are, else ``Other``,
    and ``Marks`` of what has no name. ``making``: containers that comprehensions are making, and ``escaped``: what
    the call has put into objects from before it, for no variable may hold these; ``known``: the ids of objects from
    before the call, of which the heap tells what becomes of them; ``records``: see ``Marking``."""
    frames = list(reversed(list(frames_of_program())))
    escaped = list(escaped)
    looking = _Looking(Marking((frame.f_code for frame in frames), records), known, frozenset(map(id, escaped)))
    for depth, frame in enumerate(frames):
        if not _TELLING.isdisjoint(frame.f_code.co_names):
            looking.found[depth, "anything", object()] = None
            continue
        live = live_after(frame.f_code, frame.f_lasti)
        given = frame.f_code.co_freevars if not depth else ()  # what the program's function was made with
        for name, value in _locals_of(frame).items():
            if name in live:
                looking.look((depth, name), value, DEEP, name not in given)
    for depth, container in enumerate(making):
        looking.look((-1 - depth, "making"), container, DEEP, True)
    for number, held in enumerate(escaped):
        looking.look((number, "handed out"), held, DEEP, True)
    return looking.found


class _Looking:
    """Looks into everything."""

    def __init__(self, marking: Marking, known: Container[int], escaped: frozenset[int]) -> None:
        self.marking, self.known, self.escaped = marking, known, escaped
        self.found: dict[Any, Any] = {}
        self._unknown = object()  # another one each time

    def look(self, name: tuple[Any, ...], value: Any, deep: int, own: bool) -> None:
        """``own``: whether it may be the call's own."""
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
        if own and (token := self.marking.unnamed(name, value, bool(parts))) is not None:
            self.found[(*name, kind, "marks")] = Marks(token)
        for key, part in parts:
            self.look((*name, kind, _key(key)), part, deep - 1, own)

    def _parts(self, name: tuple[Any, ...], value: Any) -> tuple[list[tuple[Any, Any]], str]:
        """What is named one by one, and the kind of container."""
        cls = type(value)
        if is_one_of(cls, (list, collections.deque)):
            self.found[(*name, "list", "length")] = len(value)
            if value and isinstance(value[-1], torch.Tensor):
                self.found[(*name, "list", "last")] = value[-1]
        if is_one_of(cls, (list, tuple, collections.deque)):
            return list(enumerate(value)) if len(value) <= MANY else [], "tuple" if cls is tuple else "list"
        if issubclass(cls, dict):
            return list(dict.items(value)) if len(value) <= MANY else [], "dict"
        if cls.__module__.partition(".")[0] in KNOWN or issubclass(cls, types.FunctionType):
            return [], cls.__name__
        return list(attributes_of(value, slots=True).items()), cls.__name__
