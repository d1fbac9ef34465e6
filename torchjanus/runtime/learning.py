"""What the watched runs of one function taught: the entries made from them, refusals, events, and when to give up.

Knows nothing of how a call is made.
"""

from __future__ import annotations

import logging
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


class Learning:
    """``name`` is what the log calls the function; ``watch`` and ``executor`` are speculate()'s."""

    def __init__(self, name: str, *, watch: int, executor: str | None) -> None:
        self.name = name
        self.watch = watch
        self.executor = executor
        self.counts = Counts()
        self.entries: list[Entry] = []
        self.groups: dict[Any, Group] = {}
        self.events: list[Event] = []
        self.refusals: list[Refusal] = []
        self.traces: list[Trace] = []
        self.given_up: str = ""
        self._faults = 0
        self._unproductive = 0
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
            group = self.groups[key] = Group(len(self.groups) + 1, shape)
        group.traces = [*group.traces[-2:], trace]
        if self.counts.watched >= self.watch and not self.entries and len(self.groups) == self.counts.watched > 1:
            self._tell_difference()
        if self.counts.watched < self.watch or len(group.traces) < min(2, self.watch) or group.refusal is not None:
            return
        if len(self.entries) >= MAX_ENTRIES or self.counts.compiles >= MAX_COMPILES:
            self.give_up(f"{self.counts.compiles} graphs were made and calls still differ from what was assumed")
            return
        self._make(group)

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
            if broken is None:
                continue
            self.say("miss", f"{broken}, but now there is {broken.observed(args, kwargs)}", broken.place)
            tokens = entry.relaxable(broken)
            if tokens:
                entry.group.relaxed.update(tokens)
                self.say("relax", f"{broken}: relaxed, it is an input from now on", broken.place)
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
        if entry.violations >= MAX_VIOLATIONS:
            self.drop(entry, "its assertions keep failing: a tensor decides which way the program goes")

    def may_watch(self) -> bool:
        """Whether one more call may be watched. When there were too many, speculation is given up."""
        if self.counts.watched < MAX_WATCHED:
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
        if text not in self._said:
            self._said.add(text)
            log.info("%s %s: %s", place if place.line else self.name, kind, text)

    def refuse(self, refusal: Refusal) -> None:
        if refusal not in self.refusals:
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
