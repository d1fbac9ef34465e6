"""A step with two branches that tensors decide, each taken at random: how many calls are served, and how fast.

    python -m benchmarks.speed.branches [--calls 600] [--width 128] [--record]

Takes some minutes.

A training step of a gated network: the input decides which of two experts is used (the other gets no gradient, and the
optimizer skips it), the gradient's norm whether the optimizer steps at all. Every call is made by eager, by torchjanus
(replay, and auto) and by torch.compile on copies of one model, one after the other; results, parameters and gradients
(those that are None, too) are compared after each. Reported are the calls served after the warm-up and the medians.
"""

from __future__ import annotations

import argparse
import copy
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import torch
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from tqdm import tqdm

import torchjanus
from benchmarks.record import write

__all__ = ["Branched", "Contender", "compared", "main", "make_step"]

WARM = 200
SETTLING = 10  # calls between two of them that wait until what has been ordered is compiled
CONTENDERS = ("eager", "replay", "auto", "torch.compile")


class Gated(nn.Module):
    """Two experts behind a common trunk."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(width))
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 8)) for _ in range(2)
        )
        self.used = [0, 0]

    def forward(self, x: Tensor) -> Tensor:
        h = self.trunk(x)
        chosen = 0 if x[:, 0].mean() > 0 else 1
        self.used[chosen] += 1
        scores: Tensor = self.experts[chosen](h)
        return scores


@dataclass
class Contender:
    """One way of running the step, on a model of its own."""

    model: Gated
    optimizer: torch.optim.Optimizer
    call: Callable[[Tensor, Tensor], Tensor]
    skipped: list[int]


def make_step(
    model: Gated, optimizer: torch.optim.Optimizer, skipped: list[int], limit: float
) -> Callable[..., Tensor]:
    """The training step."""

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
        if norm < limit:
            optimizer.step()
        else:
            skipped[0] += 1
        return loss.detach()

    return step


@dataclass(frozen=True)
class Branched:
    """What one contender did. ``ratio``: eager's median over its own, from interleaved calls after the warm-up."""

    name: str
    served: float | None  # share of the calls after the warm-up that ran as a graph
    compiles: int | None
    unequal: int  # calls after which something differed from eager
    median_us: float
    ratio: float


def _batches(calls: int, width: int) -> list[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(7)
    made = []
    for _ in range(calls):
        x = torch.randn(32, width, generator=draw)
        x[:, 0] = x[:, 0].abs() * (1 if torch.rand((), generator=draw) < 0.5 else -1)
        x *= 1 if torch.rand((), generator=draw) < 0.5 else 4  # large inputs make large gradients
        made.append((x, torch.randint(8, (32,), generator=draw)))
    return made


def compared(calls: int = 600, width: int = 128, names: tuple[str, ...] = CONTENDERS) -> list[Branched]:
    """All contenders on the same calls, interleaved."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    first = Gated(width)
    batches = _batches(calls, width)
    limit = _median_norm(copy.deepcopy(first), batches[:40])
    contenders: dict[str, Contender] = {}
    for name in names:
        model = copy.deepcopy(first)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        skipped = [0]
        step: Any = make_step(model, optimizer, skipped, limit)
        if name == "torch.compile":
            step = torch.compile(step)
        elif name != "eager":
            step = torchjanus.speculate(step, executor=name)
        contenders[name] = Contender(model, optimizer, step, skipped)
    times: dict[str, list[float]] = {name: [] for name in names}
    unequal = dict.fromkeys(names, 0)
    before: dict[str, int] = {}
    for number, batch in enumerate(tqdm(batches, unit=" calls", leave=False)):
        for contender in contenders.values():
            if _is_ours(contender) and number < WARM and (number % SETTLING == 0 or contender.call.being_made):  # type: ignore[attr-defined]
                contender.call.wait()  # type: ignore[attr-defined]
        if number == WARM:
            before = {n: c.call.statistics().speculated for n, c in contenders.items() if _is_ours(c)}  # type: ignore[attr-defined]
        results = {}
        for name, contender in contenders.items():
            torch.manual_seed(number)
            started = time.perf_counter()
            results[name] = contender.call(*batch)
            times[name].append(time.perf_counter() - started)
        for name, contender in contenders.items():
            unequal[name] += not _alike(contender, contenders["eager"], results[name], results["eager"])
    medians = {name: statistics.median(taken[WARM:]) * 1e6 for name, taken in times.items()}
    made = []
    for name, contender in contenders.items():
        served = compiles = None
        if _is_ours(contender):
            counts = contender.call.statistics()  # type: ignore[attr-defined]
            served, compiles = (counts.speculated - before[name]) / (calls - WARM), counts.compiles
        made.append(Branched(name, served, compiles, unequal[name], medians[name], medians["eager"] / medians[name]))
    return made


def _is_ours(contender: Contender) -> bool:
    return hasattr(contender.call, "statistics")


def _median_norm(model: Gated, batches: list[tuple[Tensor, Tensor]]) -> float:
    norms = []
    for x, y in batches:
        model.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        norms.append(float(torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()))
    return statistics.median(norms)


def _alike(one: Contender, eager: Contender, result: Tensor, expected: Tensor) -> bool:
    """Whether results, parameters, gradients and counts are equal up to rounding (an optimizer's step apart)."""
    pairs = [(result, expected)]
    for mine, theirs in zip(one.model.parameters(), eager.model.parameters(), strict=True):
        if (mine.grad is None) is not (theirs.grad is None):
            return False
        pairs.append((mine.detach(), theirs.detach()))
        if mine.grad is not None and theirs.grad is not None:
            pairs.append((mine.grad, theirs.grad))
    close = all(torch.allclose(a, b, rtol=1e-3, atol=1e-4) for a, b in pairs)
    return close and one.model.used == eager.model.used and one.skipped == eager.skipped


def main(given: list[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--calls", type=int, default=600)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--record", action="store_true", help="keep the outcome in benchmarks/results")
    options = parser.parse_args(given)
    torch.set_num_threads(1)
    rows = compared(options.calls, options.width)
    table = Table(box=SIMPLE, title=f"two branches at random, width {options.width}, {options.calls} calls")
    for heading in ("", "served after warm-up", "compilations", "calls unequal", "median", "times eager's speed"):
        table.add_column(heading, justify="left" if not heading else "right")
    for row in rows:
        served = "" if row.served is None else f"{row.served:.1%}"
        compiles = "" if row.compiles is None else str(row.compiles)
        table.add_row(row.name, served, compiles, str(row.unequal), f"{row.median_us:.0f} us", f"{row.ratio:.2f}")
    Console().print(table)
    if options.record:
        content = {"width": options.width, "calls": options.calls, "rows": [asdict(row) for row in rows]}
        print(write("branches", sys.argv[1:] if given is None else given, "cpu", content))
    return 0 if all(row.unequal == 0 for row in rows if row.served is not None) else 1


if __name__ == "__main__":
    sys.exit(main())
