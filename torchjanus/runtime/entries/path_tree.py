"""Runs several paths that differ by tensors' decisions as one tree: the common part, the decision, the rest of one path
(JANUS 4.2.1, dynamic control flow).

``path_tree_build`` makes the tree of entries.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from torchjanus.core.errors import Place
from torchjanus.execute.running.base import Violated
from torchjanus.execute.running.gate import Generators
from torchjanus.graph.generalize.generalize import EntryPlan
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Assertion
from torchjanus.host.assumption import Assumption
from torchjanus.host.journal import Journal
from torchjanus.runtime.entries.engine import Engine
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.entries.standby import Standby
from torchjanus.runtime.launch.launch import PrefixLaunch
from torchjanus.runtime.launch.outcomes import MISS, RAISED, Failure, Violation, failure

__all__ = ["BranchPoint", "PathTree"]

SETTLED = 24  # calls that a tree stays unchanged before it is compiled
APART = 3  # calls between requests to compile its parts: each takes milliseconds, all at once would be noticed


@dataclass(slots=True)
class BranchPoint:
    """A branch point: what is computed before the decision, and an arm for each outcome that was seen."""

    beginning: PrefixLaunch
    engine: Engine
    arms: tuple[BranchPoint | Entry, ...]
    assertions: tuple[Assertion, ...]  # what holds in each arm
    plan: EntryPlan  # of one of the paths, restricted to this part
    own: tuple[Assumption, ...]  # the assumptions that are checked here
    live: tuple[int, ...]  # the values of earlier parts that it takes
    violations: int = 0  # calls that took none of the arms

    @property
    def lowered(self) -> Lowered:
        """Its graph."""
        return self.engine.lowered

    @property
    def runs(self) -> int:
        """How many calls completed through one of its arms."""
        return sum(arm.runs for arm in self.arms)

    def entries(self) -> Iterator[Entry]:
        """Yield the paths that pass through it."""
        for arm in self.arms:
            yield from arm.entries() if isinstance(arm, BranchPoint) else (arm,)

    @property
    def place(self) -> Place:
        """The line that decides."""
        return self.assertions[0].place

    def assertion(self, number: int) -> Assertion:
        """Return the assertion with this number, as for an Entry."""
        return self.assertions[number]


@dataclass(slots=True)
class PathTree:
    """A path tree. It is tried on a call as an entry would be."""

    root: BranchPoint
    entries: tuple[Entry, ...]
    used: int = 0
    runs: int = 0
    calls: int = 0
    standby: Standby | None = None  # what made the calls before
    _generators: Generators | None = field(default=None, init=False)
    _unordered: deque[Engine] = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self._unordered.extend(self.engines)
        # What one part has drawn must be undone if another part fails.
        drawing = [entry.whole for entry in self.entries if entry.whole.random]
        self._generators = Generators(drawing[0]) if drawing else None

    @property
    def engines(self) -> tuple[Engine, ...]:
        """What runs its parts, the shared ones first."""
        return (*(fork.engine for fork in self.forks()), *(entry.engine for entry in self.entries))

    @property
    def journaled(self) -> bool:
        """Whether extern calls are made before the commit."""
        return self.entries[0].journaled

    def choose(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """Run the parts before the last decision. Returns the entry to run next and the values that it takes, or else
        MISS, RAISED, or the Violation of a fork with no arm for this outcome. Nothing but generators has changed."""
        live: list[torch.Tensor] = []
        fork = self.root
        while True:
            given = fork.beginning.begin(args, kwargs, journal, live)
            if given is MISS or given is RAISED:
                return given
            flags = given[0].tolist()
            live += given[1:]
            if True not in flags:
                return Violation(Violated((0,)), fork)
            arm = fork.arms[flags.index(True)]
            if type(arm) is Entry:
                return arm, live
            fork = arm

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        """See Launch.call."""
        self.calls += 1
        if self.calls >= SETTLED and self._unordered and (self.calls - SETTLED) % APART == 0:
            self._unordered.popleft().compile()
        if (standby := self.standby) is not None:
            if standby.over:
                self.standby = None
            elif (result := self._by_standby(standby, args, kwargs, journal)) is not MISS:
                return result
        return self._made(lambda entry, live: entry.launch.call(args, kwargs, journal, live), args, kwargs, journal)

    def stand_by(self, before: Entry | PathTree) -> None:
        """Use the previous route until this one is compiled, if the previous one is compiled."""
        if Standby.pays(before):
            self.standby = Standby(before, self.engines)
        elif isinstance(before, PathTree) and before.standby is not None:
            self.standby = before.standby.of(self.engines)

    def _by_standby(
        self, standby: Standby, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None
    ) -> Any:
        try:
            result = standby.call(args, kwargs, journal)
        except Exception as error:
            return failure(error, self.entries[0])
        return replace(result, by=self.entries[0]) if type(result) is Failure else result

    def timed(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None, ticks: list[int]) -> Any:
        """See Launch.timed. The parts before the last decision count as running the graph."""
        started = time.perf_counter_ns()

        def run(entry: Entry, live: list[torch.Tensor]) -> Any:
            return entry.launch.timed(args, kwargs, journal, ticks, live)

        result = self._made(run, args, kwargs, journal)
        if len(ticks) == 4:
            begun, guarded, *others = ticks
            ticks[:] = [started, started + guarded - begun, *others]
        return result

    def _made(
        self,
        run: Callable[[Entry, list[torch.Tensor]], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        journal: Journal | None,
    ) -> Any:
        generators = self._generators
        states = None if generators is None else generators.save()
        done = False
        entry = self.entries[0]
        try:
            chosen = self.choose(args, kwargs, journal)
            if type(chosen) is not tuple:
                return chosen
            entry, live = chosen
            result = run(entry, live)
            if type(result) is Violation:
                return Violation(result.violated, entry)
            if type(result) is Failure:
                done = result.committing
                return replace(result, by=entry)
            done = result is not MISS and result is not RAISED
            entry.runs += done
            return result
        except Exception as error:
            return failure(error, entry)
        finally:
            if not done and generators is not None and states is not None:
                generators.restore(states)

    def path_to(self, entry: Entry) -> list[Assertion]:
        """Return the decisions that lead to an entry, from the first on."""

        def search(fork: BranchPoint) -> list[Assertion] | None:
            for arm, assertion in zip(fork.arms, fork.assertions, strict=True):
                below = search(arm) if isinstance(arm, BranchPoint) else [] if arm is entry else None
                if below is not None:
                    return [assertion, *below]
            return None

        return search(self.root) or []

    def forks(self) -> Iterator[BranchPoint]:
        """Yield all forks, breadth first."""
        pending = [self.root]
        while pending:
            fork = pending.pop(0)
            yield fork
            pending += [arm for arm in fork.arms if isinstance(arm, BranchPoint)]
