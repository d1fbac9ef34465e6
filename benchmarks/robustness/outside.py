"""Training programs after public scripts, as whole steps: equal to eager, served wholly or in parts, how fast.

    python -m benchmarks.robustness.outside [NAME ...] [--executor auto] [--repeats N] [--compile] [--write]

Takes two minutes for each program.

Each program of ``tests/outside`` runs eager and speculated from the same seeds, call by call in turn. The table says
whether results and state are equal, how many calls after the first ten were served wholly or in parts, the share of
eager's time in these calls that graphs serve, the parts with their share of the step's time, and the throughput against
eager, as the ratio of the medians over the second half, in time of this thread; for what is left, the reasons.
``--compile``: the throughput of the program with its modules compiled by ``torch.compile``, too. ``--write``: also to
``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import os
import random
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

import torchjanus
from benchmarks.record import write
from tests.outside import PROGRAMS, made

__all__ = ["Compared", "compared", "main"]

FIRST = 10  # calls in which a step is learnt
LITTLE = 0.05  # of a step's time: the reasons for which less is Python's are not reported
GOAL = 0.8  # of the time, to be served


@dataclass(frozen=True)
class Compared:
    """One program, eager and speculated."""

    name: str
    equal: bool
    late: int  # calls after the first ones
    served: int  # of those, wholly or in parts
    wholly: int  # of those, by one graph
    share: float  # of eager's time in those calls, what graphs serve
    ratio: float  # eager's time over the speculated step's
    compiled: float | None  # eager's time over that of the program with compiled modules
    parts: tuple[str, ...]
    reasons: tuple[str, ...]
    step: Any  # the speculated one


class Chances:
    """The random generators of one of two programs that run in turn."""

    def __init__(self) -> None:
        self.states = (0, 0, torch.tensor(0))

    def seed(self) -> None:
        """Begin anew."""
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(0)
        self.leave()

    def enter(self) -> None:
        """Go on where this program has left off."""
        random.setstate(self.states[0])  # type: ignore[arg-type]
        np.random.set_state(self.states[1])  # type: ignore[arg-type]
        torch.set_rng_state(self.states[2])

    def leave(self) -> None:
        """Remember the state."""
        self.states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # type: ignore[assignment]


def leaves(value: Any) -> list[Any]:
    """Return tensors and plain values in a result or a state."""
    if isinstance(value, torch.nn.Module):
        value = value.state_dict()
    if isinstance(value, dict):
        return [one for key in value for one in leaves(value[key])]
    if isinstance(value, list | tuple):
        return [one for part in value for one in leaves(part)]
    return [value.detach().clone() if isinstance(value, torch.Tensor) else value]


def agree(one: list[Any], other: list[Any], exact: bool) -> bool:
    """Whether two lists of leaves are equal: bitwise, or within the tolerance of compiled code."""
    if len(one) != len(other):
        return False
    for a, b in zip(one, other, strict=True):
        if isinstance(a, torch.Tensor) and not exact:
            if not torch.allclose(a.float(), b.float(), 1e-3, 1e-4, equal_nan=True):
                return False
        elif isinstance(a, torch.Tensor):
            if not torch.equal(a, b):
                return False
        elif isinstance(a, float):
            if a != b and a == a and (exact or abs(a - b) > 1e-3 * max(1.0, abs(a))):
                return False
        elif a != b and exact:
            return False
    return True


class Run:
    """A program with its random generators, results, output, and the seconds of its calls."""

    def __init__(self, name: str, repeats: int, wrap: Callable[[Any], Any]) -> None:
        self.chances = Chances()
        self.chances.seed()
        step, calls, self.state = made(name)
        self.chances.leave()
        self.step = wrap(step)
        self.calls = copy.deepcopy(calls) * repeats
        self.results: list[list[Any]] = []
        self.printed = io.StringIO()
        self.times: list[float] = []

    def call(self, number: int) -> None:
        """Make one call."""
        self.chances.enter()
        with contextlib.redirect_stdout(self.printed):
            begun = time.thread_time()  # what else runs on the machine does not count
            result = self.step(*self.calls[number])
            self.times.append(time.thread_time() - begun)
        self.results.append(leaves(result))
        self.chances.leave()

    @property
    def typical(self) -> float:
        """The median over the second half."""
        return statistics.median(self.times[len(self.times) // 2 :])


class Served:
    """How much of each call graphs have made: all of it, or parts with their share of the step's time."""

    def __init__(self, step: Any) -> None:
        self.step = step
        self.wholly: list[bool] = []
        self.shares: list[float] = []
        self._graphs = 0
        self._parts: dict[int, tuple[int, int]] = {}

    def look(self) -> None:
        """Look at the latest call."""
        graphs = self.step.statistics().speculated
        whole, self._graphs = graphs > self._graphs, graphs
        share = sum(self._of_parts())
        self.wholly.append(whole)
        self.shares.append(1.0 if whole else min(share, 1.0))

    def _of_parts(self) -> Iterator[float]:
        for region in self.step.regions:
            served, calls = self._parts.get(id(region), (0, 0))
            self._parts[id(region)] = region.served, region.calls
            if region.served > served:
                yield region.share * (region.served - served) / (region.calls - calls)


def compared(name: str, executor: str = "replay", repeats: int = 1, compiles: bool = False) -> Compared:
    """Run a program eager and speculated, in turn. ``repeats``: how often its calls are gone through; ``compiles``:
    also with compiled modules."""
    eager = Run(name, repeats, lambda step: step)
    fast = Run(name, repeats, lambda step: torchjanus.speculate(step, executor=executor))
    runs, served = [eager, fast], Served(fast.step)
    if compiles:
        runs.append(Run(name, repeats, with_compiled_modules))
    for number in range(len(eager.calls)):
        for run in runs:
            run.call(number)
        served.look()
        if number % 8 == 7:
            fast.step.wait()
    exact = executor in ("replay", "coexecute")
    equal = all(agree(a, b, exact) for a, b in zip(eager.results, fast.results, strict=True))
    equal = equal and agree(leaves(eager.state()), leaves(fast.state()), exact)
    equal = equal and eager.printed.getvalue() == fast.printed.getvalue()
    late = list(zip(eager.times, served.shares, strict=True))[FIRST:]
    explained = torchjanus.explain(fast.step)
    reasons = {f"{one.reason}: {one.what}" for one in explained.refusals}
    reasons |= {f"{one.reason}: {one.what}" for part in explained.parts for one in part.refusals}
    reasons |= {part.why for part in explained.parts if part.why and part.share >= LITTLE}
    return Compared(
        name,
        equal,
        len(late),
        sum(share > 0 for _, share in late),
        sum(served.wholly[FIRST:]),
        sum(seconds * share for seconds, share in late) / sum(seconds for seconds, _ in late),
        eager.typical / fast.typical,
        eager.typical / runs[2].typical if compiles else None,
        tuple(map(str, explained.parts)),
        tuple(sorted(reasons)),
        fast.step,
    )


def with_compiled_modules(step: Any) -> Any:
    """Compile the modules of the trainer whose method ``step`` is, in place. Their methods other than forward() stay
    eager's, as they do for a user of ``torch.compile(model)``."""
    for value in vars(getattr(step, "__self__", step)).values():
        if isinstance(value, torch.nn.Module):
            value.compile()
    return step


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="all programs, unless some are named")
    parser.add_argument("--executor", default="replay")
    parser.add_argument("--repeats", type=int, default=1, help="how often the calls of a program are gone through")
    parser.add_argument("--compile", action="store_true", help="also with modules compiled by torch.compile")
    parser.add_argument("--write", action="store_true", help="write the results to benchmarks/results")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    found = []
    for name in options.names or PROGRAMS:
        one = compared(name, options.executor, options.repeats, options.compile)
        found.append(one)
        against = f", torch.compile {one.compiled:.2f}" if one.compiled is not None else ""
        print(
            f"{name:24s} {'equal' if one.equal else 'DIFFERS'}  {one.share:.0%} of the time served, {one.served} of "
            f"{one.late} late calls, {one.wholly} wholly, {one.ratio:.2f} of eager's throughput{against}"
        )
        for line in (*one.parts, *(f"left: {reason}" for reason in one.reasons)):
            print(f"    {line}", flush=True)
    most = sum(one.share >= GOAL for one in found)
    mean = statistics.geometric_mean(one.ratio for one in found)
    print(f"{most} of {len(found)} with {GOAL:.0%} of the time served; geometric mean of the throughput {mean:.2f}")
    if options.write:
        programs = [asdict(one) for one in found]
        write("outside", sys.argv[1:], "cpu", {"executor": options.executor, "mean": mean, "programs": programs})
    return 0 if all(one.equal for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
