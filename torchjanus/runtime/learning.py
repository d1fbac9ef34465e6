"""What the watched runs of one function taught: the entries made from them, refusals, events, and when to give up.

Knows nothing of how a call is made.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torchjanus.errors import NOWHERE, Place, Refusal, Refused
from torchjanus.execute.memory import give_back
from torchjanus.graph.dimensions import Split, holds_for, key_of
from torchjanus.graph.invocations import Unrolled
from torchjanus.origin import Step
from torchjanus.rewrite import Site, forget_sources
from torchjanus.runtime.branching import Branching, Fork, branch, lacking, part_ways
from torchjanus.runtime.budget import SHARE, Budget
from torchjanus.runtime.dispatch import Dispatch
from torchjanus.runtime.engine import default_executor
from torchjanus.runtime.entry import Entry, Group, alone, make_entry
from torchjanus.runtime.kept import Elsewhere, Pending
from torchjanus.runtime.launch import Violation
from torchjanus.runtime.lengths import Lengths
from torchjanus.runtime.records import Counts, Event
from torchjanus.runtime.recursion import Recursion
from torchjanus.runtime.texts import Texts
from torchjanus.semantics.columns import Columns
from torchjanus.semantics.releasing import release
from torchjanus.trace.actions import Invoked
from torchjanus.trace.events import Trace

__all__ = ["Learning", "Route"]

Route = Entry | Branching  # what is tried on a call

log = logging.getLogger("torchjanus")

MAX_ENTRIES = 16
MAX_COMPILES = 24
MAX_WATCHED = 48
MAX_UNSERVED = 32
MAX_UNLIKE = 6  # runs watched in which recursion is unrolled, and graphs of those before hardly ever serve
MAX_VIOLATIONS = 6
MAX_FAULTS = 3
MAX_IN_VAIN = 3  # calls by graphs that have to be made once more, while a graph of another way is made
MAX_ERRORS = 16
MAX_REFUSALS = 100
MAX_ATTEMPTS = 4  # to have the graphs of one path made elsewhere
MAX_GROUPS = 64  # paths whose traces are kept
RARELY = 10  # an assertion that fails less often than once in so many runs is worth its entry
OFTEN = 20  # so many speculated calls earn one more that may be watched
AGAIN = 1000  # calls before a function that was given up is looked at again, and then
LATER = 4  # times as many each time: what is settled by then may not have been at first
WATCHED_AGAIN = 16  # calls that may be watched each time
NEVER = sys.maxsize
MANY_MISSES = 64  # in a row, while there is no time to learn: to look for a graph takes longer than it is worth
TRIED_AGAIN = 8  # calls, of which one looks for a graph then; twice as many each time that misses have doubled
TRIED_RARELY = 64  # at most
LINGERING = 3  # calls by graphs after a watched one, in which what its trace has found may be replaced
MAX_EVENTS = 1000  # the oldest are forgotten

_UNDECIDED = (
    "its assertions keep failing: a tensor decides which way the program goes. Instead: choose with torch.where(), or "
    "take the decision outside of the step"
)

_HOLD = (
    "Instead: hold what changes constant, let it be a tensor or a number that the step computes with, pad sizes to a "
    "few, or take the part that changes out of the step."
)


class Learning:
    """``name`` is what the log calls the function; ``watch`` and ``executor`` are speculate()'s."""

    def __init__(self, name: str, *, watch: int, executor: str | None) -> None:
        self.name = name
        self.watch = watch
        self.executor = executor
        self.counts = Counts()
        self.routes: list[Route] = []  # what is tried on a call, in this order
        self.dispatch = Dispatch(())
        self.closed = ""  # why no more graphs are made
        self.again = NEVER  # the call at which learning begins again
        self._chances = 0  # how often it has
        self._in_a_row = 0  # calls that no graph could make, since one did
        self._served = 0  # calls speculated when that was decided
        self._unserved = 0  # calls since then that no graph could make
        self.journaled = False  # whether an entry makes extern calls before its commit
        self.groups: dict[Any, Group] = {}
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.refusals: list[Refusal] = []
        self.traces: list[Trace] = []
        self.texts = Texts()
        self.columns = Columns()
        self.deciding: set[Site] = set()  # the ``if`` statements in which tensors were seen to decide
        self.given_up: str = ""
        self.recursion = Recursion()
        self.budget = Budget()
        # When recursion was unrolled (calls that were watched, made by graphs, and made by then), and why.
        self._unrolled: tuple[int, int, int, Refusal] | None = None
        self._waited = False  # whether learning has been put off
        self.repeating = False  # the last call by a graph had to be made once more, watched for its extern calls only
        self._renewed = False  # whether the last run has only shown new ways through recursive calls
        self._lengths = Lengths()
        self.elsewhere = Elsewhere()
        weakref.finalize(self, self.elsewhere.close)
        self._making: Callable[[], Route | None] | None = None  # what goes on when a graph has been made elsewhere
        self._kept_until = -1  # up to which speculated call traces are looked through for tensors that are gone
        self._in_vain = 0  # calls that graphs have made in vain since then
        self._begun = 0  # calls speculated by then
        self._awaited: Group | None = None  # of which part it is, where a path has fallen into parts
        self._attempts = 0
        self._faults = 0
        self._unproductive = 0
        self._paths = 0
        self._said: set[str] = set()

    @property
    def entries(self) -> list[Entry]:
        """The graphs in use, the latest first."""
        return [entry for route in self.routes for entry in route.entries]

    def keep(self, routes: list[Route]) -> None:
        """From now on these are tried, in this order."""
        kept = {id(engine) for route in routes for engine in route.engines}
        for route in self.routes:
            for engine in route.engines:
                if id(engine) not in kept:
                    engine.close()
        self.routes = routes
        self.dispatch = Dispatch(routes)
        self.journaled = any(route.journaled for route in routes)

    # -- traces and entries ---------------------------------------------------------------------------------------

    def learn(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take in one watched run; make an entry when enough runs agree."""
        for origin, place in self.texts.learn(trace):
            self.say("relax", f"{origin} was another text again: it is an input from now on", place)
        self.columns.settle(trace)
        self.let_go(args, kwargs)
        self._kept_until = self.counts.speculated + LINGERING
        self.traces = [*self.traces[-2:], trace]
        if not self._learn_calls(trace):
            return
        try:
            trace = self.recursion.told(trace)
        except Refused as refused:
            self._unroll(refused.refusal)
            return
        renewed, self._renewed = self._renewed, False
        if trace.refusals:
            self.counts.refused += 1
            for refusal in trace.refusals:
                self.refuse(refusal)
            self._unproductive += 1
            if self._unproductive >= max(self.watch, 3) and not self.entries:
                self.give_up(str(trace.refusals[0]), True)
            return
        group = self._group_of(trace, (len(args), tuple(kwargs)))
        if self._unrolled is not None and self._is_in_vain(*self._unrolled[:3]):
            self.give_up(
                f"trees are others in each call, and their nodes cannot be run together: {self._unrolled[3]}", True
            )
            return
        if self.counts.watched >= self.watch and not self.entries and self._paths == self.counts.watched > 1:
            self._tell_difference()
        if self.counts.watched < self.watch or len(group.traces) < min(2, self.watch) or group.refusal is not None:
            return
        if renewed and any(entry.group is group for entry in self.entries):
            return  # all that was new was a way through recursive calls
        if self.counts.compiles >= MAX_COMPILES:
            self._close(f"{self.counts.compiles} graphs were made and calls still differ from what was assumed")
            return
        self._begin(partial(self._make, group))

    @property
    def lingers(self) -> bool:
        """Whether traces may still hold what the calls since then have replaced."""
        return self.counts.speculated <= self._kept_until

    def let_go(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let go of tensors that are gone from where traces found them: the gradients that a run of another path (an
        evaluation) has left as they were, say. ``args``, ``kwargs``: of the last call."""
        traces = {id(t): t for t in (*self.traces, *(t for group in self.groups.values() for t in group.traces))}
        for trace in traces.values():
            release(trace, args, kwargs)

    # A large graph is made in another process, and learning goes on when it is there.

    @property
    def waits(self) -> bool:
        """Whether a graph is being made elsewhere. Nothing is learnt meanwhile."""
        return self._making is not None

    @property
    def being_made(self) -> str:
        """What is being made elsewhere, in words; "" if nothing is."""
        if not self.waits:
            return ""
        return "a graph has been made: the next call takes it" if self.elsewhere.over else f"a graph {self.elsewhere}"

    def go_on(self) -> None:
        """Put what has been made elsewhere to use, if it is there."""
        if self._making is not None and self.elsewhere.over:
            self._begin(self._making)

    def _begin(self, making: Callable[[], Route | None]) -> Route | None:
        """Make graphs. Where one has to wait for another process, ``go_on`` does it again."""
        self._attempts += 1
        try:
            made = making()
        except Pending as pending:
            self._making = making if self._awaited is None else partial(self._make, self._awaited)
            if self._attempts == 1:
                self._in_vain, self._begun = 0, self.counts.speculated
                self.say("lowering", f"{pending}; calls are Python's until it is there")
            return None
        except BaseException:
            self._cease()
            raise
        self._cease()
        return made

    def _cease(self) -> None:
        """Nothing is awaited any more."""
        self._making, self._awaited, self._attempts = None, None, 0
        self.elsewhere.close()

    @property
    def _away(self) -> Elsewhere | None:
        """Where graphs may be made, if not here."""
        return self.elsewhere if self.used_executor == "auto" and self._attempts <= MAX_ATTEMPTS else None

    def _is_in_vain(self, watched: int, speculated: int, calls: int) -> bool:
        """Whether since then graphs of unrolled calls have hardly ever served another call."""
        served = self.counts.speculated - speculated
        return self.counts.watched >= watched + MAX_UNLIKE and 4 * served <= self.counts.calls - calls

    def _learn_calls(self, trace: Trace) -> bool:
        """Take in the recursive calls of a run. Returns whether the run is of use for an entry."""
        recursion = self.recursion
        for unsuited in recursion.unsuited():
            self.say("unrolled", f"calls are not run many at a time: {unsuited}", unsuited.place)
        if names := recursion.discover(trace):
            self.say("recursion", f"{', '.join(names)} calls itself, and not always alike: one body for each way")
            return False
        if counted := recursion.counted():
            places = ", ".join(dict.fromkeys(counted))
            self.say("recursion", f"calls count, or add to, {places}: it is something else each time")
            return False
        if not any(isinstance(event, Invoked) for event in trace.events):
            return True
        refusal = recursion.refusal(trace)
        if refusal is None:
            try:
                self._renewed = recursion.learn(trace) and self._renew()
                return True
            except Refused as refused:
                refusal = refused.refusal
        self._unroll(refusal)
        return False

    def _unroll(self, refusal: Refusal) -> None:
        names = ", ".join(self.recursion.unroll())
        self.say("unrolled", f"calls of {names} are not run many at a time: {refusal}", refusal.place)
        self._unrolled = (self.counts.watched, self.counts.speculated, self.counts.calls, refusal)

    def _renew(self) -> bool:
        """Let entries with recursive calls serve the ways that have been seen since. Returns whether all of them do."""
        groves = [grove for entry in self.entries for grove in entry.plan.groves]
        done = [grove.renew(self.recursion.repertoire) for grove in groves]
        return bool(done) and all(done)

    def _evict(self) -> None:
        """Let go of the graphs used longest ago, if there are too many."""
        while len(self.entries) > MAX_ENTRIES and len(self.routes) > 1:
            oldest = min(self.routes[1:], key=lambda route: route.used)
            self.say("evicted", f"the graph used longest ago, at call {oldest.used}, made room for another one")
            gone = {id(entry.group) for entry in oldest.entries}
            self.groups = {key: group for key, group in self.groups.items() if id(group) not in gone}
            self._arrange([], oldest.entries)

    def _close(self, why: str) -> None:
        """Make no more graphs. Those that there are go on."""
        if not self.closed:
            self.closed = why
            self._served = self.counts.speculated
            self.say("closed", f"no more graphs are made: {why}")

    def begin_again(self) -> None:
        """Learn once more. Programs settle: a buffer is full, a table known, a schedule over."""
        why = self.given_up or self.closed
        self.given_up = self.closed = ""
        self.again, self._unserved, self._unproductive, self._unrolled, self._in_a_row = NEVER, 0, 0, None, 0
        self._chances += 1
        self.say("again", f"calls are looked at once more. Before: {why}")

    def unserved(self) -> None:
        """No graph could make a call, and none will be made for it. When that is the rule, all are given up."""
        self._unserved += 1
        if self._unserved >= MAX_UNSERVED and self._unserved > self.counts.speculated - self._served:
            self.give_up(self.closed, self.again < NEVER)

    def _group_of(self, trace: Trace, shape: tuple[int, tuple[str, ...]]) -> Group:
        """The runs of its path that this one joins: those with other trip counts too, where one graph serves all."""
        runs = self._lengths.take(trace)
        if runs:
            group = self._group(runs[-1], shape)
            group.cut = True
            if group.refusal is None:
                for run in runs:
                    # Where the number of rounds cannot change, runs of others are parts of their own.
                    part = self._group(run, shape)
                    part.cut = True
                    if not any(run is known for known in part.traces):
                        part.take(run)
                return group
        group = self._group(trace, shape)
        group.take(trace)
        return group

    def _group(self, trace: Trace, shape: tuple[int, tuple[str, ...]]) -> Group:
        """The runs of one path; where some sizes cannot change in one graph, those of equal sizes."""
        key, part, hosted = trace.tokens(), False, ""
        while (group := self.groups.get(key)) is not None:
            if group.split:
                key, part = (key, key_of(trace, group.split)), True
            elif not all(holds_for(condition, trace) for condition in group.conditions):
                key, part = (key, "other sizes"), True
            else:
                break
            hosted = group.hosted
        if group is None:
            self._paths += 1
            group = self.groups[key] = Group(self._paths, shape, alone=part, hosted=hosted)
            self._forget()
        return group

    def _split(self, group: Group, split: Split, elsewhere: Elsewhere | None) -> Entry | None:
        """Make an entry for the sizes that were met last; others will have theirs."""
        group.split = tuple(split.parts)
        for why in dict.fromkeys(split.parts.values()):
            self.say("split", f"{why}. An entry is made for each size.")
        for trace in group.traces:
            part = self._group(trace, group.shape)
            part.cut = group.cut
            part.take(trace)
        last = self._group(group.traces[-1], group.shape)
        last.relaxed |= group.relaxed
        last.sizes |= group.sizes
        self._replace(group, last)
        if elsewhere is not None:
            self._awaited = last  # what has fallen into parts is not tried again
        return self._entry(last, elsewhere) if len(last.traces) > 1 else None

    def _replace(self, group: Group, last: Group) -> None:
        """A graph that selects by itself, and is not right for some numbers of elements, gives way to graphs for which
        the host selects, one for each part into which the path has fallen. (That of the ``last`` run is made next.)"""
        gone = [entry for entry in self.entries if entry.group is group and entry.lowered.sized]
        if not gone:
            return
        parts = {id(part): part for trace in group.traces if (part := self._group(trace, group.shape)) is not last}
        made = [self._entry(part) for part in parts.values() if len(part.traces) > 1 and part.refusal is None]
        self._arrange([entry for entry in made if entry is not None], gone)

    def _tell_sizes(self, group: Group, entry: Entry) -> None:
        """Say which sizes have become inputs."""
        dimensions, told = entry.plan.dimensions, {size for other in self.entries for size in other.group.sizes}
        for members, sizes in zip(dimensions.symbols, dimensions.seen, strict=True):
            new = [(o, dim) for o, dim in members if (o.token, dim) not in group.sizes]
            group.sizes.update((o.token, dim) for o, dim in new)
            if any((o.token, dim) not in told for o, dim in new):
                names = ", ".join(str(origin.then(Step.SIZE, dim)) for origin, dim in new)
                met = ", ".join(map(str, dict.fromkeys(sizes)))
                self.say("relax", f"{names} was {met}: relaxed, it is an input from now on")

    def _forget(self) -> None:
        """Let go of the oldest paths that no entry came of: their traces hold tensors."""
        used = {id(entry.group) for entry in self.entries}
        idle = [key for key, group in self.groups.items() if id(group) not in used]
        for key in idle[: max(0, len(self.groups) - MAX_GROUPS)]:
            del self.groups[key]

    def _tell_difference(self) -> None:
        """No two watched runs took the same path: say where the last two parted."""
        what, place = self._difference()
        self.say("differs", f"no two runs are alike; {what}", place)

    def _difference(self) -> tuple[str, Place]:
        """Where the last watched runs parted."""
        for before in reversed(self.traces[:-1]):
            for one, other in zip(before.events, self.traces[-1].events, strict=False):
                if one.token != other.token:
                    return f"the last two part here: {one} / {other}", other.place
        return "they return or store different things", NOWHERE

    def _make(self, group: Group) -> Route | None:
        """Make an entry of a path, alone or in a tree with others; return what is to be tried."""
        for other in self.entries:
            group.relaxed.update(other.varying())
            group.learn_from(other.group)
        entry = self._entry(group, self._away)
        if entry is None:
            return None
        self._unproductive = 0
        self._arrange([entry], [e for e in self.entries if e.group is entry.group and not _beside(e, entry)])
        self._evict()
        return self.routes[0]

    def _remake(self, route: Route) -> Route | None:
        """Make the entries of a route anew, now that more has been relaxed; return what is to be tried."""
        away = self._away
        pairs = [(old, made) for old in route.entries if (made := self._entry(old.group, away)) is not None]
        self._awaited = None
        if not pairs:
            return None
        self._arrange([made for _, made in pairs], [old for old, made in pairs if not _beside(old, made)])
        return self.routes[0]

    def _entry(self, group: Group, elsewhere: Elsewhere | None = None) -> Entry | None:
        """Raises Pending where ``elsewhere`` makes it."""
        if self._attempts <= 1:
            self.budget.made()
        try:
            entry = make_entry(group, self.used_executor, self.recursion.repertoire, elsewhere)
        except Split as split:
            return self._entry(group, elsewhere) if group.forgoes() else self._split(group, split, elsewhere)
        except Unrolled as unrolled:
            group.refusal = unrolled.refusal
            self._unroll(unrolled.refusal)
            return None
        except Refused as refused:
            if group.forgoes():
                return self._entry(group, elsewhere)
            group.refusal = refused.refusal
            if group.cut:
                self.say("unrolled", str(refused.refusal), refused.refusal.place)
                return None
            self.counts.refused += 1
            self.refuse(refused.refusal)
            if not self.entries:
                self.give_up(str(refused.refusal))
            return None
        self.counts.compiles += 1
        if group.hosted:
            self.say("hosted", f"the host makes selections between parts of the graph: {group.hosted}")
        self._tell_sizes(group, entry)
        forget_sources()  # of most steps there is no more to learn
        give_back()
        return entry

    @property
    def used_executor(self) -> str:
        """The executor of its graphs."""
        return self.executor or default_executor()

    def _arrange(self, new: Sequence[Entry], gone: Sequence[Entry]) -> None:
        """Put new entries first, each in a tree with those from which only a tensor's decision parts it."""
        routes: list[Route] = []
        for route in self.routes:
            left = [entry for entry in route.entries if not any(entry is other for other in gone)]
            if len(left) == len(route.entries):
                routes.append(route)
            elif left:
                tree = branch(left, self.used_executor) if len(left) > 1 else None
                routes += [alone(entry, self.used_executor) for entry in left] if tree is None else [tree]
        for entry in new:
            for route in routes:
                joined = self._join([entry, *route.entries])
                if joined is not None:
                    routes = [joined, *(other for other in routes if other is not route)]
                    break
            else:
                routes.insert(0, entry)
        self.keep(routes)
        for route in routes:
            if isinstance(route, Entry):
                route.engine.compile()

    def _join(self, entries: list[Entry]) -> Branching | None:
        """The entries as one tree, if a tensor decides between them. What one takes as an input all have to."""
        if part_ways(entries) is None:
            return None
        for number, tokens in enumerate(lacking(entries)):
            if tokens:
                entries[number].group.relaxed.update(tokens)
                made = self._entry(entries[number].group)
                if made is None:
                    return None
                entries[number] = made
        joined = branch(entries, self.used_executor)
        if joined is not None:
            place = joined.root.place
            self.say("branch", f"a tensor decides between {len(entries)} ways: all are in one graph now", place)
        return joined

    def relax(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Route | None:
        """Find an entry that would serve if one of its assumptions were weaker, and make it so (JANUS figure 4)."""
        for route in self.routes:
            for entry in route.entries:
                broken = entry.broken(args, kwargs)
                for assumption in broken:
                    observed = assumption.observed(args, kwargs)
                    self.say("miss", f"{assumption}, but now there is {observed}", assumption.place)
                tokens = [entry.relaxable(assumption) for assumption in broken]
                # The traces speak of the heap as it was: they are good for this call only if nothing else has changed.
                if not tokens or not all(tokens):
                    continue
                for assumption in broken:
                    self.say("relax", f"{assumption}: relaxed, it is an input from now on", assumption.place)
                for other in route.entries:
                    other.group.relaxed.update(token for some in tokens for token in some)
                made = self._begin(partial(self._remake, route))
                if made is not None or self.waits:
                    return made
        return None

    def in_vain(self) -> None:
        """A graph has come as far as to make extern calls, and the call has to be made once more."""
        self._in_vain += self.waits

    def repeated(self) -> None:
        """A call by a graph has to be made once more, watched for the extern calls that it has made."""
        self.repeating = True

    def violated(self, part: Entry | Fork, violation: Violation) -> None:
        """Some assertions of the entry failed."""
        self.counts.violated += 1
        for number in violation.violated.assertions:
            assertion = part.assertion(number)
            self.say("violation", f"a condition on tensors stopped being {assertion.expected}", assertion.place)

    def is_exception(self, part: Entry | Fork, violation: Violation) -> bool:
        """Whether all that was not as assumed is how many elements the graph has selected, and that is rare: such calls
        are Python's, and teach nothing. (Where it is not, the host makes the selection from the next such run on.)"""
        if not isinstance(part, Entry) or not part.lowered.sized:
            return False
        first = len(part.lowered.assertions) - len(part.lowered.sized)
        if any(number < first for number in violation.violated.assertions):
            return False
        part.exceptions += 1
        return part.exceptions * RARELY <= part.runs

    def charge(self, part: Entry | Fork) -> None:
        """Eager went on where the entry could not. One to which that keeps happening is dropped; but not while a graph
        is awaited that may know the other way."""
        if self.waits:
            self._in_vain += 1
            return
        part.violations += 1
        if isinstance(part, Entry) and part.violations >= MAX_VIOLATIONS and part.violations * RARELY > part.runs:
            self.drop(part, _UNDECIDED)

    @property
    def _has_watches_left(self) -> bool:
        more = self.counts.speculated // OFTEN + self._chances * WATCHED_AGAIN
        return self.counts.watched < MAX_WATCHED + more

    def may_watch_on(self) -> bool:
        """Whether a call that went another way than any that is known may be watched, so as to learn that way."""
        if self.given_up or self.closed or self.waits or len(self.entries) >= MAX_ENTRIES:
            return False
        return self._has_watches_left and self.has_time()

    @property
    def is_idle(self) -> bool:
        """Whether graphs may be of no use just now; ``rests`` looks closer."""
        return self.repeating or self.waits or self._in_a_row >= MANY_MISSES

    @property
    def rests(self) -> bool:
        """Whether graphs are not even tried: to repeat the last one's call took more than there is time for, most calls
        go the way of a graph that is still being made, or no call has found one for long (then every eighth is tried,
        and ever fewer)."""
        if self.counts.calls + 1 >= self.again:
            return False
        if self._in_vain >= MAX_IN_VAIN and self.waits and not self.elsewhere.over:
            return self._in_vain > self.counts.speculated - self._begun
        if self.repeating and (self.given_up or not self.has_time()):
            return True
        if self._in_a_row < MANY_MISSES:
            return False
        self._in_a_row += 1
        distance, misses = TRIED_AGAIN, 4 * MANY_MISSES
        while distance < TRIED_RARELY and misses <= self._in_a_row:
            distance, misses = 2 * distance, 2 * misses
        return self._in_a_row % distance != 0

    def missed(self) -> None:
        """No graph was there for a call, and nothing can be learnt from it."""
        self._in_a_row += 1

    def served(self) -> None:
        """A graph has made a call."""
        self.counts.speculated += 1
        self.repeating = False
        self._in_a_row = 0

    def has_time(self) -> bool:
        """Whether this call may be learnt from. Where there has been too much of that, the report says of what."""
        if self.budget.allows():
            return True
        if not self._waited:
            self._waited = True
            what, place = self._difference()
            made = f"{self.counts.compiles} graphs and {self.counts.watched} watched calls"
            rest = f"From now on calls that no graph can make are Python's until that is {SHARE:.0%} of the time"
            self.say(
                "budget",
                f"{made} took {self.budget.seconds:.1f} s, and calls still differ ({what}). {rest}. {_HOLD}",
                place,
            )
        return False

    def raised(self, entry: Entry, error: BaseException) -> None:
        """The entry's graph raised, and so did the program. An entry that does little else is dropped."""
        entry.errors += 1
        self.say("raised", f"the graph raised {type(error).__name__}, and so does eager on these values")
        if entry.errors >= MAX_ERRORS and entry.errors > entry.runs:
            self.drop(entry, f"its graph raises more often than not: {type(error).__name__}")

    def verified(self, entry: Entry, differences: list[str]) -> None:
        """A call was made both ways. An entry that differs from eager is taken out of use."""
        self.counts.verified += 1
        if differences:
            text = f"a graph ({entry.engine.current}) differs from eager: {'; '.join(differences)}"
            log.warning("%s: %s. It is not used any more; please report this.", self.name, text)
            self.say("verify", f"{text}. Please report this.")
            self.drop(entry, "it was caught differing from eager")

    def may_watch(self) -> bool:
        """Whether one more call may be watched. When there were too many, speculation is given up."""
        if self._has_watches_left:
            return True
        why = f"{self.counts.watched} calls were watched and calls still differ from what was assumed"
        if self.entries:
            self._close(why)
            self._put_off()
        else:
            self.give_up(why, True)
        return False

    def drop(self, entry: Entry, why: str) -> None:
        self._arrange([], [entry])
        entry.group.refusal = Refusal(NOWHERE, "an entry was dropped", why, "")
        self.say("dropped", why)
        if not self.entries and all(group.refusal is not None for group in self.groups.values()):
            self.give_up(why)

    # -- words ----------------------------------------------------------------------------------------------------

    def say(self, kind: str, text: str, place: Place = NOWHERE) -> None:
        event = Event(self.counts.calls, kind, text, place)
        self.events.append(event)
        if text not in self._said and len(self._said) < MAX_EVENTS:
            self._said.add(text)
            log.info("%s %s: %s", place if place.line else self.name, kind, text)

    def refuse(self, refusal: Refusal) -> None:
        if refusal not in self.refusals and len(self.refusals) < MAX_REFUSALS:
            self.refusals.append(refusal)
            self.say("refused", f"{refusal.what}: {refusal.why} {refusal.remedy}", refusal.place)

    def give_up(self, why: str, for_now: bool = False) -> None:
        """Run the function as it is, ``for_now`` or for ever."""
        if not self.given_up:
            self.given_up = why
            self._in_a_row = MANY_MISSES
            self._cease()
            if for_now:
                self._put_off()
            until = f"until call {self.again}" if for_now else "from now on"
            self.say("imperative", f"{until} the function runs as it is: {why}")

    def _put_off(self) -> None:
        self.again = max(AGAIN, LATER * self.counts.calls)

    def fault(self, error: BaseException) -> None:
        """Something inside torchjanus broke. The call is completed all the same."""
        self._faults += 1
        log.warning("internal fault in torchjanus, the call was completed eagerly", exc_info=error)
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        at = f" at {where.tb_frame.f_code.co_name}:{where.tb_lineno}" if where is not None else ""
        self.say("fault", f"torchjanus itself failed: {type(error).__name__}: {error}{at}. Please report this.")
        if self._faults >= MAX_FAULTS:
            self.give_up("torchjanus failed repeatedly")


def _beside(old: Entry, new: Entry) -> bool:
    """An entry that holds a changing number at one value stays beside those for its other values."""
    return bool(old.lowered.pinned and new.lowered.pinned)
