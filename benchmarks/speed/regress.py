"""Whether a new measurement of the papers' programs is worse than the recorded one, by more than the noise.

    python -m benchmarks.speed.regress NEW [RECORDED]

Takes a second.

Both are files of ``python -m benchmarks.speed.papers --record``; the recorded one is ``benchmarks/results/papers.json``
if none is named. Compared are torchjanus's ratios to eager in the same run, so that another machine's speed is no
regression. The noise is what the quartiles of either measurement say, and at least 5 %. Ends with 1 if a ratio is
worse, or a program is not speculated on any more, has more entries, or losses further from eager's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.record import RESULTS
from benchmarks.speed.papers.report import load

__all__ = ["main", "regressions"]

LEAST_NOISE = 0.05
FURTHER = 10.0  # losses may be so many times as far from eager's: rounding is no regression
ROUNDING = 1e-4


def noise(row: dict[str, Any]) -> float:
    """How far a ratio may be off, relatively: half the distance of its quartiles."""
    return float(row["high"] - row["low"]) / 2 / float(row["times_eager"])


def entries(row: dict[str, Any]) -> int:
    return int(row["graphs"].split()[0]) if row["graphs"] else 0


def regressions(recorded: dict[str, Any], new: dict[str, Any]) -> Iterator[str]:
    """What is worse, a line each; programs that only one of them holds are passed over."""
    for name in recorded.keys() & new.keys():
        before, after = (programs[name]["rows"].get("torchjanus") for programs in (recorded, new))
        if before is None or before["times_eager"] is None:
            continue
        if after is None or after["times_eager"] is None:
            yield f"{name}: does not run any more{'' if after is None else ': ' + after['note']}"
            continue
        allowed = max(LEAST_NOISE, noise(before) + noise(after))
        ratio = after["times_eager"] / before["times_eager"]
        if ratio < 1 - allowed:
            yield (
                f"{name}: {after['times_eager']:.2f} times eager, recorded are {before['times_eager']:.2f}: "
                f"{1 - ratio:.0%} less, and the noise is {allowed:.0%}"
            )
        if (after["served"] or 0.0) < (before["served"] or 0.0) - LEAST_NOISE:
            yield f"{name}: {after['served'] or 0.0:.0%} of the calls are served, recorded are {before['served']:.0%}"
        if entries(after) > entries(before):
            yield f"{name}: {entries(after)} entries, recorded are {entries(before)}"
        if after["difference"] > max(ROUNDING, FURTHER * before["difference"]):
            yield f"{name}: losses differ by {after['difference']:.0e}, recorded are {before['difference']:.0e}"


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.regress", description=__doc__)
    parser.add_argument("new", type=Path)
    parser.add_argument("recorded", type=Path, nargs="?", default=RESULTS / "papers.json")
    options = parser.parse_args(given)
    recorded, new = load(options.recorded), load(options.new)
    found = sorted(regressions(recorded, new))
    for line in found:
        print(line)
    print(f"{len(recorded.keys() & new.keys())} programs compared, {len(found)} regressions")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
