"""Many made-up programs: what became of them all, and the smallest forms of those that differ from eager."""

from __future__ import annotations

import collections
import itertools
import re
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz.objects import object_sources
from tests.fuzz.program import sources
from tests.fuzz.reducing import reduced
from tests.fuzz.running import Outcome, check

__all__ = ["TOPICS", "Summary", "campaign", "kind_of", "place_of", "reduce_failure"]

TOPICS = ("training", "objects")  # what programs are about


@dataclass
class Summary:
    """Counts over programs and over their calls. A late call is one after the first four of its program."""

    programs: int = 0
    calls: int = 0
    speculated: int = 0
    late: int = 0
    late_speculated: int = 0
    raised: int = 0  # calls that ended with an exception of the program's
    refused: int = 0  # programs of which no call was speculated since something was refused
    given_up: int = 0  # other programs that were given up
    nondeterministic: int = 0
    mismatches: int = 0
    refusals: dict[str, int] = field(default_factory=dict)  # programs by the first thing refused
    found: list[str] = field(default_factory=list)  # files of the programs that differ

    def add(self, outcome: Outcome) -> None:
        self.programs += 1
        self.calls += outcome.calls
        self.speculated += outcome.speculated
        self.late += outcome.late
        self.late_speculated += outcome.late_speculated
        self.raised += len(outcome.raised)
        self.refused += outcome.refused
        self.given_up += bool(outcome.given_up) and not outcome.refused
        self.nondeterministic += outcome.nondeterministic
        self.mismatches += bool(outcome.found)
        if outcome.refused:
            what = outcome.refusals[0]
            self.refusals[what] = self.refusals.get(what, 0) + 1

    def merge(self, other: Summary) -> None:
        for name, value in asdict(other).items():
            mine = getattr(self, name)
            if isinstance(value, dict):
                setattr(self, name, dict(collections.Counter(mine) + collections.Counter(value)))
            else:
                setattr(self, name, mine + value)

    def reported(self) -> dict[str, Any]:
        """The counts with the shares that matter, the most frequent refusals first."""
        content = asdict(self)
        content["late_share"] = round(self.late_speculated / max(self.late, 1), 4)
        content["refused_share"] = round(self.refused / max(self.programs, 1), 4)
        content["refusals"] = dict(collections.Counter(self.refusals).most_common())
        return content


def campaign(
    count: int,
    seed: int,
    found: Callable[[str, Outcome], None],
    after: Callable[[Summary], None] = lambda _: None,
    topic: str = "training",
) -> Summary:
    """Run ``count`` programs about the ``topic``, made from ``seed``. ``found`` gets each text that differs; ``after``
    is reported of all."""
    summary = Summary()

    def run(source: str) -> None:
        if summary.programs >= count:
            return
        with tempfile.TemporaryDirectory() as folder:
            # A file of its own for each: line tables and rewritten code are looked up by file.
            outcome = attempt(source, Path(folder), f"fuzzed_{seed}_{summary.programs}")
        summary.add(outcome)
        if outcome.found:
            found(source, outcome)
        after(summary)

    if topic == "objects":
        for text in object_sources(count, seed):
            run(text)
        return summary

    # Programs are made small by their text (``reducing``): hypothesis only makes them, and never sees a failure.
    @hypothesis.seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(sources())
    def one(source: str) -> None:
        run(source)

    one()
    return summary


def attempt(source: str, folder: Path, stem: str) -> Outcome:
    """As ``check``; an exception out of torchjanus, where eager raised none, is a find."""
    try:
        return check(source, folder, stem)
    except Exception:
        return Outcome(found=[f"crash: {traceback.format_exc(limit=-3)}"])


def kind_of(outcome: Outcome) -> str:
    """Roughly what differs, so that a smaller program is not one of another bug."""
    first = outcome.found[0] if outcome.found else ""
    if first.startswith(("fault", "crash")):
        return first.partition(":")[0]
    where, _, what = first.partition(": ")
    # Other kinds of things differ: a traced number that got out is not a wrong one.
    return f"{where.partition(', ')[2]}{' (traced)' * ('Traced' in what)}"


def place_of(outcome: Outcome) -> str:
    """What differs first, but for numbers: programs that hypothesis made from one another differ alike."""
    return re.sub(r"[0-9.e+-]+", "#", outcome.found[0])[:200] if outcome.found else ""


def reduce_failure(source: str, outcome: Outcome, budget: int = 300) -> str:
    """A small program that differs in the same respect."""
    wanted = kind_of(outcome)
    numbers = itertools.count()
    with tempfile.TemporaryDirectory() as folder:

        def fails(text: str) -> bool:
            trial = attempt(text, Path(folder), f"reduced_{next(numbers)}")
            return bool(trial.found) and kind_of(trial) == wanted

        return reduced(source, fails, budget)
