"""Which variables change from iteration to iteration of a loop: what is handed on from one to the next may come to
light late.

A chain ``a, b, c = b, c, x`` that begins with one tensor in all places hands that on for several iterations; all those
look as if ``a`` never changed. It shows in the number of variables that change, which grows from iteration to
iteration. Knows frames, not loops.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch

from torchjanus.core.access_path import token_of
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.marks import Growing
from torchjanus.semantics.record.variables import MANY, all_variables, frames_of_program, variables
from torchjanus.trace.loop_records import KEPT

__all__ = ["Rebinding", "is_settled", "is_suspended"]

_VALUES = (int, float, str)
_LONG = ("long",)  # stands among names for a chain of variables
_SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class Rebinding:
    """Compares the local variables of the program with what they were when it last came to the same point."""

    def __init__(self) -> None:
        self._before: dict[Any, dict[Any, Any]] = {}
        self._seen: set[int] = set()  # containers that the latest comparison has looked into, by id
        # What comprehensions are making: where they stand, what is in it so far, and before which event they began.
        self.making: list[tuple[Any, list[Any], int]] = []
        self.made: dict[int, int] = {}  # the ids of what was in the making -> those of the lists that it has become
        self._alive: list[list[Any]] = []
        self._records: dict[Any, Growing] = {}

    def has_seen(self, container: Any) -> bool:
        """Whether it would have come to light had its elements changed."""
        return id(container) in self._seen and len(container) <= MANY

    def state(self, escaped: Iterable[Any], known: Container[int]) -> dict[Any, Any]:
        """What the variables are now, by name, and all that is in them (see ``all_variables``)."""
        return all_variables((held for _, held, _ in self.making), escaped, known, self._records)

    def known_as(self, held: list[Any], made: list[Any]) -> None:
        """What was in the making has become this list."""
        held.clear()
        self._alive.append(held)
        self.made[id(held)] = id(made)

    def since(self, point: Any) -> frozenset[Any]:
        """What has changed since the last time, by name; everything at first."""
        self._seen.clear()
        now = variables(self._seen)
        before = self._before.get(point, {})
        self._before[point] = now
        changed = {name for name, value in now.items() if name not in before or not _same(before[name], value)}
        if before and _is_long(before, now, changed):
            changed.add(_LONG)
        return frozenset(_grown(name, before) for name in changed | (before.keys() - now.keys()))


def is_suspended() -> bool:
    """Whether the program is within code that may be left and entered again: a generator, a coroutine."""
    return any(frame.f_code.co_flags & _SUSPENDING for frame in frames_of_program())


def _same(one: Any, other: Any) -> bool:
    return one is other or (
        type(one) is type(other) and is_one_of(type(one), _VALUES) and token_of(one) == token_of(other)
    )


def is_settled(changes: Sequence[frozenset[Any]]) -> bool:
    """Whether it has come to an end that iterations changed what the one before them did not, or had not just put into
    a container. A chain begins with more of it in each iteration, without a pause, until all of it changes. One so long
    that after ``KEPT`` iterations it still holds what was there before the loop is never settled: the program may ask
    for it."""
    if any(_LONG in names for names in changes):
        return False
    settled = [
        all(_is_in_new(name, earlier) for name in later - earlier) for earlier, later in itertools.pairwise(changes)
    ]
    return not settled or (settled[-1] and sorted(settled) == settled)


def _is_long(before: dict[Any, Any], now: dict[Any, Any], changed: Iterable[Any]) -> bool:
    """Whether variables hand tensors on for more than ``KEPT`` iterations: ``a, b, c, d = b, c, d, x``."""
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


def _grown(name: Any, before: Any) -> Any:
    """The name; of what an element of a list or dictionary that was not there holds, that the container has grown."""
    if name not in before:
        for end in range(4, len(name) + 1, 2):
            if name[end - 2] in ("list", "dict") and name[:end] not in before:
                return (*name[: end - 1], "more")
    return name
