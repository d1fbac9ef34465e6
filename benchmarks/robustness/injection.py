"""Make every guard, assertion and operation of every entry of the test corpus fail: the outcome must be eager's.

    python -m benchmarks.robustness.injection [--seed 0] [--only WORD] [--every] [--jobs 1] [--record]

Takes many hours for the whole corpus; seconds a program.

Each fault is rehearsed: the call is then made again from the start. One guard and assertion of each sort, or with
--every all of them, and some operations fail for good, so that the speculated function has to find another way.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import logging
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from tqdm import tqdm

from benchmarks.record import write
from tests.injection.driving import Report, inject
from tests.programs import harness


def prepare() -> None:
    torch.set_num_threads(1)
    logging.getLogger("torchjanus").setLevel(logging.CRITICAL)


def one(chosen: tuple[str, str], seed: int, runs: int | None, every: bool) -> Report:
    with contextlib.redirect_stdout(io.StringIO()):  # some programs print between calls
        return inject(*chosen, seed, runs, every=every)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.robustness.injection",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="programs whose category-name holds this")
    parser.add_argument("--runs", type=int, default=None, help="at most so many runs of a program")
    parser.add_argument("--every", action="store_true", help="every guard and assertion fails for good once")
    parser.add_argument("--jobs", type=int, default=1, help="so many programs at once")
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    given = parser.parse_args()
    prepare()
    chosen = [(c, n) for c, n in harness.programs() if given.only in f"{c}-{n}"]
    work = functools.partial(one, seed=given.seed, runs=given.runs, every=given.every)
    total = Report()
    began = time.perf_counter()
    # Fresh interpreters: a fork would inherit torch's threads.
    pool = multiprocessing.get_context("spawn").Pool(given.jobs, prepare) if given.jobs > 1 else None
    reports: Iterable[Report] = map(work, chosen) if pool is None else pool.imap(work, chosen)
    with tqdm(reports, total=len(chosen), unit=" programs", dynamic_ncols=True) as bar:
        for report in bar:
            for text in report.unequal:
                bar.write(text)
            total.merge(report)
            forced = total.guards + total.assertions + total.operations + total.rehearsed
            bar.set_postfix(entries=total.entries, forced=forced, unequal=len(total.unequal))
    if pool is not None:
        pool.close()
        pool.join()
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
