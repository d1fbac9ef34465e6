"""Watching loops whose trip count is a number or a size: where each round begins, and whether rounds could tell which
of them they are.

A loop can be run for another number of rounds only if no round computes with plain Python numbers: those would be
others in rounds that have not been seen. Knows nothing of what is made of a loop.
"""

from __future__ import annotations

import collections
import itertools
import linecache
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from torchjanus.errors import Place
from torchjanus.origin import Origin, Step, token_of
from torchjanus.rewrite import Site
from torchjanus.semantics.plain_values import told_of, told_of_call, told_of_look
from torchjanus.semantics.rebinding import is_settled, is_suspended
from torchjanus.semantics.round_states import state_of
from torchjanus.semantics.round_values import (
    by_turn,
    cut_by,
    integers,
    is_added,
    is_all_but_few,
    is_back,
    is_by_steps,
    is_from,
    is_statement,
    reals,
    total_of,
    where,
)
from torchjanus.semantics.trusted import is_installed
from torchjanus.semantics.watch_lists import ListWatch
from torchjanus.trace.events import Trips
from torchjanus.trace.facts import Held
from torchjanus.trace.plains import counted, sums
from torchjanus.trace.reckoning import reckoning
from torchjanus.trace.rounds import ByTurn, Frames, Loop, Plain, Rounds, Turns
from torchjanus.trace.values import Apply, Expr, Fetch, Read, Traced, Turn, leaves, plain, trace_value

__all__ = ["RoundWatch"]

_OVER_RANGE = re.compile(r"\bin\s+(reversed\s*\(\s*)?range\s*\(")
_PLAIN = (int, float, complex, str, bytes)
_HOLDERS = (list, dict, set, collections.deque)
_KEPT = frozenset({"append", "appendleft", "print"})  # what they are given is among what a round shows
_CLASSES = (isinstance, callable, id, type)  # they say nothing of what a container holds
_WHOLE = (slice(None), slice(None, None, -1))  # what there is, in either order
_HOLDING = (tuple, list, dict)
_REVERSED: tuple[type, ...] = (type(reversed(())), type(reversed([])))
_COUNTED = (*_HOLDERS, tuple, map, filter, zip, enumerate)


def _is_fetched(value: Any) -> bool:
    return isinstance(value, Traced) and any(isinstance(leaf, Fetch) for leaf in leaves(value.expr))


def _is_plain(part: Any) -> bool:
    return type(part) is torch.Tensor and not part.requires_grad


def _are_pairs(over: Sequence[Any]) -> bool:
    """Whether these are tuples, lists or dictionaries of plain tensors, all of one make."""
    if type(over[0]) not in (tuple, list, dict) or any(type(one) is not type(over[0]) for one in over):
        return False
    keys = {tuple(one) if type(one) is dict else len(one) for one in over}
    return len(keys) == 1 and all(_is_plain(p) for one in over for p in (one.values() if type(one) is dict else one))


def _are_alike(over: Sequence[Any]) -> bool:
    """Whether these are plain tensors, or hold such, in the same way."""
    with torch._C.DisableTorchFunction():
        return bool(over) and (all(map(_is_plain, over)) or _are_pairs(over))


def _held(over: Sequence[Any]) -> Iterator[Any]:
    """The list, and its elements that hold something themselves."""
    yield over
    yield from (one for one in over if type(one) in (list, dict))


class RoundWatch(ListWatch):
    """The leaves, as far as rounds are concerned."""

    _over: Any = None  # what the loop that begins next iterates over
    # Ranges, and what goes backwards: these, how many rounds they make, and by which numbers.
    _ranges: dict[int, tuple[Any, Expr, range | None]]
    _combined: dict[int, tuple[Any, tuple[Any, ...]]]  # enumerations and zips, and what they go over
    _counts: dict[int, tuple[Turns, Expr | None]]  # how many rounds loops have
    _counters: dict[int, int]  # plain integers that count the rounds of loops that are going on
    _looked_up: dict[int, Any]  # lists from before the call of which rounds look up elements by their numbers
    _reckoned: dict[int, float]  # plain floats that the program has computed, by which it may hand libraries a round's

    def iterate(self, at: Site, iterable: Any) -> Any:
        self._over = iterable
        return super().iterate(at, iterable)

    def native_iter(self, at: Site, obj: Any) -> Any:
        self.at(at)
        over, self._over = self._over, None
        own = over is not None and self.recording.owner(over) is None and not self._in_library(at)
        iterator = iter(self.natives.iterable(obj))
        if type(over) in (enumerate, zip) and id(over) in self._known("_combined"):
            return self._combined_rounds(at, self.recording.place, iterator, over)
        turned = self._known("_ranges").get(id(over))
        span = over if type(over) is range else None if turned is None else turned[2]
        return self._rounds(
            self.recording.place,
            iterator,
            self._pinned(over, self._count(at, over)),
            span,
            own and span is None,
            self.recording.owner(over),
        )

    def _known(self, name: str) -> dict[int, Any]:
        found: dict[int, Any] = self.__dict__.setdefault(name, {})
        return found

    def _count(self, at: Site, over: Any) -> Expr | None:
        """How many rounds there will be, if that is a number from before the call, or computed of one."""
        known: tuple[Any, Expr, range | None] | None = self._known("_ranges").get(id(over))
        if type(over) is range or (known is not None and known[2] is not None):
            direct = at is not None and _OVER_RANGE.search(linecache.getline(at.file, at.line))
            return known[1] if known is not None and direct else None
        if known is not None:
            return known[1]
        if type(over) in (list, tuple):
            if (parts := self.framework.sizes.count(over)) is not None:
                return parts
            listed = self.recording.owner(over)
            unwritten = _are_alike(over) and listed is not None and not any(map(self.recording.is_written, _held(over)))
            return Read(listed.then(Step.LEN)) if unwritten and listed is not None else None
        if isinstance(over, torch.Tensor):
            return self.framework.sizes.count(over)
        return None

    def _pinned(self, over: Any, count: Expr | None) -> Expr | None:
        """The number of rounds of a loop through a list of the run's own; like every loop it says that it has as many,
        as long as it is not told."""
        own = type(over) in (list, tuple) and self.recording.owner(over) is None
        if count is not None and (own or type(over) in _REVERSED):
            length = trace_value(operator.length_hint(over), count)
            self.recording.pin(length, "the length decides how often a loop goes round")
        return count

    def _rounds(
        self,
        place: Place,
        iterator: Iterator[Any],
        count: Expr | None = None,
        span: range | None = None,
        free: bool = False,
        origin: Origin | None = None,
        alone: bool = True,
    ) -> Iterator[Any]:
        """``alone``: nobody else watches the same rounds."""
        starts: list[int] = []
        plains: list[int] = []  # how much had been computed with plain numbers before each round
        given: list[int] = []  # how much native code was given
        trace = self.recording.trace
        events, before = trace.events, len(trace.plain)
        turns = Turns(starts, span, before, own=free, origin=origin)
        trace.turns.append(turns)
        self._known("_counts")[id(turns)] = (turns, count)
        changes: list[frozenset[Any]] = []
        states: list[dict[Any, Any]] = []
        # What goes on between the rounds of a generator, and what one holds, is in no variable.
        own = not is_installed(place.file) and (count is not None or span is not None) and not is_suspended()
        turn = None
        for item in iterator:
            starts.append(len(events))
            plains.append(len(trace.plain))
            given.append(len(trace.given))
            if own:
                states.append(state_of(self.recording.rebinding))
            if count is not None:
                done = {len(starts) - 2, turn}
                changed = self.recording.rebinding.since(id(turns))
                changes.append(frozenset(by_turn(name, done) for name in changed))
            if span is not None:
                turn = self._known("_counters")[id(turns)] = item
            turns.given.append(tuple(self._not_found(item)))
            yield item
        self._known("_counters").pop(id(turns), None)
        plains.append(len(trace.plain))
        given.append(len(trace.given))
        counting = counted([trace.plain[a:b] for a, b in itertools.pairwise(plains)]) is None
        if own and (counting or any(starts[:1] <= [position] for position in reversed(trace.changed))):
            states.append(state_of(self.recording.rebinding))
            steps = () if span is None else ((span.start, span.step),)
            found = Frames(
                tuple(starts), len(events), tuple(states), None if is_back(span) else count, steps, place,
                tuple(plains), tuple(given), counting,
            )  # fmt: skip
            trace.frames.append(found)
        self.recording.note(Trips(len(starts), place))
        trace.loops.append(Loop(place, tuple(starts), len(events) - 1))
        turns.end = len(events) - 1
        computed = [trace.plain[a:b] for a, b in itertools.pairwise(plains)]
        if count is not None and starts and is_settled(changes[1:]):
            trace.rounds += self._counted(starts, count, span, computed, plains[0])
        if count is not None and not is_back(span) and alone:
            first = 0 if span is None else span.start
            whole = count.args[0] if first and isinstance(count, Apply) and count.func is operator.sub else count
            self._note_lengths(whole, first + len(starts), place)

    def _not_found(self, item: Any) -> Iterator[Any]:
        """What there is in what a round is given that was not found anywhere: a round may know by it which it is."""
        if isinstance(item, Traced | torch.Tensor) or self.recording.owner(item) is not None:
            return
        if type(item) in (tuple, list):
            for part in item:
                yield from self._not_found(part)
        elif type(item) is not str or not self.recording.has_found_text(item):
            yield token_of(item) if type(item) in _PLAIN or item is None or type(item) is bool else id(item)

    def _counted(
        self, starts: list[int], count: Expr, span: range | None, computed: list[list[Plain]], first: int
    ) -> Iterator[Rounds]:
        """The rounds of a loop that has come to its end, if what they ``computed`` with plain numbers lets them go on
        like that. ``first``: how much had been computed before."""
        found, back = counted(computed[1:]), is_back(span)
        reckoned = reckoning(computed, back, first) if found is None else None
        if found is None and reckoned is None:
            return
        counters = () if span is None else ((span.start, span.step),)
        begins = 0 if span is None or back or span.step != 1 else span.start
        rounds = Rounds(tuple(starts), len(self.recording.trace.events) - 1, count, counters, begins=begins, back=back)
        if reckoned is not None:
            yield replace(rounds, counters=(*rounds.counters, *sums(computed)), reckoned=reckoned)
            return
        # What the first round has computed with plain numbers the others may not have.
        rounds = rounds if counted(computed) is not None else rounds.without_first()
        own = counted(computed[rounds.skipped :]) or ()
        yield replace(rounds, counters=(*rounds.counters, *own))

    def _combined_rounds(self, at: Site, place: Place, iterator: Iterator[Any], over: Any) -> Iterator[Any]:
        """The rounds of a loop over ``enumerate()`` or ``zip()``: counted where all that it goes over has as many."""
        trace = self.recording.trace
        listed = [self._count(at, part) if type(part) in (list, tuple) else None for part in self._gone_over(over)]
        if listed and None not in listed:  # nothing else will say how many rounds there are
            iterator = self._rounds(place, iterator, self._pinned(next(self._gone_over(over)), listed[0]), alone=False)
        turns = Turns([], None, len(trace.plain))
        trace.turns.append(turns)
        first = None
        for item in iterator:
            turns.starts.append(len(trace.events))
            if type(over) is enumerate and type(item) is tuple:
                first = item[0] if first is None else first
                self._known("_counters")[id(turns)] = item[0]
            turns.given.append(tuple(self._not_found(item)))
            yield item
        self._known("_counters").pop(id(turns), None)
        self.recording.note(Trips(len(turns.starts), place))
        turns.end = len(trace.events) - 1
        frames = trace.frames[-1] if trace.frames else None
        if frames is not None and type(first) is int and list(frames.starts) == turns.starts and not frames.counters:
            frames.counters = ((first, 1),)
        rounds = trace.rounds[-1] if trace.rounds else None
        if rounds is None or list(rounds.starts) != turns.starts[rounds.skipped :] or not rounds.starts:
            return
        # Whoever asks all of them for one more (``strict``) comes to the end of each.
        rounds = next(known for known in trace.rounds if known.starts == rounds.starts)
        trace.rounds[:] = [*(known for known in trace.rounds if known.starts != rounds.starts), rounds]
        counts = self._counts_within(at, over, turns)
        if counts is None:
            trace.rounds.pop()  # something else may end it
            return
        for count in counts[1:]:
            if count.token != counts[0].token:
                self.recording.note(Held(Apply(operator.eq, (counts[0], count)), True, place))
        if listed and listed[0] is not None:
            self._note_lengths(listed[0], len(turns.starts), place)
        if type(first) is int:
            trace.rounds[-1] = replace(rounds, counters=(*rounds.counters, (first + rounds.skipped, 1)))

    def _counts_within(self, at: Site, over: Any, turns: Turns) -> list[Expr] | None:
        """How many rounds each of what a combination goes over has; None where that is not known of all."""
        parts = list(self._gone_over(over))
        within = [self._count(at, part) for part in parts if type(part) in (list, tuple)]
        if len(within) < len(parts):
            within += [count for known, count in self._known("_counts").values() if known.starts == turns.starts]
        if len(within) != len(parts):
            return None
        return None if any(count is None for count in within) else [count for count in within if count is not None]

    def _gone_over(self, over: Any) -> Iterator[Any]:
        for part in self._known("_combined")[id(over)][1]:
            if type(part) in (enumerate, zip) and id(part) in self._known("_combined"):
                yield from self._gone_over(part)
            else:
                yield part

    def note_call(self, at: Site, fn: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], result: Any) -> None:
        """Native code was called, and gave this."""
        self.peek_call(fn, args, tuple(kwargs.values()))
        if fn is range and isinstance(args[-1], Traced) and not kwargs and is_from(args[:-1]):
            count = args[-1].expr if not args[:-1] or not args[0] else Apply(operator.sub, (args[-1].expr, args[0]))
            self._known("_ranges")[id(result)] = (result, count, result)
        elif fn is range and is_by_steps(args) and not kwargs:
            upwards = Apply(operator.add, (args[1].expr, args[2] - 1))
            self._known("_ranges")[id(result)] = (result, Apply(operator.floordiv, (upwards, args[2])), result)
        elif fn is range and isinstance(args[0], Traced) and args[1:] == (-1, -1) and not kwargs:
            self._known("_ranges")[id(result)] = (result, Apply(operator.add, (args[0].expr, 1)), result)
        elif fn is reversed:
            self._note_reversed(at, args[0], result)
        elif fn is enumerate or fn is zip:
            self._known("_combined")[id(result)] = (result, args if fn is zip else args[:1])
        elif isinstance(result, _PLAIN) and not isinstance(result, Traced) and not is_statement(at):
            told = told_of_look(fn, args, kwargs, self._kept) or told_of_call(fn, args, kwargs, result, self._kept)
            self._note_plain(at, *args, made=True, told=told)
            self._note_result(at, args, result)
            if fn not in _CLASSES:
                self._note_counted(at, args)
        elif fn is next or (isinstance(getattr(fn, "__self__", None), _HOLDERS) and not is_added(fn, args)):
            # What it gives depends on how often it was asked.
            self._note_plain(at, *args, made=True, told=told_of_look(fn, args, kwargs, self._kept))
        elif not isinstance(result, torch.Tensor) and not (is_statement(at) and getattr(fn, "__name__", "") in _KEPT):
            self._note_given(at, (*args, *kwargs.values()))
        if fn is len and args and not isinstance(args[0], torch.Tensor) and not isinstance(result, Traced):
            self._note_length(at, args[0])
        for holder in cut_by(fn, args, kwargs):
            self._note_length(at, holder)

    def _note_reversed(self, at: Site, over: Any, result: Any) -> None:
        """Something goes through all of this, from the last to the first."""
        known = self._known("_ranges").get(id(over))
        if known is not None:
            count: Expr | None = known[1]
        else:
            count = self.framework.sizes.count(over) if type(over) in (tuple, list) else None
        if count is not None and (known is None or known[2] is not None):
            self._known("_ranges")[id(result)] = (result, count, None if known is None else over[::-1])

    def _note_given(self, at: Site, values: tuple[Any, ...]) -> None:
        """Native code was given plain numbers, for something else than a number."""
        whole, others = tuple(integers(values)), tuple(reals(values))
        if (whole or others) and not self._in_library(at):
            trace = self.recording.trace
            trace.given.append(Plain(len(trace.events), whole, reals=others))

    def _note_length(self, at: Site, holder: Any) -> None:
        """The program looks at how much a container of its own holds: that may be as much as there were rounds."""
        if self.recording.owner(holder) is None and not self._in_library(at):
            self.recording.trace.measured = len(self.recording.trace.events)
            self._note_counted(at, (holder,))

    def _note_counted(self, at: Site, values: Any) -> None:
        """What is made of containers of the program's own may tell how much they hold."""
        trace = self.recording.trace
        for value in values:
            if type(value) in _COUNTED and self.recording.owner(value) is None and not self._in_library(at):
                held = len(value) if type(value) in _HOLDERS or type(value) is tuple else -1
                trace.counted.append((len(trace.events), self.recording.place, held))

    def _kept(self, holder: Any) -> Origin | None:
        """Where a container that nobody has changed in this run was found."""
        return None if self.recording.is_written(holder) else self.recording.owner(holder)

    def _note_plain(
        self,
        at: Site,
        *values: Any,
        made: bool = False,
        total: int | None = None,
        told: Any = None,
        lookup: bool = False,
    ) -> None:
        """The program's own code has computed with these: unless it was with tensors, it may know of rounds. What is
        made of numbers fetched from tensors is known as such, unless plain numbers were ``made`` of it."""
        if not made and any(isinstance(value, torch.Tensor) or _is_fetched(value) for value in values):
            return
        if not self._in_library(at) or self._are_reckoned(values):
            trace = self.recording.trace
            whole, others = tuple(integers(values)), tuple(reals(values))
            trace.plain.append(Plain(len(trace.events), whole, total, told, others, where(at), lookup))

    def _note_result(self, at: Site, values: tuple[Any, ...], result: Any) -> None:
        """A plain float came out: whatever is made of it, a round may know it by that, in a library, too."""
        if type(result) is float and (not self._in_library(at) or self._are_reckoned(values)):
            self._known("_reckoned")[id(result)] = result

    def _are_reckoned(self, values: tuple[Any, ...]) -> bool:
        known = self._known("_reckoned")
        return any(type(value) is float and id(value) in known for value in values)

    def _note_values(self, at: Site, what: str, *values: Any, total: int | None = None) -> None:
        """The same, where nothing but the values decides what is made of them."""
        told = told_of((what, values), self._kept)
        self._note_plain(at, *values, total=total, told=told)

    def _note_made(self, at: Site, what: str, *values: Any, total: int | None = None) -> None:
        """The same, where what is computed with traced numbers is traced."""
        if not any(isinstance(value, Traced) for value in values):
            self._note_values(at, what, *values, total=total)

    def _in_library(self, at: Site | None) -> bool:
        return is_installed(self.recording.place.file if at is None else at.file)

    def native_binary(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self._note_made(at, op, a, b, total=total_of(op, a, b))
        result = super().native_binary(at, op, a, b)
        self._note_result(at, (a, b), result)
        return result

    def native_inplace(self, at: Site, op: str, a: Any, b: Any) -> Any:
        self._note_made(at, op, a, b, total=total_of(op, a, b))
        result = super().native_inplace(at, op, a, b)
        self._note_result(at, (a, b), result)
        return result

    def native_unary(self, at: Site, op: str, a: Any) -> Any:
        self._note_made(at, op, a)
        result = super().native_unary(at, op, a)
        self._note_result(at, (a,), result)
        return result

    def native_compare(self, at: Site, op: str, a: Any, b: Any) -> Any:
        if op not in ("is", "is not") or type(plain(a)) is type(plain(b)) is int:  # of a small one there is one object
            self._note_values(at, {"is": "==", "is not": "!="}.get(op, op), a, b)
            self._note_counted(at, (a, b))
        return super().native_compare(at, op, a, b)

    def native_format(self, at: Site, value: Any, spec: str) -> str:
        if type(value) is int and value in self._known("_counters").values() and type(spec) is str:
            text = super().native_format(at, value, spec)
            shown: str = trace_value(text, Apply(format, (Turn(value), spec)))
            return shown
        self._note_made(at, f":{spec}", value)
        return super().native_format(at, value, spec)

    def _told_item(self, obj: Any, key: Any) -> Any:
        """Of an element that is looked up: what is the same in two rounds gives the same, or what variables hold."""
        if type(obj) in (str, bytes):
            return told_of(("item", obj, key), self._kept)
        if type(obj) is torch.Size and all(isinstance(part, Traced) for part in obj):
            return told_of(("item", key), self._kept)  # a size, and known as such
        origin = self._kept(obj)
        if origin is not None:
            return told_of(("item", origin.token, key), self._kept)
        known = type(obj) is tuple or (type(obj) in (list, dict) and self.recording.rebinding.has_seen(obj))
        return told_of(("item", key), self._kept) if known else None

    def _turn_of(self, obj: Any, key: Any) -> ByTurn | None:
        """Of an element that is a tensor, or holds some, looked up while loops with numbered rounds go on: by how much
        more than theirs. Which it is shows in what is done with it."""
        counters = self._known("_counters")
        if type(key) is not int or type(obj) not in (list, tuple) or not counters or not 0 <= key < len(obj):
            return None
        kept = self._kept(obj) is not None
        if not issubclass(type(obj[key]), torch.Tensor) and not (kept and type(obj[key]) in _HOLDING):
            return None
        if kept:
            self._known("_looked_up")[id(obj)] = obj
        return ByTurn(tuple(key - turn for turn in counters.values()), self._told_item(obj, key))

    def _note_lengths(self, count: Expr, ended: int, place: Place) -> None:
        """Rounds have come to their end. Lists from before the call, of which each has looked up an element, are as
        long as the last one's number says: that holds them as long as what the loop goes through. ``ended``: the number
        of a round that would follow."""
        for obj in [*self._known("_looked_up").values()]:
            if len(obj) == ended and (origin := self._kept(obj)) is not None and _are_alike(obj):
                length = Read(origin.then(Step.LEN))
                if length.token != count.token:
                    self.natives.whole_length(obj)
                    self.recording.note(Held(Apply(operator.eq, (count, length)), True, place))
        self._known("_looked_up").clear()

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        if type(key) is not str and not (type(key) is int and key == -1):
            if isinstance(obj, torch.Tensor):
                self._note_plain(at, obj)
            elif (turn := self._turn_of(obj, key)) is not None:
                self._note_plain(at, key, told=turn, lookup=True)
            else:
                self._note_plain(at, key, told=self._told_item(obj, key))
        found = super().load_item(at, obj, key)
        self._note_part(at, obj, key, found)
        if type(obj) is tuple and type(key) is slice and key == _WHOLE[1]:
            self._note_reversed(at, obj, found)
        return found

    def store_item(self, at: Site, obj: Any, key: Any, value: Any) -> None:
        self._note_part(at, obj, key)
        super().store_item(at, obj, key, value)

    def drop_item(self, at: Site, obj: Any, key: Any) -> None:
        self._note_part(at, obj, key)
        super().drop_item(at, obj, key)

    def _note_part(self, at: Site, obj: Any, key: Any, part: Any = None) -> None:
        """A ``part`` of a list is looked at, or changed: which elements that are may depend on how many there are. But
        all without a few of the first or last are as many less."""
        if type(key) is not slice or not isinstance(obj, list | tuple) or key in _WHOLE:
            return
        count = self.framework.sizes.count
        if part is None or not is_all_but_few(key) or count(obj) is None or count(part) is None:
            self._note_length(at, obj)

    def truth(self, at: Site, value: Any) -> bool:
        if not isinstance(value, bool | torch.Tensor | type(None)):
            self._note_values(at, "truth", value)
        return super().truth(at, value)
