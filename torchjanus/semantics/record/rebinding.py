"""Find the variables that change from iteration to iteration of a loop.

In a chain ``a, b, c = b, c, x`` that starts with one tensor in all variables, ``a`` seems constant for several
iterations. The set of changing variables then grows from iteration to iteration. This module reads frames and knows no
loops.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import torch

from torchjanus.core.access_path import token_of
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.marks import AppendOnlyList
from torchjanus.semantics.record.variables import MANY, all_variables, frames_of_program, variables
from torchjanus.trace.loops.records import KEPT

__all__ = ["VariableChanges", "is_settled", "is_suspended"]

_VALUES = (int, float, str)
_LONG = ("long",)  # pseudo name: a long chain of variables
_SUSPENDING = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR


class VariableChanges:
    """Compares the program's local variables with their state when it last reached the same point."""

    def __init__(self) -> None:
        self._before: dict[Any, dict[Any, Any]] = {}
        self._seen: set[int] = set()  # ids of the containers that the latest comparison has inspected
        # Comprehensions under way: place, elements so far, and the index of the event before which they began.
        self.making: list[tuple[Any, list[Any], int]] = []
        self.made: dict[int, int] = {}  # id of the partial list -> id of the finished list
        self._alive: list[list[Any]] = []
        self._records: dict[Any, AppendOnlyList] = {}

    def has_compared(self, container: Any) -> bool:
        """Whether the latest comparison has covered all elements of a container."""
        return id(container) in self._seen and len(container) <= MANY

    def state(self, escaped: Iterable[Any], known: Container[int]) -> dict[Any, Any]:
        """Return the current state of the variables (see ``all_variables``)."""
        return all_variables((held for _, held, _ in self.making), escaped, known, self._records)

    def note_finished(self, held: list[Any], made: list[Any]) -> None:
        """Record that the partial list ``held`` of a comprehension has become the list ``made``."""
        held.clear()
        self._alive.append(held)
        self.made[id(held)] = id(made)

    def since(self, point: Any) -> frozenset[Any]:
        """Return the names that have changed since the last call for ``point``; the first time all names."""
        self._seen.clear()
        now = variables(self._seen)
        before = self._before.get(point, {})
        self._before[point] = now
        changed = {name for name, value in now.items() if name not in before or not _same(before[name], value)}
        if before and _is_long(before, now, changed):
            changed.add(_LONG)
        return frozenset(_grown(name, before) for name in changed | (before.keys() - now.keys()))


def is_suspended() -> bool:
    """Whether a generator or coroutine is among the program's frames."""
    return any(frame.f_code.co_flags & _SUSPENDING for frame in frames_of_program())


def _same(one: Any, other: Any) -> bool:
    return one is other or (
        type(one) is type(other) and is_one_of(type(one), _VALUES) and token_of(one) == token_of(other)
    )


def is_settled(changes: Sequence[frozenset[Any]]) -> bool:
    """Whether the set of changing variables no longer grows, elements of growing containers aside.

    A chain adds a variable in each iteration, without a pause, until all of it changes. A chain that still holds values
    from before the loop after ``KEPT`` iterations never counts as settled: the program may read them.
    """
    if any(_LONG in names for names in changes):
        return False
    settled = [
        all(_is_in_new(name, earlier) for name in later - earlier) for earlier, later in itertools.pairwise(changes)
    ]
    return not settled or (settled[-1] and sorted(settled) == settled)


def _is_long(before: dict[Any, Any], now: dict[Any, Any], changed: Iterable[Any]) -> bool:
    """Whether variables carry tensors over more than ``KEPT`` iterations: ``a, b, c, d = b, c, d, x``."""
    held: dict[int, list[Any]] = {}
    for name, value in before.items():
        if len(name) == 2 and isinstance(value, torch.Tensor):  # a variable, not an element
            held.setdefault(id(value), []).append(name)
    names = {name for name in changed if len(name) == 2 and isinstance(now.get(name), torch.Tensor)}
    for _ in range(KEPT):
        names = {one for name in names for one in held.get(id(now.get(name)), ()) if one != name}
    return bool(names)


def _is_in_new(name: tuple[Any, ...], earlier: frozenset[Any]) -> bool:
    return any((*name[: end - 1], "more") in earlier for end in range(4, len(name) + 1, 2))


def _grown(name: Any, before: Any) -> Any:
    """Return the name. For content of a new element of a list or dictionary, return that the container has grown."""
    if name not in before:
        for end in range(4, len(name) + 1, 2):
            if name[end - 2] in ("list", "dict") and name[:end] not in before:
                return (*name[: end - 1], "more")
    return name
