"""Data-parallel training by several processes on this machine: eager DistributedDataParallel, and speculated.

    python -m benchmarks.speed.data_parallel [--only mlp lstm ...] [--ranks 2 4] [--calls 60] [--record]
        [--bucket MB] [--link MS MB/S] [--compile [SECONDS]]

Takes some minutes. The processes talk by gloo. All ways train from the same state on the same batches, call by call in
turn, each rank on batches of its own. Loss, parameters and buffers are compared bit by bit after each call: of the
speculated way with the eager one, and of the parameters of all ranks. (TreeLSTM's calls are batched, so it is compared
with eager up to rounding.) Times are medians, of the calls that a graph made, of the slowest rank.

What the ranks spend on agreeing. ``wire``: whether the speculated way has sent what eager has, collective by collective
with their bytes: then nothing. ``checking``: the microseconds in which a call looks at its flags (``flags`` of them)
before its collectives, and stops and goes on there. ``one flag``: the microseconds of an all-reduce of one number among
these ranks, which is what agreeing would take where it could not ride another one.

``--link``: in every second call each collective takes so many milliseconds longer, and its bytes over that rate (a
simulated link). The part of this by which a call does not get longer is hidden behind other work.
``--compile``: also DistributedDataParallel on a model that ``torch.compile`` compiles, beside eager in processes of its
own, with an empty cache. They are ended after so many seconds (120), and the row says in which call they were.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.record import write
from benchmarks.speed.data_parallel.measure import Options, Row
from benchmarks.speed.data_parallel.programs import PROGRAMS
from benchmarks.speed.data_parallel.ranks import rows

__all__ = ["main"]


def _shown(row: Row) -> str:
    compiled = f"torch.compile {row.compiled_note}  " if row.compiled_note else ""
    if row.compiled == row.compiled:  # no NaN
        compiled = f"torch.compile {row.beside / row.compiled:.2f} times ({row.beside:.2f}, {row.compiled:.2f} ms)  "
    hidden = ", ".join(f"{which} {100 * share:.0f} %" for which, share in row.hidden.items())
    return (
        f"{row.program:9} {row.ranks} ranks  eager {row.eager:7.2f} ms  speculated {row.speculated:7.2f} ms  "
        f"{row.eager / row.speculated:5.2f} times  {compiled}served {row.served} of {row.calls}  equal {row.equal}  "
        f"wire {row.wire}: {row.collectives:.0f} collectives, {row.kilobytes:.1f} kB, {row.waiting:.2f} ms in them  "
        f"agreeing: {'0' if row.wire else 'other'} bytes, {row.flags} flags, checking {row.checking:.0f} us, "
        f"one flag {row.one_flag:.0f} us" + (f"  of {row.link:.1f} ms of the link hidden: {hidden}" if row.link else "")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Returns 1 if anything was unequal, or other bytes were sent."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed.data_parallel", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--ranks", nargs="+", type=int, default=[2])
    parser.add_argument("--calls", type=int, default=60)
    parser.add_argument("--executor", default="replay", help="bitwise equality holds with replay")
    parser.add_argument("--bucket", type=float, help="megabytes of a bucket of gradients")
    parser.add_argument("--link", nargs=2, type=float, metavar=("MS", "MB/S"), help="a simulated link")
    parser.add_argument("--compile", nargs="?", type=float, const=120.0, metavar="SECONDS", help="torch.compile, too")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results/data_parallel_N_ranks.json")
    asked = parser.parse_args(arguments)
    link = None if asked.link is None else (asked.link[0], asked.link[1])
    options, failed = Options(asked.calls, asked.executor, asked.bucket, link), False
    for ranks in asked.ranks:
        found = []
        for row in rows(asked.only, ranks, options, asked.compile):
            print(_shown(row), flush=True)
            found.append(asdict(row))
            failed = failed or not (row.equal and row.wire)
        if asked.record:
            given = sys.argv[1:] if arguments is None else arguments
            write(f"data_parallel_{ranks}_ranks", given, "cpu", {"programs": found})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
