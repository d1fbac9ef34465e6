"""Force every guard, assertion and operation of every entry of the test corpus to fail: the outcome must be eager's.

python -m benchmarks.injection [--seed 0] [--only WORD] [--record]
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from tqdm import tqdm

from benchmarks.record import write
from tests.injection.driving import Report, inject
from tests.programs import harness


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.injection", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="programs whose category-name holds this")
    parser.add_argument("--runs", type=int, default=None, help="at most so many runs of a program")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("torchjanus").setLevel(logging.CRITICAL)
    chosen = [(c, n) for c, n in harness.programs() if given.only in f"{c}-{n}"]
    total = Report()
    began = time.perf_counter()
    with tqdm(chosen, unit=" programs", dynamic_ncols=True) as bar:
        for category, name in bar:
            report = inject(category, name, given.seed, given.runs)
            for text in report.unequal:
                bar.write(text)
            total.merge(report)
            forced = total.guards + total.assertions + total.operations + total.rehearsed
            bar.set_postfix(entries=total.entries, forced=forced, unequal=len(total.unequal))
    content = {"seed": given.seed, "seconds": round(time.perf_counter() - began, 1), **vars(total)}
    for key, value in content.items():
        print(f"{key}: {len(value) if isinstance(value, list) else value}")
    for text in (*total.unequal, *total.not_reached[:20]):
        print(text)
    if given.record:
        print(write("injection", sys.argv[1:], "cpu", content))
    return 1 if total.unequal else 0


if __name__ == "__main__":
    sys.exit(main())
