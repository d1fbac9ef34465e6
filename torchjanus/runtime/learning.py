"""What the watched runs of one function taught: the entries made from them, refusals, events, and when to give up.

Knows nothing of how a call is made.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any

from torchjanus.errors import NOWHERE, Place, Refusal, Refused
from torchjanus.runtime.engine import default_executor
from torchjanus.runtime.entry import Entry, Group, make_entry
from torchjanus.runtime.launch import Violation
from torchjanus.runtime.records import Counts, Event
from torchjanus.trace.events import Trace

__all__ = ["Learning"]

log = logging.getLogger("torchjanus")

MAX_ENTRIES = 8
MAX_COMPILES = 24
MAX_WATCHED = 48
MAX_VIOLATIONS = 3
MAX_FAULTS = 3
MAX_ERRORS = 16
MAX_REFUSALS = 100
MAX_GROUPS = 64  # paths whose traces are kept
RARELY = 10  # an assertion that fails less often than once in so many runs is worth its entry
OFTEN = 20  # so many speculated calls earn one more that may be watched
MAX_EVENTS = 1000  # the oldest are forgotten

_UNDECIDED = (
    "its assertions keep failing: a tensor decides which way the program goes. Instead: choose with torch.where(), or "
    "take the decision outside of the step"
)


class Learning:
    """``name`` is what the log calls the function; ``watch`` and ``executor`` are speculate()'s."""

    def __init__(self, name: str, *, watch: int, executor: str | None) -> None:
        self.name = name
        self.watch = watch
        self.executor = executor
        self.counts = Counts()
        self.entries: list[Entry] = []
        self.groups: dict[Any, Group] = {}
        self.events: deque[Event] = deque(maxlen=MAX_EVENTS)
        self.refusals: list[Refusal] = []
        self.traces: list[Trace] = []
        self.given_up: str = ""
        self._faults = 0
        self._unproductive = 0
        self._paths = 0
        self._said: set[str] = set()

    @property
    def journaled(self) -> bool:
        """Whether an entry makes extern calls before its commit."""
        return any(entry.launch.journaled for entry in self.entries)

    # -- traces and entries ---------------------------------------------------------------------------------------

    def learn(self, trace: Trace, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take in one watched run; make an entry when enough runs agree."""
        self.traces = [*self.traces[-2:], trace]
        if trace.refusals:
            self.counts.refused += 1
            for refusal in trace.refusals:
                self.refuse(refusal)
            self._unproductive += 1
            if self._unproductive >= max(self.watch, 3) and not self.entries:
                self.give_up(str(trace.refusals[0]))
            return
        key = trace.tokens()
        group = self.groups.get(key)
        if group is None:
            shape = (len(args), tuple(kwargs))
            self._paths += 1
            group = self.groups[key] = Group(self._paths, shape)
            self._forget()
        group.traces = [*group.traces[-2:], trace]
        if self.counts.watched >= self.watch and not self.entries and self._paths == self.counts.watched > 1:
            self._tell_difference()
        if self.counts.watched < self.watch or len(group.traces) < min(2, self.watch) or group.refusal is not None:
            return
        if len(self.entries) >= MAX_ENTRIES or self.counts.compiles >= MAX_COMPILES:
            self.give_up(f"{self.counts.compiles} graphs were made and calls still differ from what was assumed")
            return
        self._make(group)

    def _forget(self) -> None:
        """Let go of the oldest paths that no entry came of: their traces hold tensors."""
        used = {id(entry.group) for entry in self.entries}
        idle = [key for key, group in self.groups.items() if id(group) not in used]
        for key in idle[: max(0, len(self.groups) - MAX_GROUPS)]:
            del self.groups[key]

    def _tell_difference(self) -> None:
        """No two watched runs took the same path: say where the last two parted."""
        before, after = self.traces[-2:]
        for one, other in zip(before.events, after.events, strict=False):
            if one.token != other.token:
                self.say("differs", f"no two runs are alike; the last two part here: {one} / {other}", other.place)
                return
        self.say("differs", "no two runs are alike: they return or store different things")

    def _make(self, group: Group) -> Entry | None:
        try:
            entry = make_entry(group, self.executor or default_executor())
        except Refused as refused:
            group.refusal = refused.refusal
            self.counts.refused += 1
            self.refuse(refused.refusal)
            if not self.entries:
                self.give_up(str(refused.refusal))
            return None
        self.counts.compiles += 1
        self._unproductive = 0
        # An entry that holds a changing number at one value stays beside those for its other values.
        kept = (e for e in self.entries if e.group is not group or (e.lowered.pinned and entry.lowered.pinned))
        self.entries = [entry, *kept]
        return entry

    def relax(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Entry | None:
        """Find an entry that would serve if one of its assumptions were weaker, and make it so (JANUS figure 4)."""
        for entry in self.entries:
            broken = entry.broken(args, kwargs)
            for assumption in broken:
                observed = assumption.observed(args, kwargs)
                self.say("miss", f"{assumption}, but now there is {observed}", assumption.place)
            tokens = [entry.relaxable(assumption) for assumption in broken]
            # The traces speak of the heap as it was: they are good for this call only if nothing else has changed.
            if tokens and all(tokens):
                entry.group.relaxed.update(token for some in tokens for token in some)
                for assumption in broken:
                    self.say("relax", f"{assumption}: relaxed, it is an input from now on", assumption.place)
                made = self._make(entry.group)
                if made is not None:
                    return made
        return None

    def violated(self, entry: Entry, violation: Violation) -> None:
        """Some assertions of the entry failed; one that keeps failing is dropped."""
        self.counts.violated += 1
        entry.violations += 1
        for number in violation.violated.assertions:
            assertion = entry.lowered.assertions[number]
            self.say("violation", f"a condition on tensors stopped being {assertion.expected}", assertion.place)
        if entry.violations >= MAX_VIOLATIONS and entry.violations * RARELY > entry.runs:
            self.drop(entry, _UNDECIDED)

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
        if self.counts.watched < MAX_WATCHED + self.counts.speculated // OFTEN:
            return True
        self.give_up(f"{self.counts.watched} calls were watched and calls still differ from what was assumed")
        return False

    def drop(self, entry: Entry, why: str) -> None:
        self.entries = [e for e in self.entries if e is not entry]
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

    def give_up(self, why: str) -> None:
        if not self.given_up:
            self.given_up = why
            self.say("imperative", f"from now on the function runs as it is: {why}")

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
