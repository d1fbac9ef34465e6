"""Run one training job eagerly and speculated, from the same seed, and compare all that can be seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import torchjanus
from benchmarks.programs.steps import Job, make

__all__ = ["Comparison", "Run", "compare", "differences", "train"]

# What issue and README promise: losses within this of eager's where no random number is drawn.
LOSS_TOLERANCE = 1e-5
SPECULATED_AT_LEAST = 0.9
COMPILES_AT_MOST = 2


@dataclass(frozen=True)
class Run:
    """What 50 calls left behind: each call's loss and the generator's state after it, and the final state."""

    losses: list[Tensor]
    random: list[Tensor]
    state: dict[str, Tensor]


@dataclass(frozen=True)
class Comparison:
    """A speculated run against an eager one. Differences are relative; ``faults`` says which promise is broken."""

    program: str
    optimizer: str
    executor: str
    dropout: float
    bitwise: bool
    loss_difference: float
    state_difference: float
    worst: str  # the tensor of the state that differs most, if any does
    random_equal: bool
    statistics: dict[str, int]
    faults: list[str]


def generator_state(device: str) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.startswith("cuda") else torch.get_rng_state()


def train(job: Job, seed: int, device: str = "cpu", after: Callable[[], object] = lambda: None) -> Run:
    """Run the job over its batches; ``after`` is called after each step."""
    torch.manual_seed(seed)
    losses, random = [], []
    for batch in job.batches:
        losses.append(job.step(*batch).detach().clone())
        random.append(generator_state(device))
        after()
    return Run(losses, random, job.state())


def largest(tensor: Tensor) -> float:
    return tensor.abs().max().double().item() if tensor.numel() else 0.0


def relative(left: Tensor, right: Tensor, floor: float = 0.0) -> float:
    """The largest difference, relative to that of ``left`` or to ``floor``; infinite between unlike kinds."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return float("inf")
    if torch.equal(left, right) or left.numel() == 0:
        return 0.0
    apart = largest(left.double() - right.double()) / max(largest(left), floor, 1e-30)
    return apart if apart == apart else float("inf")  # a NaN on one side only


def differences(eager: Run, other: Run) -> tuple[float, float, str]:
    """The largest relative difference of any loss, and of any tensor of the final state, and that tensor's name.

    A tensor of the state that is a thousand times smaller than the largest of its kind (parameter, gradient, ...) is
    measured against a thousandth of that: the biases of attention keys have gradients of mere rounding errors.
    """
    loss = max(relative(a, b) for a, b in zip(eager.losses, other.losses, strict=True))
    missing = eager.state.keys() ^ other.state.keys()
    if missing:
        return loss, float("inf"), min(missing)
    scales: dict[str, float] = {}
    for key, value in eager.state.items():
        kind = key.partition(" ")[0]
        scales[kind] = max(scales.get(kind, 0.0), largest(value))
    state = {
        key: relative(value, other.state[key], scales[key.partition(" ")[0]] / 1000)
        for key, value in eager.state.items()
    }
    worst = max(state, key=state.__getitem__)
    return loss, state[worst], worst if state[worst] else ""


def compare(
    program: str, optimizer: str, executor: str, dropout: float, seed: int = 0, device: str = "cpu"
) -> Comparison:
    """Train ``program`` eagerly and with ``executor``; nothing is tolerated of replay, ``LOSS_TOLERANCE`` of others."""
    eager = train(make(program, optimizer, seed, dropout, device), seed, device)
    job = make(program, optimizer, seed, dropout, device)
    step = torchjanus.speculate(job.step, executor=executor)
    # Waiting after each call, so that the count of speculated calls says nothing about the speed of compilation.
    other = train(job._replace(step=step), seed, device, after=step.wait)
    loss, state, worst = differences(eager, other)
    bitwise = loss == 0.0 and state == 0.0
    random_equal = all(torch.equal(a, b) for a, b in zip(eager.random, other.random, strict=True))
    counts = {key: int(value) for key, value in dataclasses.asdict(step.statistics()).items()}
    faults = []
    if executor == "replay" and not bitwise:
        faults.append("not bitwise eager's")
    if not loss <= LOSS_TOLERANCE:
        faults.append("losses differ")
    if not random_equal:
        faults.append("random numbers differ")
    if counts["speculated"] < SPECULATED_AT_LEAST * counts["calls"]:
        faults.append("too few calls speculated")
    if counts["compiles"] > COMPILES_AT_MOST:
        faults.append("too many compilations")
    return Comparison(program, optimizer, executor, dropout, bitwise, loss, state, worst, random_equal, counts, faults)
