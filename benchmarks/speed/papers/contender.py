"""One contender in a process of its own: makes a program's calls on request, and says how long each took.

    python -m benchmarks.speed.papers.contender PROGRAM CONTENDER

Reads one command a line (``calls N``, ``settle SECONDS``, ``report``), answers each with a line of JSON. What the
program prints goes nowhere. Batches are made between the calls, outside of what is timed.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

# Before torch is imported: OpenMP reads it once.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn
from torch._dynamo.external_utils import wrap_inline

import torchjanus
from benchmarks.speed.papers import PROGRAMS
from benchmarks.speed.papers.base import Program
from benchmarks.speed.papers.by_hand import BY_HAND

__all__ = ["CONTENDERS", "Contender", "modules_of", "serve"]

CONTENDERS = ("eager", "compile modules", "compile step", "symbolic", "torchjanus", "torchjanus again")
# "torchjanus again" is a second process, which finds what the first one has kept.


def modules_of(state: Any) -> list[nn.Module]:
    """The networks that a program holds, not the layers within them."""
    found: dict[int, nn.Module] = {}

    def visit(value: Any, depth: int) -> None:
        if isinstance(value, nn.Module):
            found[id(value)] = value
        elif isinstance(value, tuple | list):
            for part in value:
                visit(part, depth)
        elif depth < 2 and hasattr(value, "__dict__") and not isinstance(value, torch.optim.Optimizer):
            for part in vars(value).values():
                visit(part, depth + 1)

    visit(state, 0)
    return list(found.values())


def number(result: Any) -> float | None:
    """The loss in what a step returns."""
    if isinstance(result, dict):
        result = result["loss"]
    return None if result is None else float(result)


class Contender:
    """A program and the way it is run."""

    def __init__(self, name: str, kind: str, small: bool = False) -> None:
        self.program: Program = PROGRAMS[name].make(0, small)
        self.kind = kind
        self.calls = 0
        self.step: Callable[..., Any] = self.program.step
        self.janus: torchjanus.Speculated[..., Any] | None = None
        if kind.startswith("torchjanus"):
            self.janus = self.step = torchjanus.speculate(self.step, executor="auto")
        elif kind == "compile step":
            self.step = torch.compile(self.step)
        elif kind == "compile modules":
            for module in modules_of(self.program.state):
                # As torch.compile(module) does it: Module.compile() passes over the inside of torch's own containers.
                module._compiled_call_impl = torch.compile(wrap_inline(module._call_impl))
        elif kind == "symbolic":
            self.step = BY_HAND[name](self.program)

    def run(self, count: int) -> dict[str, Any]:
        """Make so many calls: the seconds and the loss of each, and for torchjanus whether it ran as a graph."""
        seconds, losses, served = [], [], []
        for _ in range(count):
            batch = next(self.program.batches)
            before = 0 if self.janus is None else self.janus.statistics().speculated
            began = time.perf_counter()
            result = self.step(*batch)
            seconds.append(time.perf_counter() - began)
            losses.append(number(result))
            if self.janus is not None:
                served.append(self.janus.statistics().speculated > before)
        self.calls += count
        return {"seconds": seconds, "losses": losses, "served": served}

    def settled(self) -> bool:
        """Whether all graphs have their executors, and it is known whether Python is faster than they."""
        if self.janus is None or self.janus.given_up:
            return True
        if self.janus.being_made:
            return False
        engines = [engine for route in self.janus._learning.routes for engine in route.engines]
        if not engines and any(event.kind == "budget" for event in self.janus.events):
            return True  # no graph can make the calls, and no more are watched until that costs nothing
        pace = self.janus._execution_policy
        chosen = self.janus.executor != "auto" or (pace._measured is not None and not pace.measuring)
        return chosen and not any(e.trying or not e.is_ready for e in engines)

    def settle(self, limit: float) -> dict[str, Any]:
        """Wait for the compiler; the calls that decide what runs a graph are made by ``run``."""
        began = time.perf_counter()
        if self.janus is not None:
            while self.janus.being_made and not self.janus._learning.pending_graphs.remote.over:
                if time.perf_counter() - began > limit:
                    break
                time.sleep(0.05)
            for route in self.janus._learning.routes:
                for engine in route.engines:
                    while not engine.is_ready and time.perf_counter() - began < limit:
                        engine.ask()
                        time.sleep(0.05)
        return {"seconds": time.perf_counter() - began, "settled": self.settled()}

    def report(self) -> dict[str, Any]:
        """What is to be reported at the end."""
        reported: dict[str, Any] = {"peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        if self.janus is not None:
            counts = self.janus.statistics()
            engines = [engine for route in self.janus._learning.routes for engine in route.engines]
            reported |= {
                "entries": counts.entries,
                "compiles": counts.compiles,
                "watched": counts.watched,
                "speculated": counts.speculated,
                "calls": counts.calls,
                "runs": ["Python, by measure"]
                if self.janus._execution_policy.eager
                else [engine.current for engine in engines],
                "notes": [note for engine in engines for note in engine.notes]
                + [event.text for event in self.janus.events if event.kind == "executor"],
                "refused": [str(refusal) for refusal in self.janus.refusals][:3],
                "given_up": self.janus.given_up,
            }
        elif self.kind.startswith("compile"):
            counters = torch._dynamo.utils.counters
            reported |= {
                "graphs": counters["stats"]["unique_graphs"],
                "breaks": sum(counters["graph_break"].values()),
            }
        return reported


def serve(make: Callable[[str, str, bool], Contender]) -> None:
    """Be the contender that the command line names, until there are no more commands. Does not return."""
    name, kind, *rest = sys.argv[1:]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for logger in ("torch", "torchjanus"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    # Only answers go to the parent: whatever prints does so elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    contender = make(name, kind, "small" in rest)
    answer({"ready": True})
    for line in sys.stdin:
        command, _, argument = line.strip().partition(" ")
        if command == "calls":
            answer(contender.run(int(argument)))
        elif command == "settle":
            answer(contender.settle(float(argument)))
        elif command == "report":
            answer(contender.report())
    os._exit(0)  # compilers' workers do not always end in good time


if __name__ == "__main__":
    serve(Contender)
