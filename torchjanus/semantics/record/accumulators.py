"""Keep the accumulators of a step that recursive calls update: in objects, and in variables and containers of the step.

The step sets an accumulator, its calls update it, and the step reads it after them. A first run finds out which places
are accumulators, and is refused. This module knows no hooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torchjanus.core.access_path import AccessPath
from torchjanus.core.errors import Refusal
from torchjanus.core.kinds import is_one_of, isinstance
from torchjanus.semantics.record.accumulator import AFTER, Accumulator, LocalAccumulator, ObjectAccumulator
from torchjanus.semantics.record.places import Item
from torchjanus.trace.actions import HeapWrite, InvokeOp, place_of
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.recipes import Constant, Number, Recipe
from torchjanus.trace.rewriting import TraceRewriter
from torchjanus.trace.values import Read, Traced, leaves, plain

__all__ = ["Accumulators"]

_KINDS = (int, float)


class Accumulators:
    """The accumulators of one step. ``known``: by place over all runs whether it sums tensors; ``new``: the places that
    this run has added."""

    def __init__(self, known: dict[Any, bool] | None = None) -> None:
        self._known: dict[Any, bool] = {} if known is None else known
        self._open: dict[tuple[int, Any], ObjectAccumulator] = {}
        self._local: dict[Any, LocalAccumulator] = {}
        self._now: list[LocalAccumulator] = []  # those that the active calls may update
        self._left: list[LocalAccumulator] = []  # those whose place the step has overwritten
        self._counted: list[LocalAccumulator] = []  # those that are numbers
        self._root: Any = None  # the recursive function that the step calls
        self._places: dict[Any, tuple[Any, Any]] = {}  # places shared with it: token and value at its begin
        self._read_places: set[tuple[int, Any]] = set()
        self._over = False
        self.new: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._open or self._local or self._left)

    def at(self, container: Any, key: Any) -> ObjectAccumulator | None:
        """Return the open accumulator at a place of an object, or None."""
        return self._open.get((id(container), key))

    def keys_of(self, container: Any) -> set[Any]:
        """Return the keys of a container's open accumulators."""
        return {key for where, key in self._open if where == id(container)}

    def begin(self, recording: Any, places: Iterable[Any] = (), root: Any = None) -> Iterator[Accumulator]:
        """Open and yield the accumulators, since the step calls ``root``. ``places``: those that both share."""
        for container, key, value in () if self._over else list(recording.own_writes()):
            where, stored = (id(container), key), recording.last_store(container, key)
            tensors = None if stored is None else self._known.get(place_of(stored).token)
            if where not in self._open:
                if stored is None or tensors is None or self._is_unsuited(recording, value, tensors):
                    continue
                begun = len(recording.trace.events)
                at = (id(container), stored.key)
                self._open[where] = ObjectAccumulator(
                    at, value, plain(value), tensors, begun=begun, container=container, stored=stored
                )
            yield self._open[where]
        self._now.clear()
        if not self._over:
            yield from self._begin_local(recording, list(places), root)

    def _begin_local(self, recording: Any, places: list[Any], root: Any) -> Iterator[LocalAccumulator]:
        self._root = root
        self._places = {place: (place.token, place.get()) for place in places}
        for place, (token, value) in self._places.items():
            accumulator = self._local.get(place)
            if accumulator is None or value is not accumulator.given:  # new, or overwritten by the step
                self._left += [] if accumulator is None else [self._local.pop(place)]
                tensors = self._known.get((root, token))
                if tensors is None or self._is_unsuited(recording, value, tensors):
                    continue
                begun = len(recording.trace.events)
                accumulator = LocalAccumulator(token, value, plain(value), tensors, begun=begun, place=place)
                self._local[place] = accumulator
                self._counted += [] if tensors else [accumulator]
            self._now.append(accumulator)
            yield accumulator

    def is_local_accumulator(self, place: Any) -> bool:
        """Whether active calls may update this place."""
        return any(accumulator.place == place for accumulator in self._now)

    def give(self, recording: Any) -> None:
        """Put the current values in place, since a call begins or resumes."""
        for accumulator in self._now:
            accumulator.give(recording)

    def take(self, recording: Any) -> bool:
        """Record a call's updates, since it ends or makes a call. Return False if one is no addition or update."""
        for accumulator in self._now:
            if not accumulator.take(recording):
                if (
                    isinstance(accumulator.place.get(), torch.Tensor) and not accumulator.tensors
                ):  # a sum of tensors that starts as a number
                    self._known[self._root, accumulator.key] = True
                    self.new.append(accumulator.place.name)
                return False
        return True

    def after(self, recording: Any) -> None:
        """Put in place what the step sees after one of its calls."""
        for accumulator in self._now:
            accumulator.after(recording)

    def meet(self, recording: Any, tensor: torch.Tensor) -> None:
        """Close the sum that ``tensor`` is, if any, since the step uses it."""
        for accumulator in (*self._local.values(), *self._left):
            if accumulator.tensors and accumulator.version and accumulator.now is tensor:
                self._local = {place: other for place, other in self._local.items() if other is not accumulator}
                self._left = [other for other in self._left if other is not accumulator]
                accumulator.close(recording)

    def changed_in_call(self, tensor: torch.Tensor) -> None:
        """Learn accumulators from a call that changes a tensor of the step in place."""
        for place in [place for place in self._places if place.holds(tensor)]:
            self.set_in_call(place, tensor)

    def changed_container(self, container: Any) -> None:
        """Learn accumulators from a call that changes a list which the step has passed to it."""
        for place, (_, value) in list(self._places.items()):
            if (
                isinstance(place, Item)
                and place.container is container
                and is_one_of(type(value), (int, float, torch.Tensor))
            ):
                self.set_in_call(place, value)

    def set_in_call(self, place: Any, value: Any) -> None:
        """Learn an accumulator from a call that writes, or may write, to a shared place."""
        token, before = self._places.get(place, (None, None))
        tensors = isinstance(value, torch.Tensor)
        fitting = (int, float, torch.Tensor) if tensors else (type(plain(value)),)
        if token is None or not is_one_of(type(plain(before)), fitting) or (self._root, token) in self._known:
            return
        if tensors or is_one_of(type(plain(value)), _KINDS):
            self._known[self._root, token] = tensors
            self.new.append(place.name)

    def _is_unsuited(self, recording: Any, value: Any, tensors: bool) -> bool:
        if isinstance(value, torch.Tensor):
            return not tensors or type(value) is not torch.Tensor or recording.number(value) is None
        if isinstance(value, Traced) and not tensors:  # the host needs it before it traverses the calls
            found = [leaf.access_path for leaf in leaves(value.expr) if isinstance(leaf, Read)]
            known = len(found) == len(list(leaves(value.expr)))
            return not known or any(access_path.waits_for or access_path.is_grown for access_path in found)
        return not is_one_of(type(plain(value)), _KINDS)

    def give_up(self) -> None:
        """Drop all accumulators, since no graph will be made. The heap keeps the untraced values."""
        self._open.clear()
        for accumulator in self._local.values():
            accumulator.leave()
        self._local.clear()
        self._left.clear()
        self._now.clear()
        self._over = True

    def asked(self, container: Any, key: Any, stored: HeapWrite | None) -> bool:
        """Learn from a call's read of what the step has written. Return whether it is a known accumulator."""
        self._read_places.add((id(container), key))
        if stored is None:
            return False
        if is_one_of(type(plain(stored.value)), _KINDS):  # a call may use the number that it finds when it begins
            self._know(place_of(stored), False)
        return not self.new and place_of(stored).token in self._known

    def _know(self, place: AccessPath, tensors: bool) -> None:
        known = self._known.get(place.token)
        if known is None or (tensors and not known):
            self._known[place.token] = tensors
            self.new.append(str(place))

    def adds(self, stored: HeapWrite) -> None:
        """Learn that calls add tensors to a number."""
        self._know(place_of(stored), True)

    def learn(self, container: Any, key: Any, stored: HeapWrite | None, value: Any) -> None:
        """Learn an accumulator from a call's write to a place that calls have read."""
        tensors = isinstance(value, torch.Tensor)
        if stored is None or (id(container), key) not in self._read_places:
            return
        if tensors or is_one_of(type(plain(value)), _KINDS):
            self._know(place_of(stored), tensors)

    def close(self, recording: Any, container: Any, key: Any) -> None:
        """Close the accumulator at a place, since the step reads or overwrites it."""
        accumulator = self._open.pop((id(container), key), None)
        if accumulator is not None:
            accumulator.close(recording)

    def close_all(self, recording: Any) -> None:
        """Close all accumulators, since the step has ended."""
        for container, key in [(accumulator.container, key) for (_, key), accumulator in self._open.items()]:
            self.close(recording, container, key)
        for accumulator in (*self._local.values(), *self._left):
            accumulator.close(recording)

    def starts(self, lists: Any) -> tuple[tuple[int, Recipe], ...]:
        """Return the start values of the number accumulators, by index of their output lists."""
        return tuple((lists.number_of(t.terms), _start_of(t)) for t in self._found() if not t.tensors)

    def _found(self) -> Iterator[Accumulator]:
        """Yield the accumulators that active calls may update."""
        yield from self._open.values()
        yield from self._now

    def entered(self) -> dict[int, int]:
        """Return the versions of the number accumulators, by ``id``, at the begin of a call."""
        return {id(accumulator): accumulator.version for accumulator in self._found() if not accumulator.tensors}

    def settled(self, trace: Trace) -> Trace:
        """Return the trace with reads after the last call resolved to the final numbers. Earlier reads are refused."""
        counted = [accumulator for accumulator in self._counted if accumulator.seen]
        return _Settled(trace, counted).trace() if counted and not trace.refusals else trace


def _start_of(accumulator: Accumulator) -> Recipe:
    start = accumulator.start
    return Number(start.expr) if isinstance(start, Traced) else Constant(start)


class _Settled(TraceRewriter):
    """Resolves the step's last read of each number accumulator to its final value."""

    def __init__(self, old: Trace, counted: Iterable[LocalAccumulator]) -> None:
        super().__init__(old)
        self.last = {accumulator.seen_at(accumulator.seen): accumulator for accumulator in counted}
        self.used: dict[AccessPath, LocalAccumulator] = {}
        self.stale = False

    def trace(self) -> Trace:
        """Return the rewritten trace. It has a refusal if the step uses a number between two calls."""
        events = [self.event(event, 0) for event in self.old.events]
        made = self.made(events, outline=self.old.outline)
        for access_path, accumulator in self.used.items():
            made.events.append(HeapRead(access_path, accumulator.now, "number"))
        if self.stale:
            what = "the step uses a number between recursive calls that count it"
            why = "It is known when all calls have been followed."
            calls = [event for event in made.events if isinstance(event, InvokeOp)]
            refusal = Refusal(
                "recursion-accumulator", what, why, "Use it when the last of them is over.", calls[-1].place
            )
            for trace in (made, *(event.call for event in calls)):
                trace.refusals.append(refusal)
        return made

    def expr(self, expr: Any) -> Any:
        access_path = expr.access_path if isinstance(expr, Read) else None
        if access_path is None or not access_path.is_grown or not str(access_path.key).startswith(AFTER):
            return super().expr(expr)
        accumulator = self.last.get(access_path)
        if accumulator is None:
            self.stale = True
            return expr
        assert access_path.base is not None
        self.used[access_path.base] = accumulator
        return Read(access_path.base)
