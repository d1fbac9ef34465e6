"""The digits example's step, eager and speculated side by side: time per step, and whether the losses agree.

Both start from the same seed in one process and see the same batches; they take turns in short blocks, so that
whatever else the machine does falls on both.

    python examples/compare.py
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import digits
import torch
from rich.console import Console
from rich.table import Table

import torchjanus

BLOCK = 10
# Relative, at every step. Training amplifies rounding: two eager runs of which one started with a weight matrix off by
# 1e-7 were 2e-7 apart after 50 steps, up to 3e-7 after 100 and up to 2e-6 after 300.
TOLERANCE = 1e-4

Batch = tuple[torch.Tensor, torch.Tensor]


class Contender:
    """One way to run the step, with a model, an optimizer, a schedule and random numbers of its own."""

    def __init__(
        self, name: str, step: Callable[..., tuple[torch.Tensor, torch.Tensor]], seed: int, total: int
    ) -> None:
        self.name = name
        self.step = step
        torch.manual_seed(seed)
        self.model, self.optimizer, self.schedule = digits.build(total)
        self.random = torch.get_rng_state()
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def advance(self, batches: list[Batch]) -> None:
        torch.set_rng_state(self.random)
        for images, labels in batches:
            begin = time.perf_counter()
            loss, _ = self.step(self.model, self.optimizer, images, labels)
            self.seconds.append(time.perf_counter() - begin)
            self.losses.append(loss.item())
            self.schedule.step()
        self.random = torch.get_rng_state()

    def median_ms(self, warm: int) -> float:
        return statistics.median(self.seconds[warm:]) * 1e3


def endless(seed: int) -> Iterator[Batch]:
    """The shuffled batches of epoch after epoch."""
    loader, _, _ = digits.load(seed)
    while True:
        yield from loader


def blocks(seed: int, steps: int) -> list[list[Batch]]:
    torch.manual_seed(seed)
    batches = list(itertools.islice(endless(seed), steps))
    return [batches[start : start + BLOCK] for start in range(0, steps, BLOCK)]


def largest_difference(left: list[float], right: list[float]) -> float:
    """The largest difference of two curves at any step, relative to the largest loss. (Compilers round otherwise; where
    the loss is near to nothing, one number that rounding takes to the other side of a ReLU is much of it.)"""
    return max(abs(a - b) for a, b in zip(left, right, strict=True)) / max(1e-12, *map(abs, left))


def plot(eager: list[float], speculated: list[float], width: int = 66, height: int = 14) -> str:
    """Both loss curves in characters, each column a mean over its steps: 'e' eager, 's' speculated, '*' both."""
    width = min(width, len(eager))
    edges = [len(eager) * column // width for column in range(width + 1)]
    columns = [
        [statistics.fmean(losses[start:end]) for start, end in itertools.pairwise(edges)]
        for losses in (eager, speculated)
    ]
    top = max(*columns[0], *columns[1])
    rows = [[" "] * width for _ in range(height)]
    for mark, values in zip("es", columns, strict=True):
        for x, value in enumerate(values):
            row = rows[height - 1 - round(value / top * (height - 1))]
            row[x] = mark if row[x] == " " else "*"
    labels = [f"{top * (height - 1 - y) / (height - 1):7.3f} |" if y % 4 == 1 else " " * 8 + "|" for y in range(height)]
    lines = ["training loss (e eager, s speculated, * both)"]
    lines += [label + "".join(row).rstrip() for label, row in zip(labels, rows, strict=True)]
    lines += [" " * 8 + "+" + "-" * width, f"{'1':>10}{f'step {len(eager)}':>{width - 1}}"]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--warm", type=int, default=40, help="steps that are not timed: watched runs and compilation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--executor", default="auto", help="which executor torchjanus uses")
    options = parser.parse_args(arguments)
    if not 0 <= options.warm < options.steps:
        parser.error(f"--warm {options.warm} leaves none of --steps {options.steps} to be timed")

    step = torchjanus.speculate(digits.train_step, executor=options.executor)
    eager = Contender("eager", digits.train_step, options.seed, options.steps)
    speculated = Contender("speculated", step, options.seed, options.steps)
    waited = False
    for block in blocks(options.seed, options.steps):
        eager.advance(block)
        speculated.advance(block)
        if not waited and len(speculated.losses) >= options.warm:
            step.wait()
            waited = True

    console = Console()
    counts = step.statistics()
    table = Table(title=f"digits convnet, batches of {digits.BATCH}, {torch.get_num_threads()} thread(s)")
    for column in ("", "eager", "speculated"):
        table.add_column(column, justify="right" if column else "left")
    slow, fast = eager.median_ms(options.warm), speculated.median_ms(options.warm)
    table.add_row("median step, ms", f"{slow:.3f}", f"{fast:.3f}")
    table.add_row("speed, times eager", "1.00", f"{slow / fast:.2f}")
    table.add_row("calls speculated", "0", f"{counts.speculated} of {counts.calls}")
    table.add_row("compilations", "0", str(counts.compiles))
    apart = largest_difference(eager.losses, speculated.losses)
    table.add_row("largest difference of losses", "", f"{apart:.1e} of the largest")
    console.print(table)
    console.print(plot(eager.losses, speculated.losses), highlight=False)
    agree = apart <= TOLERANCE
    verdict = "agree" if agree else "DIFFER"
    console.print(
        f"The losses {verdict}: {apart:.1e} of the largest at most over {options.steps} steps; "
        f"{TOLERANCE:.0e} is allowed."
    )
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
