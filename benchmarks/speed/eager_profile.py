"""Where eager spends a step's time, and so how much a compiler of the whole step could gain at most.

    python -m benchmarks.speed.eager_profile [--only lstm gpt2 ...] [--calls 5] [--record]

Takes ten minutes; one with ``--small``.

Matrix products and convolutions are calls of the same libraries whoever makes them; everything else (Python, dispatch,
element-wise kernels, clearing and adding up gradients, the optimizer) a compiler may hope to be rid of. So the time of
a whole step over that of its products is what a perfect one would gain on this machine, if it made the same products
(many small ones made as a few large ones, as torchjanus does with trees, may gain more). One thread; the papers'
programs; torch's profiler says what each operation takes by itself, a run without it what the step takes.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from dataclasses import asdict, dataclass

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from benchmarks.record import write
from benchmarks.speed.papers import PROGRAMS

__all__ = ["Shares", "main", "shares"]

PRODUCTS = frozenset(
    """mm addmm bmm baddbmm addmv mv dot convolution _convolution mkldnn_convolution convolution_backward
    _slow_conv2d_forward _slow_conv2d_backward slow_conv_dilated2d slow_conv_transpose2d convolution_overrideable
    mkldnn_rnn_layer mkldnn_rnn_layer_backward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward thnn_conv2d""".split()
)
WARM = 3


@dataclass(frozen=True, slots=True)
class Shares:
    """One program. Milliseconds of a step; ``products`` and ``others``: of it in operations of ATen, by themselves."""

    program: str
    step: float
    products: float
    others: float

    @property
    def between(self) -> float:
        """What is spent between operations: Python, autograd's graph, dispatch."""
        return max(self.step - self.products - self.others, 0.0)

    @property
    def limit(self) -> float:
        """How many times eager's speed, if all but the products were free."""
        return self.step / self.products if self.products else float("inf")


def shares(name: str, calls: int, small: bool = False) -> Shares:
    """Run a program by eager and see what takes its time."""
    program = PROGRAMS[name].make(0, small)
    for _ in range(WARM):
        program.step(*next(program.batches))
    seconds = []
    for _ in range(calls):
        batch = next(program.batches)
        began = time.perf_counter()
        program.step(*batch)
        seconds.append(time.perf_counter() - began)
    batches = [next(program.batches) for _ in range(calls)]
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for batch in batches:
            program.step(*batch)
    products = others = 0.0
    for row in seen.key_averages():
        if row.key.startswith("aten::"):
            taken = row.self_cpu_time_total / 1e3 / calls
            if row.key.removeprefix("aten::") in PRODUCTS:
                products += taken
            else:
                others += taken
    return Shares(name, 1e3 * statistics.median(seconds), products, others)


def table(found: list[Shares]) -> Table:
    made = Table(title="where eager spends a step (one thread)", box=SIMPLE)
    for column in ("program", "step (ms)", "products", "other operations", "between", "limit (times eager)"):
        made.add_column(column, justify="left" if column == "program" else "right")
    for one in found:
        parts = (one.products, one.others, one.between)
        made.add_row(one.program, f"{one.step:.1f}", *(f"{part:.1f}" for part in parts), f"{one.limit:.2f}")
    return made


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed.eager_profile", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--only", nargs="+", choices=list(PROGRAMS), metavar="PROGRAM", default=list(PROGRAMS))
    parser.add_argument("--calls", type=int, default=5, help="steps that are timed, and steps that are looked into")
    parser.add_argument("--small", action="store_true", help="the programs in small: times say nothing")
    parser.add_argument(
        "--record", action="store_true", help="keep the outcome in benchmarks/results/eager_profile.json"
    )
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    found = [shares(name, options.calls, options.small) for name in options.only]
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(table(found))
    if options.record:
        rows = [asdict(one) | {"between": one.between, "limit": one.limit} for one in found]
        print(write("eager_profile", sys.argv[1:] if given is None else given, "cpu", {"programs": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
