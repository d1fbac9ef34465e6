"""Watching loops whose trip count is a number or a size: where each round begins, and whether rounds could tell which
of them they are.

A loop can be run for another number of rounds only if no round computes with plain Python numbers: those would be
others in rounds that have not been seen. Knows nothing of what is made of a loop.
"""

from __future__ import annotations

import collections
import linecache
import re
from collections.abc import Iterator
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.origin import Step
from torchjanus.rewrite import Site
from torchjanus.semantics.rebinding import is_settled
from torchjanus.semantics.trusted import is_installed
from torchjanus.semantics.watch_foreign import ForeignWatch
from torchjanus.trace.events import Loop, Plain, Rounds, Trips, Turns
from torchjanus.trace.values import Expr, Fetch, Read, Traced, leaves

__all__ = ["RoundWatch"]

_OVER_RANGE = re.compile(r"\bin\s+range\s*\(")
_PLAIN = (int, float, complex, str, bytes)
_HOLDERS = (list, dict, set, collections.deque)


def _is_fetched(value: Any) -> bool:
    return isinstance(value, Traced) and any(isinstance(leaf, Fetch) for leaf in leaves(value.expr))


def _integers(values: Any) -> Iterator[int]:
    """The plain integers among the values, and in containers among them."""
    for value in values:
        if type(value) is int:
            yield value
        elif type(value) in (list, tuple):
            yield from _integers(value)
        elif type(value) is slice:
            yield from _integers((value.start, value.stop, value.step))


def _sum(op: str, a: Any, b: Any) -> int | None:
    return a + b if op in ("+", "+=") and type(a) is int and type(b) is int else None


class RoundWatch(ForeignWatch):
    """The leaves, as far as rounds are concerned."""

    _over: Any = None  # what the loop that begins next iterates over
    _ranges: dict[int, tuple[range, Expr]]

    def iterate(self, at: Site, iterable: Any) -> Any:
        self._over = iterable
        return super().iterate(at, iterable)

    def native_iter(self, at: Site, obj: Any) -> Any:
        self.at(at)
        over, self._over = self._over, None
        count = self._count(at, over)
        span = over if type(over) is range else None
        return self._rounds(self.recording.place, iter(self.natives.iterable(obj)), count, span)

    def _count(self, at: Site, over: Any) -> Expr | None:
        """How many rounds there will be, if that is a number from before the call, or computed of one."""
        if type(over) is range:
            known = self.__dict__.get("_ranges", {}).get(id(over))
            direct = at is not None and _OVER_RANGE.search(linecache.getline(at.file, at.line))
            return known[1] if known is not None and direct else None
        if isinstance(over, torch.Tensor):
            origin = self.recording.owner(over)
            if origin is None or not self.recording.is_as_before(over):
                return None
            size = origin.then(Step.SIZE, 0)
            with torch._C.DisableTorchFunction():
                self.recording.found(size, over.shape[0])
            return Read(size)
        return None

    def _rounds(
        self, place: Place, iterator: Iterator[Any], count: Expr | None = None, span: range | None = None
    ) -> Iterator[Any]:
        starts: list[int] = []
        trace = self.recording.trace
        events, before = trace.events, len(trace.plain)
        turns = Turns(starts, span, before)
        trace.turns.append(turns)
        changes: list[frozenset[Any]] = []
        for item in iterator:
            starts.append(len(events))
            if count is not None:
                changes.append(self.recording.rebinding.since(id(turns)))
            yield item
        self.recording.note(Trips(len(starts), place))
        trace.loops.append(Loop(place, tuple(starts), len(events) - 1))
        turns.end = len(events) - 1
        if count is not None and len(trace.plain) == before and is_settled(changes[1:]):
            counters = () if span is None else ((span.start, span.step),)
            trace.rounds.append(Rounds(tuple(starts), len(events) - 1, count, counters))

    def note_call(self, at: Site, fn: Any, args: tuple[Any, ...], result: Any) -> None:
        """Native code was called, and gave this."""
        if fn is range and len(args) == 1 and isinstance(args[0], Traced):
            self.__dict__.setdefault("_ranges", {})[id(result)] = (result, args[0].expr)
        elif isinstance(result, _PLAIN) and not isinstance(result, Traced):
            self._note_plain(at, *args, made=True)
        elif fn is next or (isinstance(getattr(fn, "__self__", None), _HOLDERS) and fn.__name__ != "append"):
            self._note_plain(at, *args, made=True)  # what it gives depends on how often it was asked
        if fn is len and args and not isinstance(args[0], torch.Tensor):
            self._note_length(at, args[0])

    def _note_length(self, at: Site, holder: Any) -> None:
        """The program looks at how much a container of its own holds: that may be as much as there were rounds."""
        if self.recording.owner(holder) is None and not self._in_library(at):
            self.recording.trace.measured = len(self.recording.trace.events)

    def _note_plain(self, at: Site, *values: Any, made: bool = False, total: int | None = None) -> None:
        """The program's own code has computed with these: unless it was with tensors, it may know of rounds. What is
        made of numbers fetched from tensors is known as such, unless plain numbers were ``made`` of it."""
        if not made and any(isinstance(value, torch.Tensor) or _is_fetched(value) for value in values):
            return
        if not self._in_library(at):
            trace = self.recording.trace
            trace.plain.append(Plain(len(trace.events), tuple(_integers(values)), total))

    def _in_library(self, at: Site | None) -> bool:
        return is_installed(self.recording.place.file if at is None else at.file)

    def native_binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self._note_plain(at, a, b, total=_sum(op, a, b))
        return super().native_binary(at, op, a, b)

    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self._note_plain(at, a, b, total=_sum(op, a, b))
        return super().native_inplace(at, op, a, b)

    def native_unary(self, at: Site, op: str, a: Any) -> Any:
        self._note_plain(at, a)
        return super().native_unary(at, op, a)

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if op not in ("is", "is not"):
            self._note_plain(at, a, b)
        return super().native_compare(at, op, a, b)

    def native_format(self, at: Site, value: Any, spec: str) -> str:
        self._note_plain(at, value)
        return super().native_format(at, value, spec)

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        if type(key) is not str and not (type(key) is int and key == -1):
            self._note_plain(at, *((key,) if isinstance(obj, torch.Tensor) is False else (obj,)))
        if type(key) is slice and isinstance(obj, list | tuple):
            self._note_length(at, obj)
        return super().load_item(at, obj, key)

    def truth(self, at: Site, value: Any) -> bool:
        if not isinstance(value, bool | torch.Tensor | type(None)):
            self._note_plain(at, value)
        return super().truth(at, value)
