"""One training by one contender, in a process of its own: what each step lost, and when it was done.

    python -m benchmarks.speed.convergence.contender PROGRAM CONTENDER STEPS EVERY SECONDS [small]

Answers with one line of JSON. The clock begins before the first step and stands still while the metric is measured: it
tells watching, making graphs, waiting for compilers and whatever else a training waits for.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import torchjanus
from benchmarks.speed.convergence import PROGRAMS
from benchmarks.speed.papers.contender import modules_of

__all__ = ["CONTENDERS", "nudge", "run"]

CONTENDERS = {
    "eager": "the program as it is",
    "replay": 'speculate(step, executor="replay")',
    "torchjanus": "speculate(step)",
    "nudged": "eager, with one weight's last bit changed before the first step",
    "compile": "torch.compile(step)",
}


def nudge(state: Any) -> None:
    """Change the last bit of one weight: what becomes of the losses then is what training makes of any rounding."""
    weight = next(modules_of(state)[0].parameters()).detach().view(-1)[:1]
    weight.copy_(torch.nextafter(weight, torch.full_like(weight, torch.inf)))


def run(name: str, kind: str, steps: int, every: int, limit: float, small: bool = False) -> dict[str, Any]:
    """Train for so many steps, or until ``limit`` seconds are over."""
    if kind not in CONTENDERS:
        raise ValueError(f"there is no contender {kind!r}")
    speculated: list[torchjanus.Speculated[..., Any]] = []

    def jit(step: Callable[..., Any]) -> Callable[..., Any]:
        if kind in ("eager", "nudged"):
            return step
        if kind == "compile":
            return torch.compile(step)
        speculated.append(torchjanus.speculate(step, executor="replay" if kind == "replay" else "auto"))
        return speculated[-1]

    training = PROGRAMS[name].make(jit, 0, small)
    if kind == "nudged":
        nudge(training.state)
    losses: list[float] = []
    clock: list[float] = []
    metrics: list[tuple[int, float]] = [(0, training.metric())]
    began = time.perf_counter()
    for number in range(1, steps + 1):
        losses.append(next(training.losses))
        clock.append(time.perf_counter() - began)
        if number % every == 0 or number == steps:
            metrics.append((number, training.metric()))
            began = time.perf_counter() - clock[-1]
        if clock[-1] > limit:
            break
    counts = [s.statistics() for s in speculated]
    return {
        "losses": losses,
        "clock": clock,
        "metrics": metrics,
        "served": sum(c.speculated for c in counts) / max(sum(c.calls for c in counts), 1) if counts else None,
        "entries": sum(c.entries for c in counts) if counts else None,
        "notes": [
            text
            for s in speculated
            for text in (
                *(str(refusal) for refusal in s.refusals[:3]),
                *(e.text for e in s.events if e.kind in REPORTED),
            )
        ],
    }


REPORTED = ("fault", "executor", "given up", "unrolled")


def main() -> None:
    name, kind, steps, every, limit, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for logger in ("torch", "torchjanus"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    # Only the answer goes to the parent: whatever prints does so elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    answers.write(json.dumps(run(name, kind, int(steps), int(every), float(limit), "small" in rest)) + "\n")
    answers.flush()
    os._exit(0)  # compilers' workers do not always end in good time


if __name__ == "__main__":
    main()
