"""Runs the text of a made-up program eagerly and speculated, and says what became of it."""

from __future__ import annotations

import contextlib
import gc
import linecache
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.program import NAME
from tests.programs import harness

__all__ = ["Outcome", "check", "check_file"]

FIRST_CALLS = 4  # which are watched even when all is well


@dataclass
class Outcome:
    """What became of one program. ``late`` counts the calls after the first four; ``raised`` those eager raised in."""

    calls: int = 0
    speculated: int = 0
    late: int = 0
    late_speculated: int = 0
    raised: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    given_up: str = ""
    nondeterministic: bool = False
    found: list[str] = field(default_factory=list)  # differences and internal faults: none, we hope

    @property
    def refused(self) -> bool:
        """Whether no call ran as a graph because something was refused."""
        return not self.speculated and bool(self.refusals)


def check(source: str, folder: Path, stem: str = "fuzzed") -> Outcome:
    """Write the program to a file of its own, for a rewriter needs one, and run it."""
    path = folder / f"{stem}.py"
    path.write_text(source)
    # Texts of other programs may have been there.
    linecache.checkcache(str(path))
    return check_file(path)


def check_file(path: Path, name: str = NAME) -> Outcome:
    """Run a program both ways. Nothing of it stays behind."""
    outcome = Outcome()
    before = set(sys.modules)

    @contextlib.contextmanager
    def counting(number: int, steps: Sequence[Any]) -> Iterator[None]:
        earlier = sum(step.statistics().speculated for step in steps)
        yield
        ran = sum(step.statistics().speculated for step in steps) - earlier
        outcome.calls += 1
        outcome.speculated += ran
        if number >= FIRST_CALLS:
            outcome.late += 1
            outcome.late_speculated += ran

    try:
        eager = harness.run_in(harness.load_file(path), name, None)
        other = harness.run_in(harness.load_file(path), name, "replay", counting)
    finally:
        for module in set(sys.modules) - before:
            if module.startswith("programs_"):
                del sys.modules[module]
    outcome.raised = [": ".join(seen["raised"][:2]) for seen in eager.observed if seen.get("raised")]
    outcome.found = harness.compare(eager, other)
    if outcome.found and _is_nondeterministic(path, name, eager):
        outcome.found = []
        outcome.nondeterministic = True
    for step in other.steps:
        outcome.refusals += [f"{refusal.what}" for refusal in step.refusals]
        outcome.given_up = outcome.given_up or step.given_up
        outcome.found += [f"fault: {event.text}" for event in step.events if event.kind == "fault"]
    return outcome


def _is_nondeterministic(path: Path, name: str, eager: harness.Run) -> bool:
    """Whether not even eager agrees with itself, or all depends on when the collector of cycles runs: a class that is
    made in a call is one of its base's subclasses until then."""
    if harness.compare(eager, harness.run_in(harness.load_file(path), name, None)):
        return True
    if not _differs(path, name):  # found once, and not again
        return False
    gc.collect()
    gc.disable()
    try:
        return not _differs(path, name)
    finally:
        gc.enable()


def _differs(path: Path, name: str) -> bool:
    runs = [harness.run_in(harness.load_file(path), name, executor) for executor in (None, "replay")]
    return bool(harness.compare(*runs))
