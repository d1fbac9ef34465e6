"""The ways to run one program on a GPU, and what is measured of each."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch

import torchjanus
from benchmarks.gpu.programs import PROGRAMS, Job, Maker
from torchjanus.execute.cuda_graph.device import substituted
from torchjanus.execute.cuda_graph.recorded import Recorded

__all__ = ["CONTENDERS", "Contender", "NotHere", "contender", "equality", "interleaved", "observed", "on_device"]

CONTENDERS = ("eager", "torchjanus cudagraph", "by hand", "torchjanus auto", "compile step", "reduce-overhead")

# Of the CUDA runtime and driver, as a profiler names them.
_WAITS = frozenset({"cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize"})
_LAUNCHES = frozenset(
    {"cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch"}
)


class NotHere(Exception):
    """Raised where a contender cannot run a program; the message says why."""


@dataclass
class Contender:
    """A program and the way it is run. ``janus``: the speculated step, if that is the way."""

    name: str
    job: Job
    step: Callable[..., Any]
    janus: Any = None

    def notes(self) -> dict[str, Any]:
        """What torchjanus says of it."""
        if self.janus is None:
            return {}
        engines = [engine for route in self.janus._learning.routes for engine in route.engines]
        counts = self.janus.statistics()
        return {
            "runs": [engine.current for engine in engines],
            "notes": [note[:300] for engine in engines for note in engine.notes],
            "refused": [str(refusal)[:300] for refusal in self.janus.refusals][:3],
            "speculated": counts.speculated,
            "calls": counts.calls,
        }


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Work on the device; the CPU stands in for a GPU by recorded captures."""
    if device != "cpu":
        yield
        return
    with substituted(Recorded()):
        yield


def contender(name: str, program: str, device: str, short: bool) -> Contender:
    """Make one. Raises NotHere."""
    by_hand = name == "by hand"
    if device == "cpu" and name not in ("eager", "torchjanus cudagraph"):
        raise NotHere("without CUDA")
    job = PROGRAMS[program](Maker(device, short, capturable=by_hand))
    if by_hand:
        return Contender(name, job, _captured_by_hand(job))
    if name.startswith("torchjanus"):
        janus = torchjanus.speculate(job.step, executor=name.partition(" ")[2])
        return Contender(name, job, janus, janus)
    if name == "compile step":
        return Contender(name, job, torch.compile(job.step))
    if name == "reduce-overhead":
        for network in job.networks:
            network.compile(mode="reduce-overhead")
        return Contender(name, job, job.step)
    return Contender(name, job, job.step)


def _captured_by_hand(job: Job) -> Callable[..., Any]:
    """The step as the manual of PyTorch captures it: on inputs that stay, after some calls on another stream."""
    if not job.static:
        raise NotHere("each call does something else")
    given = [part.clone() for part in job.batches[0]]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            job.step(*given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = job.step(*given)

    def step(*batch: Any) -> Any:
        for target, source in zip(given, batch, strict=True):
            target.copy_(source)
        graph.replay()
        return made

    return step


def finish(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def warm(one: Contender, device: str, until: float, least: int) -> int:
    """Make calls until what runs them is settled, or the time is over. Returns how many."""
    made = 0
    for batch in cycle(one.job.batches):
        one.step(*batch)
        made += 1
        if one.janus is not None:
            one.janus.wait()
        if made >= least or time.monotonic() > until:
            break
    finish(device)
    return made


def interleaved(entrants: list[Contender], device: str, calls: int, repetitions: int, until: float) -> dict[str, Any]:
    """Seconds a call of each: medians over blocks that take turns. Calls of a block do not wait for each other."""
    times: dict[str, list[float]] = {one.name: [] for one in entrants}
    supplies = {one.name: cycle(one.job.batches) for one in entrants}
    for turn in range(repetitions):
        shift = turn % len(entrants)
        for one in entrants[shift:] + entrants[:shift]:
            batches = [next(supplies[one.name]) for _ in range(calls)]
            finish(device)
            began = time.perf_counter()
            for batch in batches:
                one.step(*batch)
            finish(device)
            times[one.name].append((time.perf_counter() - began) / calls)
        if time.monotonic() > until and turn:
            break
    return {name: {"median_us": statistics.median(taken) * 1e6, "blocks": len(taken)} for name, taken in times.items()}


def observed(one: Contender, device: str, calls: int = 10) -> dict[str, Any]:
    """What the host and the device do in steady calls: waits of the host a call, idle share, peak memory."""
    if not device.startswith("cuda"):
        return {}
    supply = cycle(one.job.batches)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            for _ in range(calls):
                one.step(*next(supply))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    warned = sum("synchroniz" in str(one.message) for one in said)
    torch.cuda.synchronize()
    found = {
        "warned_waits": warned / calls,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20,
        "reserved_mib": torch.cuda.memory_reserved() / 2**20,
    }
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(calls):
            one.step(*next(supply))
        torch.cuda.synchronize()
    events = list(profile.events())
    names = [event.name for event in events]
    waits = sum(name in _WAITS for name in names)
    launches = sum(name in _LAUNCHES for name in names)
    busy = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == torch.autograd.DeviceType.CUDA
    )
    found |= {"waits": max(0, waits - 1) / calls, "launches": launches / calls, "idle": idle_share(busy)}
    return found


def idle_share(busy: list[tuple[float, float]]) -> float | None:
    """The share of the time from the first to the last piece of work in which there was none."""
    if not busy:
        return None
    begin = reached = busy[0][0]
    idle = 0.0
    for start, end in busy:
        idle += max(0.0, start - reached)
        reached = max(reached, end)
    return idle / (reached - begin) if reached > begin else None


def equality(program: str, device: str, short: bool, executor: str, calls: int) -> dict[str, Any]:
    """Whether so many calls give eager's bits, with deterministic algorithms; and whether eager's own do."""

    def run(kind: str | None) -> tuple[list[torch.Tensor], Any]:
        job = PROGRAMS[program](Maker(device, short))
        step = job.step if kind is None else torchjanus.speculate(job.step, executor=kind)
        supply = cycle(job.batches)
        made = []
        for _ in range(calls):
            made.append(step(*next(supply)).clone())
            if kind is not None:
                step.wait()  # type: ignore[attr-defined]
        made += [value.detach().clone() for network in job.networks for value in network.state_dict().values()]
        return made, step

    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        eager, _ = run(None)
        again, _ = run(None)
        met, step = run(executor)
    finally:
        torch.use_deterministic_algorithms(before)
    one = Contender("", Job(step, [], []), step, step)
    return {
        "calls": calls,
        "bitwise": all(map(torch.equal, met, eager)),
        "eager_is_like_itself": all(map(torch.equal, again, eager)),
        "largest_difference": max(map(_difference, met, eager)),
        **one.notes(),
    }


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """The distance relative to the largest number."""
    scale = float(other.double().abs().max()) if other.numel() else 0.0
    return float((one.double() - other.double()).abs().max()) / (scale or 1.0) if other.numel() else 0.0
