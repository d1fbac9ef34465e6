"""Which variables change from round to round of a loop: what is handed on from one to the next may come to light late.

A chain ``a, b, c = b, c, x`` that begins with one tensor in all places hands that on for several rounds; all those look
as if ``a`` never changed. It shows in the number of variables that change, which grows from round to round. Knows
frames, not loops.
"""

from __future__ import annotations

import collections
import inspect
import itertools
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from torchjanus.graph.loop_alike import KEPT
from torchjanus.origin import token_of
from torchjanus.semantics.liveness import live_after

__all__ = ["Rebinding", "is_settled", "is_suspended"]

DEEP = 3
MANY = 64  # elements of a container that are looked at
MOST = 4000  # variables
_FIRST = ("torchjanus.semantics.watch", "_watched")  # below it there is nothing of the program
_KEPT = (torch.Tensor, int, float, str, type(None))
_VALUES = (int, float, str)
_LONG = ("long",)  # stands among names for a chain of variables
_FLAGS = (bool, str, type(None))
_TELLING = frozenset({"locals", "vars", "dir", "eval", "exec", "_getframe"})  # who calls these may have the very dict
_OURS = "torchjanus."
_SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_KNOWN = frozenset({"builtins", "torch", "torchjanus", "collections", "functools"})


class _Other:
    """An object of which nothing is kept but what tells it from others."""

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        self.kind = type(value).__name__


class Rebinding:
    """Compares the local variables of the program with what they were when it last came to the same point."""

    def __init__(self) -> None:
        self._before: dict[Any, dict[Any, Any]] = {}
        self._seen: set[int] = set()  # containers that the latest comparison has looked into, by id

    def has_seen(self, container: Any) -> bool:
        """Whether it would have come to light had its elements changed."""
        return id(container) in self._seen and len(container) <= MANY

    def state(self) -> dict[Any, Any]:
        """What the variables are now, by name; of a list that has been seen to grow also how long it is, and its last
        element."""
        return dict(itertools.islice(_variables(True), MOST))

    def since(self, point: Any) -> frozenset[Any]:
        """What has changed since the last time, by name; everything at first."""
        self._seen.clear()
        now = dict(itertools.islice(_variables(seen=self._seen), MOST))
        before = self._before.get(point, {})
        self._before[point] = now
        changed = {name for name, value in now.items() if name not in before or not _same(before[name], value)}
        if before and _is_long(before, now, changed):
            changed.add(_LONG)
        return frozenset(_grown(name, before) for name in changed | (before.keys() - now.keys()))


def is_suspended() -> bool:
    """Whether the program is within code that may be left and entered again: a generator, a coroutine."""
    frame: Any = sys._getframe(1)
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != _FIRST:
        ours = str(frame.f_globals.get("__name__", "")).startswith(_OURS)
        if not ours and frame.f_code.co_flags & _SUSPENDING:
            return True
        frame = frame.f_back
    return False


def _same(one: Any, other: Any) -> bool:
    return one is other or (type(one) is type(other) and type(one) in _VALUES and token_of(one) == token_of(other))


def is_settled(changes: Sequence[frozenset[Any]]) -> bool:
    """Whether it has come to an end that rounds changed what the one before them did not, or had not just put into a
    container. A chain begins with more of it in each round, without a pause, until all of it changes. One so long that
    after ``KEPT`` rounds it still holds what was there before the loop is never settled: the program may ask for it."""
    if any(_LONG in names for names in changes):
        return False
    settled = [
        all(_is_in_new(name, earlier) for name in later - earlier) for earlier, later in itertools.pairwise(changes)
    ]
    return not settled or (settled[-1] and sorted(settled) == settled)


def _is_long(before: dict[Any, Any], now: dict[Any, Any], changed: Iterable[Any]) -> bool:
    """Whether variables hand tensors on for more than ``KEPT`` rounds: ``a, b, c, d = b, c, d, x``."""
    held: dict[int, list[Any]] = {}
    for name, value in before.items():
        if len(name) == 2 and isinstance(value, torch.Tensor):  # a variable, and not what a container holds
            held.setdefault(id(value), []).append(name)
    names = {name for name in changed if len(name) == 2 and isinstance(now.get(name), torch.Tensor)}
    for _ in range(KEPT):
        names = {one for name in names for one in held.get(id(now.get(name)), ()) if one != name}
    return bool(names)


def _is_in_new(name: tuple[Any, ...], earlier: frozenset[Any]) -> bool:
    return any((*name[: end - 1], "more") in earlier for end in range(4, len(name) + 1, 2))


def _variables(whole: bool = False, seen: set[int] | None = None) -> Iterator[tuple[Any, Any]]:
    """``whole``: with what is told of lists, and with other objects as they are."""
    frames = []
    frame: Any = sys._getframe(2)
    while frame is not None and (frame.f_globals.get("__name__"), frame.f_code.co_name) != _FIRST:
        if not str(frame.f_globals.get("__name__", "")).startswith(_OURS):
            frames.append(frame)
        frame = frame.f_back
    for depth, one in enumerate(reversed(frames)):
        if _TELLING.isdisjoint(one.f_code.co_names):
            live = live_after(one.f_code, one.f_lasti) if whole else frozenset()
            for name, value in _locals_of(one).items():
                if whole and issubclass(type(value), _FLAGS) and name not in live:
                    continue  # nobody asks for it any more
                yield from _parts((depth, name), value, DEEP, whole, seen)
        else:
            yield (depth, "anything", object()), None  # a new name each time


def _locals_of(frame: Any) -> dict[str, Any]:
    found = dict(frame.f_locals)
    held = frame.f_locals
    if type(held) is dict and frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_trace is None:
        held.clear()  # before Python 3.13 the frame keeps it, and all that is in it, until it returns
    return found


def _parts(
    name: tuple[Any, ...], value: Any, deep: int, whole: bool = False, seen: set[int] | None = None
) -> Iterator[tuple[Any, Any]]:
    # What may have a finalizer is not kept: it has to go when the program lets go of it.
    yield name, value if issubclass(type(value), _KEPT) else _Other(value) if whole else id(value)
    if not deep:
        return
    parts: Any = ()
    held = whole and type(value) is collections.deque
    if whole and type(value) in (list, collections.deque):
        yield (*name, "list", "length"), len(value)
        if value and isinstance(value[-1], torch.Tensor):
            yield (*name, "list", "last"), value[-1]
    if (type(value) in (list, tuple) or held) and len(value) <= MANY:
        parts = enumerate(value)
    elif type(value) is dict and len(value) <= MANY:
        parts = value.items()
    elif type(value).__module__.partition(".")[0] not in _KNOWN:
        parts = _attributes(value).items()
    if seen is not None and parts:
        seen.add(id(value))
    for key, part in list(parts):
        plain = key if type(key) in (int, str) else id(key)  # others may have a hash of the program's
        yield from _parts((*name, type(value).__name__, plain), part, deep - 1, whole, seen)


def _attributes(value: Any) -> dict[str, Any]:
    """Of a plain object of the program's with few attributes those; read without any code of the program's."""
    # By its type: what an object says of its class may be code of the program's.
    if issubclass(type(value), (type, torch.nn.Module, types.ModuleType)):
        return {}
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if type(held) is dict and len(held) <= MANY else {}


def _grown(name: Any, before: Any) -> Any:
    """The name; of what an element of a list or dictionary that was not there holds, that the container has grown."""
    if name not in before:
        for end in range(4, len(name) + 1, 2):
            if name[end - 2] in ("list", "dict") and name[:end] not in before:
                return (*name[: end - 1], "more")
    return name
