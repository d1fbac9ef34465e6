"""Co-execution forced on programs: those after public scripts, and those of the corpus.

    python -m benchmarks.robustness.coexecuted [NAME ...] [--outside] [--refused] [--served] [--every N] [--offset K]
    python -m benchmarks.robustness.coexecuted --served --every 12 --merged

Takes about ten minutes for programs after public scripts and refused ones on a quiet machine; about a second for each
that whole graphs serve.

``--refused``: the programs of the corpus of which no whole graph is made; ``--served``: those that whole graphs serve.

Each program runs eager and with ``executor="coexecute"`` from the same seeds; results, state, output, what was raised
and the generators have to be the same, bit by bit. The table says how many calls were served, what share of the
operators graphs made, how many calls diverged, and the reasons of calls that were not served. Without a choice the
first two kinds run; ``--every N`` takes each Nth program of the corpus, from the Kth on. ``--merged``:
operators are merged from the second call on, which programs of ten calls never reach. Names are those of outside
programs, or ``category-program``.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from benchmarks.robustness.outside import compared
from tests.outside import PROGRAMS
from tests.programs import harness
from torchjanus.runtime.coexecution import runner

__all__ = ["Row", "corpus", "main", "of_the_corpus", "outside"]


@dataclass(frozen=True)
class Row:
    """One program. ``different``: where it is not eager's; ``reasons``: of calls that were not served."""

    name: str
    different: tuple[str, ...]
    calls: int
    served: int
    matched: float
    transitions: int
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        verdict = "DIFFERS" if self.different else "equal"
        why = f"  {', '.join(self.reasons)}" if self.reasons else ""
        return (
            f"{self.name:58.58} {verdict}  {self.served:3} of {self.calls:3} calls served, "
            f"{self.matched:4.0%} of operators, {self.transitions} diverged{why}"
        )


def _row(name: str, different: Sequence[str], steps: Sequence[object]) -> Row:
    reports = [report for step in steps if (report := step.coexecution) is not None]  # type: ignore[attr-defined]
    reasons = [refusal.reason for step in steps for refusal in step.refusals]  # type: ignore[attr-defined]
    faults = [event.text for step in steps for event in step.events if event.kind == "fault"]  # type: ignore[attr-defined]
    return Row(
        name,
        (*different, *faults),
        sum(step.statistics().calls for step in steps),  # type: ignore[attr-defined]
        sum(report.served for report in reports),
        sum(report.matched for report in reports) / max(len(reports), 1),
        sum(report.transitions for report in reports),
        tuple(dict.fromkeys(reasons)),
    )


def outside(name: str) -> Row:
    """Run a program of ``tests/outside``."""
    one = compared(name, "coexecute")
    return _row(name, () if one.equal else ("results or state",), [one.step])


def of_the_corpus(category: str, name: str) -> Row:
    """Run a program of the corpus."""
    eager = harness.run(category, name, None)
    other = harness.run(category, name, "coexecute")
    return _row(f"{category}-{name}", harness.compare(eager, other), other.steps)


def corpus(*, refused: bool) -> Iterator[tuple[str, str]]:
    """Yield the programs of the corpus that no whole graph can be made of, or the others."""
    for category in harness.files():
        module = harness.load(category)
        for name in harness.programs_in(module):
            if bool(getattr(module, name).spec.refused) is refused:
                yield category, name


def _chosen(options: argparse.Namespace, both: bool) -> Iterator[tuple[str, str]]:
    for is_refused, is_asked in ((True, both or options.refused), (False, options.served)):
        for number, (category, name) in enumerate(corpus(refused=is_refused)):
            is_next = is_asked and number % options.every == options.offset
            if is_next or f"{category}-{name}" in options.names:
                yield category, name


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    both = not (options.outside or options.refused or options.served or options.names)
    for name in PROGRAMS:
        if both or options.outside or name in options.names:
            yield outside(name)
    for category, name in _chosen(options, both):
        yield of_the_corpus(category, name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--outside", action="store_true", help="programs after public scripts")
    parser.add_argument("--refused", action="store_true", help="refused programs of the corpus")
    parser.add_argument("--served", action="store_true", help="programs of the corpus that whole graphs serve")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--offset", type=int, default=0, metavar="K")
    parser.add_argument("--merged", action="store_true", help="merge operators from the second call on")
    options = parser.parse_args(arguments)
    if options.merged:
        runner._VARIED = 1
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    for row in _rows(options):
        rows.append(row)
        print(row, flush=True)
        for text in row.different:
            print(f"    {text}")
    wrong = sum(bool(row.different) for row in rows)
    partly = sum(row.served > 0 for row in rows)
    print(f"{len(rows)} programs: {partly} with served calls, {wrong} different from eager")
    calls, served = sum(row.calls for row in rows), sum(row.served for row in rows)
    print(f"{served} of {calls} calls served; {sum(row.transitions for row in rows)} diverged")
    for reason, count in Counter(reason for row in rows for reason in row.reasons).most_common():
        print(f"    {reason:24} {count} programs")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
