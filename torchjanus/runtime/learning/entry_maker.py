"""Makes the graphs of paths, and arranges them: new ones come first, and replace those that they were made of.

In: groups of watched runs that took one path. Out: entries in the function's routes, or the refusal of the group. This
module does not decide when a graph is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from torchjanus.core.access_path import Step
from torchjanus.core.errors import LINES, NOWHERE, Refusal, Refused
from torchjanus.core.unwarned import unnoticed
from torchjanus.execute.memory import give_back
from torchjanus.graph.ir.dimensions import Split
from torchjanus.graph.recursion.cells.invoke import NotBatched
from torchjanus.rewrite import forget_sources
from torchjanus.runtime.entries.dispatch import Route
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.entry_making import make_entry
from torchjanus.runtime.learning.pending_graphs import PendingGraphs
from torchjanus.runtime.learning.policy import LearningPolicy
from torchjanus.runtime.learning.recursive_calls import RecursiveCalls
from torchjanus.runtime.learning.routes import Routes
from torchjanus.runtime.pass_log.pass_log import PassLog, observing
from torchjanus.runtime.runs.budget import Budget
from torchjanus.runtime.runs.lowering_cache import RemoteLowering
from torchjanus.runtime.runs.marks import Marks
from torchjanus.runtime.runs.paths import Group, Paths
from torchjanus.runtime.runs.records import EventLog
from torchjanus.runtime.runs.varying_reads import VaryingReads
from torchjanus.trace.events import Trace

__all__ = ["EntryMaker", "LearningState"]


@dataclass(frozen=True, slots=True)
class LearningState:
    """What learning knows of one function, and the graphs made of it. ``calls``: its recursive calls; ``passes``: the
    log of passes; None unless it was asked for."""

    event_log: EventLog
    paths: Paths
    routes: Routes
    pending_graphs: PendingGraphs
    policy: LearningPolicy
    budget: Budget
    marks: Marks
    calls: RecursiveCalls
    passes: PassLog | None
    varying_reads: VaryingReads


class EntryMaker:
    """Makes the entries of one function. ``cut`` leaves the statements of refused runs to Python, and returns whether
    it can; ``made_first`` is called when there is a first graph."""

    def __init__(
        self, state: LearningState, cut: Callable[[Sequence[Trace]], bool], made_first: Callable[[], None]
    ) -> None:
        self.event_log, self.counts, self.paths = state.event_log, state.event_log.counts, state.paths
        self.routes, self.pending_graphs, self.policy = state.routes, state.pending_graphs, state.policy
        self.budget, self.marks, self.passes = state.budget, state.marks, state.passes
        self.varying_reads = state.varying_reads
        self.doubled: Refusal | None = None  # why no graph has results with their backward pass to come
        self._calls = state.calls
        self._cut = cut
        self._made_first = made_first

    def arrange(self, new: Sequence[Entry], gone: Sequence[Entry]) -> None:
        """Put new entries to use, and close those that are gone."""
        self.routes.arrange(new, gone, self.entry)

    @property
    def _away(self) -> RemoteLowering | None:
        """The other processes that may make graphs; None if graphs are made here."""
        if self.routes.executor != "auto" or not self.pending_graphs.may_wait:
            return None
        remote = self.pending_graphs.remote
        remote.at_first = self.budget.is_free
        return remote

    def make(self, group: Group) -> Route | None:
        """Make an entry of a path, alone or in a tree with others. Returns the first route to try."""
        for other in self.routes.entries:
            group.relaxed.update(other.varying())
            group.learn_from(other.group)
        for text in self.marks.apply(group):
            self.event_log.record("relax", text)
        entry = self.entry(group, self._away)
        if entry is None:
            return None
        self.policy.record_graph()
        # Entries for the objects of earlier runs that were looked up are superseded, too: they would keep those alive.
        superseded = [e for e in self.routes.entries if e.looks_up_constants(self.varying_reads.loose)]
        self.paths.forget([e.group for e in superseded])
        same = [e for e in self.routes.entries if e.group is entry.group and not _beside(e, entry)]
        self.arrange([entry], [*same, *superseded])
        while (oldest := self.routes.surplus) is not None:
            self.event_log.record(
                "evicted", f"the graph used longest ago, at call {oldest.used}, made room for another one"
            )
            self.paths.forget([entry.group for entry in oldest.entries])
            self.arrange([], oldest.entries)
        return self.routes.first

    def remake(self, route: Route) -> Route | None:
        """Make the entries of a route again after a relaxation. Returns the first route to try."""
        away = self._away
        pairs = [(old, made) for old in route.entries if (made := self.entry(old.group, away)) is not None]
        self.pending_graphs.instead = None
        if not pairs:
            return None
        self.arrange([made for _, made in pairs], [old for old, made in pairs if not _beside(old, made)])
        return self.routes.first

    def entry(self, group: Group, remote: RemoteLowering | None = None) -> Entry | None:
        """Return an entry of a path; None if there is none. Raises Pending while ``remote`` makes it."""
        try:
            with unnoticed(), observing(self.passes):
                entry = make_entry(group, self.routes.executor, self._calls.recursion.variant_table, remote)
            if entry.launch.differentiable is not None and self.doubled is not None:
                raise Refused(self.doubled)
        except Split as split:
            return self.entry(group, remote) if group.stop_borrowing() else self._split(group, split, remote)
        except NotBatched as unrolled:
            group.refusal = unrolled.refusal
            self._calls.unroll(unrolled.refusal)
            return None
        except Refused as refused:
            if group.stop_borrowing():
                return self.entry(group, remote)
            refusal = _called_from(refused.refusal, group.traces[-1])
            group.refusal = self.event_log.placed(refusal)
            if self.passes is not None:
                self.passes.refused(str(group.refusal))
            if group.folded:
                self.event_log.unroll(str(group.refusal), group.refusal)
                return None
            self.counts.refused += 1
            self.event_log.refuse(group.refusal)
            if not self.routes.entries and not self._cut([replace(group.traces[-1], refusals=[refusal])]):
                self.policy.give_up(str(group.refusal))
            return None
        self.counts.compiles += 1
        if self.counts.compiles == 1:
            self._made_first()
        if self.passes is not None:
            self.passes.made(entry)
        if group.host_selection_reason:
            text = f"the host makes selections between parts of the graph: {group.host_selection_reason}"
            self.event_log.record("hosted", text, reason="selection-on-host")
        self._report_sizes(group, entry)
        forget_sources()  # of most steps no more is learnt
        give_back()
        return entry

    def _split(self, group: Group, split: Split, remote: RemoteLowering | None) -> Entry | None:
        """Make an entry for the latest sizes; each other size gets an entry of its own."""
        for why in dict.fromkeys(split.parts.values()):
            self.event_log.record("split", f"{why}. An entry is made for each size.", reason="size-fixed")
        *others, last = self.paths.split(group, split.parts)
        self._replace(group, others)
        if remote is not None:
            self.pending_graphs.instead = partial(self.make, last)  # the group that was split is not tried again
        return self.entry(last, remote) if len(last.traces) > 1 else None

    def _replace(self, group: Group, parts: list[Group]) -> None:
        """Replace a graph that selects by itself, and is not right for some numbers of elements, by graphs for which
        the host selects: one for each of the ``parts`` but that of the last run, which is made next."""
        gone = [entry for entry in self.routes.entries if entry.group is group and entry.lowered.sized]
        if not gone:
            return
        made = [self.entry(part) for part in parts if len(part.traces) > 1 and part.refusal is None]
        self.arrange([entry for entry in made if entry is not None], gone)

    def _report_sizes(self, group: Group, entry: Entry) -> None:
        """Report which sizes have become inputs."""
        dimensions, reported = (
            entry.plan.dimensions,
            {size for other in self.routes.entries for size in other.group.sizes},
        )
        for members, sizes in zip(dimensions.symbols, dimensions.seen, strict=True):
            new = [(o, dim) for o, dim in members if (o.token, dim) not in group.sizes]
            group.sizes.update((o.token, dim) for o, dim in new)
            if any((o.token, dim) not in reported for o, dim in new):
                names = ", ".join(str(access_path.then(Step.SIZE, dim)) for access_path, dim in new)
                met = ", ".join(map(str, dict.fromkeys(sizes)))
                self.event_log.record("relax", f"{names} was {met}: relaxed, it is an input from now on")


def _beside(old: Entry, new: Entry) -> bool:
    """Whether ``old`` stays beside ``new``: both hold a number that varies at a fixed value."""
    return bool(old.lowered.pinned and new.lowered.pinned)


def _called_from(refusal: Refusal, trace: Trace) -> Refusal:
    """Return the refusal, of a place in a library, with the lines of the program that called it."""
    if not refusal.place.is_library or refusal.caller != NOWHERE:
        return refusal
    lines = tuple(place for place in trace.callers(refusal.place) if not place.is_library)
    return replace(refusal, caller=lines[0], within=lines[:LINES]) if lines else refusal
