"""Watch computations and lookups of the program's own code on untraced values, which may depend on the iteration.

Each is recorded with a description that can be compared between iterations.
"""

from __future__ import annotations

import collections
import operator
from collections.abc import Sequence
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.errors import Place
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.rewrite import Site
from torchjanus.semantics.known.trusted import is_installed
from torchjanus.semantics.watch.loops.iteration_values import integers, is_all_but_few, reals, total_of, where
from torchjanus.semantics.watch.loops.untraced_values import structure_of
from torchjanus.semantics.watch.objects.state import Part, WatchState
from torchjanus.trace.facts import NumberPredicate
from torchjanus.trace.loops.records import ByIteration, UntracedComputation
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, Traced, depends_on, plain, trace_value

__all__ = ["UntracedValues", "are_alike", "text_of_counter"]

_HOLDERS = (list, dict, set, collections.deque)
_HOLDING = (tuple, list, dict)
_WHOLE = (slice(None), slice(None, None, -1))  # all elements, in either order
_COUNTED = (*_HOLDERS, tuple, map, filter, zip, enumerate)


def _is_fetched(value: Any) -> bool:
    return isinstance(value, Traced) and depends_on(value.expr, Fetch)


def _is_plain(part: Any) -> bool:
    return type(part) is torch.Tensor and not part.requires_grad


def _are_pairs(over: Sequence[Any]) -> bool:
    """Whether these are tuples, lists or dictionaries of plain tensors with the same class and keys."""
    if not is_one_of(type(over[0]), (tuple, list, dict)) or any(type(one) is not type(over[0]) for one in over):
        return False
    keys = {tuple(one) if type(one) is dict else len(one) for one in over}
    return len(keys) == 1 and all(_is_plain(p) for one in over for p in (one.values() if type(one) is dict else one))


def are_alike(over: Sequence[Any]) -> bool:
    """Whether these are all plain tensors, or containers of plain tensors with one structure."""
    with torch._C.DisableTorchFunction():
        return bool(over) and (all(map(_is_plain, over)) or _are_pairs(over))


class UntracedValues(Part):
    """Computations of the program's own code on untraced values, and the induction variables of the active loops."""

    def __init__(self, state: WatchState) -> None:
        super().__init__(state)
        self.counters: dict[int, int] = {}  # current induction variables, by id of the loop's record
        self._indexed_lists: dict[int, Any] = {}  # by id: old lists that iterations index by their number
        # By id: untraced floats that the program has computed and may pass to a library.
        self._float_results: dict[int, float] = {}

    def note_given(self, at: Site, values: tuple[Any, ...]) -> None:
        """Record untraced numbers that native code gets and does not only compute a number of."""
        whole, others = tuple(integers(values)), tuple(reals(values))
        if (whole or others) and not self.in_library(at):
            trace = self.recording.trace
            trace.given.append(UntracedComputation(len(trace.events), whole, reals=others))

    def note_length(self, at: Site, holder: Any) -> None:
        """Record that the program reads the length of its own container: it may equal the number of iterations."""
        if self.recording.owner(holder) is None and not self.in_library(at):
            self.recording.trace.measured = len(self.recording.trace.events)
            self.note_counted(at, (holder,))

    def note_counted(self, at: Site, values: Any) -> None:
        """Record containers of the program whose length may have influenced a result."""
        trace = self.recording.trace
        for value in values:
            if is_one_of(type(value), _COUNTED) and self.recording.owner(value) is None and not self.in_library(at):
                held = len(value) if is_one_of(type(value), _HOLDERS) or type(value) is tuple else -1
                trace.counted.append((len(trace.events), self.recording.place, held))

    def kept(self, holder: Any) -> AccessPath | None:
        """Return the access path of a container that this run has not changed, or None."""
        return None if self.recording.is_written(holder) else self.recording.owner(holder)

    def note_untraced(
        self,
        at: Site,
        *values: Any,
        made: bool = False,
        total: int | None = None,
        structure: Any = None,
        lookup: bool = False,
        compared: str = "",
    ) -> None:
        """Record a computation of the program's own code on untraced values. Values derived from fetches are traced and
        therefore skipped, unless untraced numbers were ``made`` of them."""
        if not made and _hold_tensors(values):
            return
        if not self.in_library(at) or self._have_recorded_floats(values):
            trace = self.recording.trace
            whole, others = tuple(integers(values)), tuple(reals(values))
            trace.plain.append(
                UntracedComputation(len(trace.events), whole, total, structure, others, where(at), lookup, compared)
            )

    def note_result(self, at: Site, values: tuple[Any, ...], result: Any) -> None:
        """Record an untraced float result: computations of libraries on it are recorded, too."""
        if type(result) is float and (not self.in_library(at) or self._have_recorded_floats(values)):
            self._float_results[id(result)] = result

    def _have_recorded_floats(self, values: tuple[Any, ...]) -> bool:
        known = self._float_results
        return any(type(value) is float and id(value) in known for value in values)

    def note_values(self, at: Site, what: str, *values: Any, total: int | None = None, compared: str = "") -> None:
        """Record a computation whose result depends on the values only."""
        if not _hold_tensors(values):
            structure = structure_of((what, values), self.kept)
            self.note_untraced(at, *values, total=total, structure=structure, compared=compared, made=True)

    def note_made(self, at: Site, what: str, *values: Any, total: int | None = None) -> None:
        """Record a computation on untraced values; on traced numbers its result is traced anyway."""
        for value in values:
            if isinstance(value, Traced):
                return
        self.note_values(at, what, *values, total=total)

    def in_library(self, at: Site | None) -> bool:
        return is_installed(self.recording.place.file if at is None else at.file)

    def note_operation(self, at: Site, op: str, a: Any, b: Any) -> None:
        """Record a binary operation on untraced values."""
        self.note_made(at, op, a, b, total=total_of(op, a, b))

    def note_compare(self, at: Site, op: str, a: Any, b: Any) -> None:
        if op not in ("is", "is not") or type(plain(a)) is type(plain(b)) is int:  # small integers are unique objects
            compared = op if op not in ("is", "is not") and type(a) is type(b) is int else ""
            self.note_values(at, {"is": "==", "is not": "!="}.get(op, op), a, b, compared=compared)
            self.note_counted(at, (a, b))

    def note_truth(self, at: Site, value: Any) -> None:
        if not isinstance(value, bool | torch.Tensor | type(None)):
            self.note_values(at, "truth", value)

    def is_counter(self, value: Any) -> bool:
        """Whether a value equals the induction variable of an active loop."""
        return type(value) is int and value in self.counters.values()

    def _structure_of_item(self, obj: Any, key: Any) -> Any:
        """Return the description of a lookup, or None. Equal ones give equal elements or loop-carried values."""
        if is_one_of(type(obj), (str, bytes)):
            return structure_of(("item", obj, key), self.kept)
        if type(obj) is torch.Size and all(isinstance(part, Traced) for part in obj):
            return structure_of(("item", key), self.kept)  # a traced size
        access_path = self.kept(obj)
        if access_path is not None:
            return structure_of(("item", access_path.token, key), self.kept)
        known = type(obj) is tuple or (
            is_one_of(type(obj), (list, dict)) and self.recording.variable_changes.has_compared(obj)
        )
        return structure_of(("item", key), self.kept) if known else None

    def _iteration_of(self, obj: Any, key: Any) -> ByIteration | None:
        """Return the offsets of an index from the active induction variables, if the element is or holds a tensor; else
        None."""
        counters = self.counters
        if type(key) is not int or not is_one_of(type(obj), (list, tuple)) or not counters or not 0 <= key < len(obj):
            return None
        kept = self.kept(obj) is not None
        if not issubclass(type(obj[key]), torch.Tensor) and not (kept and is_one_of(type(obj[key]), _HOLDING)):
            return None
        if kept:
            self._indexed_lists[id(obj)] = obj
        return ByIteration(tuple(key - iteration for iteration in counters.values()), self._structure_of_item(obj, key))

    def note_lengths(self, count: Expr, ended: int, place: Place) -> None:
        """Record that lists from before the call, indexed by the iterations of a loop that has ended, have the loop's
        trip count as length. ``ended``: the number of the iteration that would follow."""
        for obj in [*self._indexed_lists.values()]:
            if len(obj) == ended and (access_path := self.kept(obj)) is not None and are_alike(obj):
                length = Read(access_path.then(Step.LEN))
                if length.token != count.token:
                    self.natives.whole_length(obj)
                    self.recording.note(NumberPredicate(Apply(operator.eq, (count, length)), True, place))
        self._indexed_lists.clear()

    def note_item(self, at: Site, obj: Any, key: Any) -> None:
        """Record that an item is about to be read."""
        if type(key) is not str and not (type(key) is int and key == -1):
            if isinstance(obj, torch.Tensor):
                self.note_untraced(at, obj)
            elif (iteration := self._iteration_of(obj, key)) is not None:
                self.note_untraced(at, key, structure=iteration, lookup=True)
            else:
                self.note_untraced(at, key, structure=self._structure_of_item(obj, key))

    def note_changed_item(self, at: Site, obj: Any, key: Any) -> None:
        """Record that an item is about to be set or deleted: nothing else tells which item of a new container it is."""
        if isinstance(obj, list | dict | collections.deque) and self.recording.owner(obj) is None:
            self.note_item(at, obj, key)
        self.note_part(at, obj, key)

    def note_part(self, at: Site, obj: Any, key: Any, part: Any = None) -> None:
        """Record that a slice of a list is read or changed: its elements may depend on the length. A slice without a
        constant number of elements at the ends has a symbolic length and needs no record."""
        if type(key) is not slice or not isinstance(obj, list | tuple) or key in _WHOLE:
            return
        count = self.framework.sizes.count
        if part is None or not is_all_but_few(key) or count(obj) is None or count(part) is None:
            self.note_length(at, obj)


def _hold_tensors(values: tuple[Any, ...]) -> bool:
    """Whether a value is a tensor, or was fetched from one: what is computed of it is recorded anyway."""
    for value in values:  # noqa: SIM110 - quicker than a generator
        if isinstance(value, torch.Tensor) or _is_fetched(value):
            return True
    return False


def text_of_counter(text: str, value: int, spec: str) -> str:
    """Return the formatted text of an induction variable as a traced text."""
    shown: str = trace_value(text, Apply(format, (InductionVariable(value), spec)))
    return shown
