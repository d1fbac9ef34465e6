"""Runs a program of the corpus again and again, each call with another fault in one of its entries."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.programs import harness
from torchjanus.runtime.entries.entry import Entry
from torchjanus.testing import Fault, Injection, Part, faults, injected, parts, rehearsed

__all__ = ["Report", "inject"]


@dataclass
class Report:
    """How many faults came into effect, and what was unequal then: nothing, we hope.

    ``entries`` serve at least one call; ``idle`` ones are made and serve none, so nothing can be forced in them.
    ``rehearsed`` faults struck in a call that was then made again from the start; ``guards``, ``assertions`` and
    ``operations`` failed for good, so that the speculated function had to find another way.
    """

    programs: int = 0
    entries: int = 0
    idle: int = 0
    guards: int = 0
    assertions: int = 0
    operations: int = 0
    rehearsed: int = 0
    runs: int = 0
    calls: int = 0
    not_reached: list[str] = field(default_factory=list)
    unequal: list[str] = field(default_factory=list)

    def merge(self, other: Report) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


OPERATIONS = 3  # of an entry, that raise for good

Signature = tuple[int, tuple[str, ...], str]


# By which a graph names what runs a loop or a recursion: another one in each run.
_LOADED = re.compile(r"(programs_\w+?)_\d+")  # a module of the corpus, which each run loads anew under another name
_KEY = re.compile(r"(?<=\.default\()\d+(?=, )")


class _Injector:
    """Chooses a fault for each call of one program's runs, until all have come into effect."""

    def __init__(self, category: str, name: str, seed: int, every: bool) -> None:
        self.category = category
        self.name = name
        self.every = every
        self.rng = random.Random(f"{category} {name} {seed}")
        self.report = Report(programs=1)
        self.to_rehearse: dict[Signature, list[Fault]] = {}
        self.left: dict[Signature, list[Fault]] = {}  # guards and assertions that are to fail for good
        self.operations: dict[Signature, list[Fault]] = {}
        self.calls = 0
        self.used: dict[Signature, Part] = {}  # in the ordinary run
        # Of one run:
        self.met: dict[int, tuple[Signature, Part]] = {}
        self.routes: dict[int, tuple[Any, Any]] = {}  # what was tried on calls, and what had learnt it
        self.reported: list[str] = []

    def _entries(self, steps: Sequence[Any]) -> list[tuple[Signature, Part]]:
        """The entries in use, each with what tells it from others in every run of the program."""
        found = []
        for number, step in enumerate(steps):
            self.routes.update((id(route), (step._learning, route)) for route in step._learning.routes)
            for entry in parts(step):
                if id(entry) not in self.met:
                    # Once, when it is new: an assumption names an object by its class, which may change later.
                    relied_on = entry.assumptions if isinstance(entry, Entry) else entry.own
                    signature = (
                        number,
                        tuple(_LOADED.sub(r"\1", str(one)) for one in relied_on),
                        _KEY.sub("", entry.lowered.graph.code),
                    )
                    self.met[id(entry)] = (signature, entry)
                found.append(self.met[id(entry)])
        return found

    def survey(self, number: int, steps: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Notes the entries that there are before each call of an ordinary run."""

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            for signature, entry in self._entries(steps):
                self.used[signature] = entry
                if signature not in self.left:
                    every = faults(entry)
                    lasting = [fault for fault in every if fault.kind != "operation"]
                    self.left[signature] = lasting if self.every else self._one_of_each_sort(lasting)
                    operations = [fault for fault in every if fault.kind == "operation"]
                    self.operations[signature] = self.rng.sample(operations, min(len(operations), OPERATIONS))
                    self.to_rehearse[signature] = every
            yield

        return around()

    def _one_of_each_sort(self, every: list[Fault]) -> list[Fault]:
        return list({fault.sort: fault for fault in self.rng.sample(every, len(every))}.values())

    def strike(self, number: int, steps: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Within, one fault strikes for good, of any kind, or all are rehearsed."""

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            self._put_back(steps)
            known = [(s, e) for s, e in self._entries(steps) if s in self.left]
            choice = self.rng.random()
            if choice < 0.3 and any(self.to_rehearse[s] for s, _ in known):
                with self._rehearsal([(s, e) for s, e in known if self.to_rehearse[s]]):
                    yield
            elif choice < 0.6 and self._is_late(number) and any(self.operations[s] for s, _ in known):
                signature, entry = next((s, e) for s, e in known if self.operations[s])
                with self._one(number, signature, entry, self.rng.choice(self.operations[signature])):
                    yield
            elif open_ones := [(s, e) for s, e in known if self.left[s]]:
                signature, entry = open_ones[0]
                with self._one(number, signature, entry, self.rng.choice(self.left[signature])):
                    yield
            else:
                yield

        return around()

    def _is_known(self, route: Any) -> bool:
        return all(id(entry) in self.met and self.met[id(entry)][0] in self.left for entry in route.entries)

    def _is_late(self, number: int) -> bool:
        """Whether an operation may raise for good: after that the function often gives up."""
        return number >= self.calls * 2 // 3

    def _put_back(self, steps: Sequence[Any]) -> None:
        """Entries that gave way to others after a fault may be used again, and any may come first: so one run is enough
        for many faults."""
        for step in steps:
            routes = step._learning.routes
            self._entries(steps)
            here = list(routes)
            if self.rng.random() < 0.7:
                # Not those of before a cut: they are of other statements.
                gone = [r for learning, r in self.routes.values() if learning is step._learning and self._is_known(r)]
                here += [route for route in gone if all(route is not other for other in here)]
                self.rng.shuffle(here)
            routes.keep(here)

    @contextlib.contextmanager
    def _one(self, number: int, signature: Signature, entry: Part, fault: Fault) -> Iterator[None]:
        with injected(entry, fault) as injection:
            yield
        self.reported.append(f"call {number}: {fault}{'' if injection.struck else ' (not reached)'}")
        if injection.struck:
            report = self.report
            (self.operations if fault.kind == "operation" else self.left)[signature].remove(fault)
            report.operations += fault.kind == "operation"
            report.guards += fault.kind == "guard"
            report.assertions += fault.kind == "assertion"

    @contextlib.contextmanager
    def _rehearsal(self, known: list[tuple[Signature, Part]]) -> Iterator[None]:
        reported: list[list[Injection]] = []
        with contextlib.ExitStack() as stack:
            for signature, entry in known:
                reported.append(stack.enter_context(rehearsed(entry, self.to_rehearse[signature])))
            yield
        for (signature, _), injections in zip(known, reported, strict=True):
            self.to_rehearse[signature] = [injection.fault for injection in injections if not injection.struck]
            struck = len(injections) - len(self.to_rehearse[signature])
            if struck:
                self.report.rehearsed += struck
                self.reported.append(f"{struck} faults rehearsed")

    def run(self, runs: int | None) -> Report:
        """``runs``: after so many; None: as long as it leads anywhere."""
        eager = harness.run(self.category, self.name, None)
        self.calls = len(eager.observed) - 1
        self.close = getattr(harness.load(self.category), self.name).spec.close
        harness.run(self.category, self.name, "replay", self.survey)
        report = self.report
        for signature, entry in self.used.items():
            if not entry.runs:
                report.idle += 1
                for some in (self.left, self.operations, self.to_rehearse):
                    del some[signature]
        self.used.clear()
        report.entries = len(self.left)
        for_nothing = 0
        while self._remaining() and for_nothing < 5:
            if runs is not None and report.runs >= runs:
                break
            before = self._remaining()
            self.met, self.routes = {}, {}
            self.reported = []
            other = harness.run(self.category, self.name, "replay", self.strike)
            report.runs += 1
            report.calls += self.calls
            events = [event for step in other.steps for event in step.events]
            found = [event.text for event in events if event.kind == "fault" and "Injected" not in event.text]
            found += harness.compare(eager, other, self.close)
            if found:
                reported = "; ".join(self.reported)
                report.unequal.append(f"{self.category}-{self.name}: {found[0]} [after {reported}]")
            for_nothing = 0 if self._remaining() < before else for_nothing + 1
        if runs is None:
            where = f"{self.category}-{self.name}"
            report.not_reached += [f"{where}: {fault}" for rest in self.left.values() for fault in rest]
            report.not_reached += [
                f"{where}: {fault}, rehearsed" for rest in self.to_rehearse.values() for fault in rest
            ]
        return report

    def _remaining(self) -> int:
        return sum(len(rest) for some in (self.left, self.to_rehearse) for rest in some.values())


def inject(category: str, name: str, seed: int, runs: int | None = None, *, every: bool = False) -> Report:
    """Force what can be forced in the entries of a program. With no bound on ``runs``: rehearse every fault, and let
    one guard or assertion of each sort fail for good, or with ``every`` all of them."""
    return _Injector(category, name, seed, every).run(runs)
