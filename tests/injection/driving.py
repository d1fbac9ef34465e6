"""Runs a program of the corpus again and again, each call with another fault in one of its entries."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.programs import harness
from torchjanus.runtime.entry import Entry
from torchjanus.testing import Fault, Injection, faults, injected, rehearsed

__all__ = ["Report", "inject"]


@dataclass
class Report:
    """How many faults came into effect, and what was unequal then: nothing, we hope.

    ``rehearsed`` operations raised in a call that was then made again from the start; ``operations`` raised for good,
    so that eager made the call.
    """

    programs: int = 0
    entries: int = 0
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


Signature = tuple[int, tuple[str, ...], str]


class _Injector:
    """Chooses a fault for each call of one program's runs, until all have come into effect."""

    def __init__(self, category: str, name: str, seed: int) -> None:
        self.category = category
        self.name = name
        self.rng = random.Random(f"{category} {name} {seed}")
        self.report = Report(programs=1)
        self.left: dict[Signature, list[Fault]] = {}  # guards and assertions
        self.operations: dict[Signature, list[Fault]] = {}
        self.to_rehearse: set[Signature] = set()
        self.told: list[str] = []  # what was done in this run

    def survey(self, number: int, steps: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Notes the entries that there are after each call of an ordinary run."""

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            yield
            for signature, entry in _entries(steps):
                if signature not in self.left:
                    every = faults(entry)
                    self.left[signature] = [f for f in every if f.kind != "operation"]
                    self.operations[signature] = [f for f in every if f.kind == "operation"]
                    self.to_rehearse.add(signature)

        return around()

    def strike(self, number: int, steps: Sequence[Any]) -> contextlib.AbstractContextManager[None]:
        """Within, one fault strikes, of any kind."""

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            known = [(s, e) for s, e in _entries(steps) if s in self.left]
            # A call chosen at random for the rehearsals, and for an operation that raises for good.
            choice = self.rng.random()
            if known and choice < 0.2 and any(s in self.to_rehearse for s, _ in known):
                with self._rehearsal([(s, e) for s, e in known if s in self.to_rehearse]):
                    yield
            elif known and choice < 0.3 and not self.raised and any(self.operations[s] for s, _ in known):
                self.raised = True
                signature, entry = self.rng.choice([(s, e) for s, e in known if self.operations[s]])
                fault = self.rng.choice(self.operations[signature])
                with self._one(number, signature, entry, fault):
                    yield
            elif open_ones := [(s, e) for s, e in known if self.left[s]]:
                signature, entry = self.rng.choice(open_ones)
                with self._one(number, signature, entry, self.rng.choice(self.left[signature])):
                    yield
            else:
                yield

        return around()

    @contextlib.contextmanager
    def _one(self, number: int, signature: Signature, entry: Entry, fault: Fault) -> Iterator[None]:
        with injected(entry, fault) as injection:
            yield
        self.told.append(f"call {number}: {fault}{'' if injection.struck else ' (not reached)'}")
        if injection.struck:
            report = self.report
            if fault.kind == "operation":
                report.operations += 1
            else:
                self.left[signature].remove(fault)
                report.guards += fault.kind == "guard"
                report.assertions += fault.kind == "assertion"

    @contextlib.contextmanager
    def _rehearsal(self, known: list[tuple[Signature, Entry]]) -> Iterator[None]:
        told: list[list[Injection]] = []
        with contextlib.ExitStack() as stack:
            for signature, entry in known:
                told.append(stack.enter_context(rehearsed(entry, self.operations[signature])))
            yield
        for (signature, _), injections in zip(known, told, strict=True):
            struck = sum(injection.struck > 0 for injection in injections)
            if struck == len(injections):
                self.to_rehearse.discard(signature)
                self.report.rehearsed += struck
                self.told.append(f"{struck} operations raised")

    def run(self, runs: int | None) -> Report:
        """``runs``: after so many; None: as long as it leads anywhere."""
        eager = harness.run(self.category, self.name, None)
        harness.run(self.category, self.name, "replay", self.survey)
        report = self.report
        report.entries = len(self.left)
        in_vain = 0
        while (any(self.left.values()) or self.to_rehearse) and in_vain < 8:
            if runs is not None and report.runs >= runs:
                break
            before = self._remaining()
            self.raised = False
            self.told = []
            other = harness.run(self.category, self.name, "replay", self.strike)
            report.runs += 1
            report.calls += len(other.observed) - 1
            found = harness.compare(eager, other)
            events = [event for step in other.steps for event in step.events]
            found += [event.text for event in events if event.kind == "fault" and "Injected" not in event.text]
            if found:
                told = "; ".join(self.told)
                report.unequal.append(f"{self.category}-{self.name}: {found[0]} [after {told}]")
            in_vain = 0 if self._remaining() < before else in_vain + 1
        if runs is None:
            where = f"{self.category}-{self.name}"
            report.not_reached += [f"{where}: {fault}" for rest in self.left.values() for fault in rest]
            report.not_reached += [f"{where}: operations" for _ in self.to_rehearse]
        return report

    def _remaining(self) -> int:
        return sum(map(len, self.left.values())) + len(self.to_rehearse)


def _entries(steps: Sequence[Any]) -> Iterator[tuple[Signature, Entry]]:
    """The entries in use, each with what tells it from others in every run of the program."""
    for number, step in enumerate(steps):
        for entry in step.entries:
            yield (number, tuple(map(str, entry.assumptions)), entry.engine.replay.source), entry


def inject(category: str, name: str, seed: int, runs: int | None = None) -> Report:
    """Force what can be forced in the entries of a program. With no bound on ``runs``, every fault."""
    return _Injector(category, name, seed).run(runs)
