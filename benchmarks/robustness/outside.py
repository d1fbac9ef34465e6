"""Training programs after public scripts, as whole steps: equal to eager, served wholly or in parts, how fast.

    python -m benchmarks.robustness.outside [NAME ...] [--executor auto] [--repeats N]

Takes two minutes for each program.

Each program of ``tests/outside`` runs eager and speculated from the same seeds, call by call in turn. The table says
whether results and state are equal, how many calls after the first ten were served wholly or in parts, the parts with
their share of the step's time, and the throughput against eager, as the ratio of the medians over the second half.
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
from dataclasses import dataclass
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

import torchjanus
from tests.outside import PROGRAMS, made

__all__ = ["Compared", "compared", "main"]

FIRST = 10  # calls in which a step is learnt


@dataclass(frozen=True)
class Compared:
    """One program, eager and speculated."""

    name: str
    equal: bool
    late: int  # calls after the first ones
    served: int  # of those, wholly or in parts
    ratio: float  # eager's time over the speculated step's
    step: Any


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


def compared(name: str, executor: str = "replay", repeats: int = 1) -> Compared:
    """Run a program eager and speculated, in turn. ``repeats``: how often its calls are gone through."""
    runs = []
    for wrap in (lambda step: step, lambda step: torchjanus.speculate(step, executor=executor)):
        chances = Chances()
        chances.seed()
        step, calls, state = made(name)
        chances.leave()
        runs.append((wrap(step), copy.deepcopy(calls) * repeats, state, chances, [], io.StringIO()))  # type: ignore[no-untyped-call]
    times: list[list[float]] = [[], []]
    fast = runs[1][0]
    before = 0
    for number in range(len(runs[0][1])):
        for which, (step, calls, _, chances, results, printed) in enumerate(runs):
            chances.enter()
            with contextlib.redirect_stdout(printed):
                begun = time.perf_counter()
                results.append(leaves(step(*calls[number])))
                times[which].append(time.perf_counter() - begun)
            chances.leave()
        if number + 1 == FIRST:
            before = _served(fast)
        if number % 8 == 7:
            fast.wait()
    (_, calls, state, _, results, printed), (_, _, other, _, found, text) = runs
    exact = executor == "replay"
    equal = all(agree(a, b, exact) for a, b in zip(results, found, strict=True))
    equal = equal and agree(leaves(state()), leaves(other()), exact) and (printed.getvalue() == text.getvalue())
    half = len(calls) // 2
    ratio = statistics.median(times[0][half:]) / statistics.median(times[1][half:])
    return Compared(name, equal, len(calls) - FIRST, _served(fast) - before, ratio, fast)


def _served(step: Any) -> int:
    counts = step.statistics()
    return int(counts.speculated + counts.partly)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="all programs, unless some are named")
    parser.add_argument("--executor", default="replay")
    parser.add_argument("--repeats", type=int, default=1, help="how often the calls of a program are gone through")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    right = True
    for name in options.names or PROGRAMS:
        one = compared(name, options.executor, options.repeats)
        right = right and one.equal
        print(
            f"{name:24s} {'equal' if one.equal else 'DIFFERS'}  {one.served} of {one.late} late calls served, "
            f"{one.step.statistics().speculated} calls wholly, {one.ratio:.2f} of eager's throughput"
        )
        for part in torchjanus.explain(one.step).parts:
            print(f"    {part}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
