"""Watch loops that read numbers from lists element by element: as rows of a tensor, where ``columns`` selects the list.

The trace looks as if the program had a tensor there and fetched its elements.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.containers.number_rows import MAKING, column_of, made_as
from torchjanus.semantics.watch.loops.counted import ForLoops
from torchjanus.semantics.watch.objects.state import Part, WatchState

__all__ = ["NumberLists"]

LoadItem = Callable[[Site, Any, Any], Any]
_OVER_ZIP = re.compile(r"\bin\s+zip\s*\(")


class NumberLists(Part):
    """Lists of numbers that are read as tensors."""

    def __init__(self, state: WatchState, loops: ForLoops, load_item: LoadItem) -> None:
        """``load_item`` reads an item of a list that stays one."""
        super().__init__(state)
        self.loops = loops
        self.untraced = loops.untraced
        self._load_item = load_item
        self._zipped: dict[int, tuple[Any, dict[int, Any], bool]] = {}  # by id of a zip: it, its lists, whether all are
        self._columns: dict[int, tuple[Any, torch.Tensor | None]] = {}  # by id of a list: it, and its tensor

    def element(self, at: Site, obj: Any, key: Any) -> Any:
        """Return an item of a list that is read as a tensor, None for other items."""
        if not (
            type(key) is int
            and is_one_of(type(obj), (list, tuple))
            and 0 <= key < len(obj)
            and self._is_active_loop(at)
        ):
            return None
        self.at(at)
        access_path = self.untraced.kept(obj)
        if self.recording.is_written(obj):
            self.state.columns.hold(self.recording.place)
        elif (
            access_path is not None
            and not access_path.waits_for
            and self.state.columns.record_read(self.recording.place, obj, key)
        ):
            column = self._column(access_path, obj)
            if column is not None:
                return self._element(at, column, key)
        return None

    def native_iter(self, at: Site, obj: Any) -> Any:
        """Iterate over a list, or over several at once: ``for x_t, flag in zip(x, flags)``."""
        if is_one_of(type(obj), (list, tuple)) and self._may_take(at):
            self.at(at)
            if (rows := self._rows(obj, 0)) is not None:
                self.loops.over = None
                count = self.framework.sizes.count(rows)
                iterations = self.loops.iterations(self.recording.place, iter(rows), count)
                return self._taken(at, ((row,) for row in iterations), {0: obj}, alone=True)
        iterations = self.loops.native_iter(at, obj)
        if type(obj) is zip and id(obj) in self._zipped:
            _, lists, whole = self._zipped[id(obj)]
            return self._taken(at, iterations, lists, whole=whole)
        return iterations

    def _taken(
        self, at: Site, iterations: Iterator[Any], lists: dict[int, Any], alone: bool = False, whole: bool = False
    ) -> Iterator[Any]:
        """Yield the items with the rows replaced by fetched values. Each iteration fetches from a clone of its row.
        Lists that the iterations write are read in their current state. ``alone``: one list without ``zip``; ``whole``:
        all operands of the ``zip`` are lists."""
        count = 0
        for count, item in enumerate(iterations, 1):
            if any(count > len(one) for one in lists.values()):
                return
            item = tuple(
                self._present(at, lists[n], count - 1, part) if n in lists else part for n, part in enumerate(item)
            )
            yield item[0] if alone else item
        while (alone or whole) and all(count < len(one) for one in lists.values()):
            item = tuple(self._load_item(at, one, count) for one in lists.values())
            count += 1
            yield item[0] if alone else item

    def _present(self, at: Site, container: Any, key: int, row: torch.Tensor) -> Any:
        """Return the current element of a list."""
        if self.recording.is_written(container):
            return self._load_item(at, container, key)
        return self._value(at, row.clone())

    @staticmethod
    def _is_direct(at: Site) -> bool:
        """Whether the ``zip`` is called in the loop header, so that only the loop holds it."""
        return bool(_OVER_ZIP.search(linecache.getline(at.file, at.line)))

    def rows_to_zip(self, at: Site, fn: Any, args: Any, kwargs: Any) -> dict[int, tuple[torch.Tensor, ...]]:
        """Return, by number, the rows of the operands of a ``zip`` that are read as tensors."""
        if fn is not zip or kwargs or not self._may_take(at) or not self._is_direct(at) or not _is_even(args):
            return {}
        self.at(at)
        lists = ((n, part) for n, part in enumerate(args) if is_one_of(type(part), (list, tuple)))
        return {n: found for n, part in lists if (found := self._rows(part, n)) is not None}

    def note_zip(self, made: Any, args: Any, rows: dict[int, tuple[torch.Tensor, ...]]) -> None:
        """Record which operands of a ``zip`` are rows of tensors."""
        self._zipped[id(made)] = (made, {n: args[n] for n in rows}, len(rows) == len(args))

    def tensor_of(self, at: Site, fn: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
        """Return ``torch.tensor(words)`` of a list that is read as a tensor, None for other calls."""
        if is_one_of(fn, MAKING) and len(args) == 1 and is_one_of(type(args[0]), (list, tuple)) and self._may_take(at):
            self.at(at)
            kind = type(args[0][0]) if args[0] else None
            dtype = made_as(kind, **kwargs)
            access_path = None if dtype is None else self._changing(args[0], fn)
            column = None if access_path is None else self._column(access_path, args[0])
            if column is not None:
                # torch.tensor() converts integers to floats through double.
                wide = column.double() if kind is int and dtype.is_floating_point else column
                return wide.to(dtype, copy=True)
        return None

    def _changing(self, container: Any, number: Any) -> AccessPath | None:
        """Return the access path of a list, if other runs have seen lists of other lengths or values in its place."""
        place = (self.recording.place, number)
        if self.recording.is_written(container):
            self.state.columns.hold(place)
            return None
        access_path = self.untraced.kept(container)
        changing = [self.state.columns.record_read(place, container, key) for key in (0, 1)]  # all elements are read
        return access_path if access_path is not None and not access_path.waits_for and all(changing) else None

    def _rows(self, container: Any, number: int) -> tuple[torch.Tensor, ...] | None:
        """Return the elements of a list as rows of a tensor, None where the list stays a list. ``number``: its index
        among the operands of the loop."""
        access_path = self._changing(container, number)
        column = None if access_path is None else self._column(access_path, container)
        if column is None:
            return None
        self.state.columns.used.add((self.recording.place, number))
        rows: tuple[torch.Tensor, ...] = column.unbind(0)
        return rows

    def _value(self, at: Site, row: torch.Tensor) -> Any:
        """Return a row as a fetched number."""
        self.at(at)
        return bool(row) if row.dtype == torch.bool else row.item()

    def _is_active_loop(self, at: Site) -> bool:
        """Whether a loop with an induction variable is active."""
        return bool(self.untraced.counters) and self._may_take(at)

    def _may_take(self, at: Site) -> bool:
        """Whether lists may become tensors here. Iterations that make recursive calls are calls themselves, with what
        they read from lists as arguments."""
        return self.state.outer is None and not self.state.recursions.known and not self.untraced.in_library(at)

    def _column(self, access_path: AccessPath, container: Any) -> torch.Tensor | None:
        """Return the tensor of a list, None if its elements do not fit into one."""
        known = self._columns
        if id(container) not in known:
            try:
                made = self.recording.found(access_path.then(Step.OF, column_of), column_of(container))
            except TypeError:
                made = None
            known[id(container)] = (container, made)
        return known[id(container)][1]

    def _element(self, at: Site, column: torch.Tensor, key: int) -> Any:
        """Return an element of the tensor as a fetched number."""
        self.state.columns.used.add(self.recording.place)
        return self._value(at, column[key])


def _is_even(parts: tuple[Any, ...]) -> bool:
    """Whether all parts are lists and tensors of equal length."""
    with torch._C.DisableTorchFunction():
        known = [
            is_one_of(type(part), (list, tuple)) or (isinstance(part, torch.Tensor) and part.dim() > 0)
            for part in parts
        ]
        return all(known) and len({len(part) for part in parts}) == 1
