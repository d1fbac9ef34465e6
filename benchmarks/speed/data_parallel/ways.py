"""One way to train a program, eager, speculated or compiled: its step, its times, and what its ranks agree on."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from benchmarks.speed.data_parallel.programs import PROGRAMS, Batch

__all__ = ["Way", "is_equal", "is_on_all_ranks", "training"]


@dataclass
class Way:
    """One way to train. ``times``: milliseconds of its calls, without the link's delay and with it."""

    step: Any
    net: nn.Module
    link: Any
    batches: Callable[[int], Iterator[Batch]]
    times: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))

    def median(self) -> float:
        return statistics.median(self.times[0]) if self.times[0] else float("nan")

    def hidden(self, taken: float) -> float:
        """Return the share of ``taken`` milliseconds that a call hides."""
        if not taken or not all(self.times):
            return float("nan")
        return 1 - (statistics.median(self.times[1]) - self.median()) / taken


def training(name: str, bucket: float | None, compiled: bool = False) -> Way:
    torch.manual_seed(0)
    net, loss_of, batches = PROGRAMS[name]()
    link = dist.new_group(backend="link")
    by_hand = name == "byhand"
    ddp = net if by_hand else nn.parallel.DistributedDataParallel(net, process_group=link, bucket_cap_mb=bucket)
    model: Any = torch.compile(ddp) if compiled else ddp
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step(*batch: Any) -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, *batch)
        loss.backward()
        if by_hand:
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad, group=link)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        return loss.detach()

    return Way(step, net, link, batches)


def is_equal(name: str, one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    if name == "treelstm":
        return all(torch.allclose(a, b, rtol=1e-3, atol=1e-5) for a, b in zip(one, other, strict=True))
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def is_on_all_ranks(net: nn.Module) -> bool:
    """Whether all ranks have the parameters of this one."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in net.parameters()])
    every = [torch.empty_like(flat) for _ in range(dist.get_world_size())]
    dist.all_gather(every, flat)
    return all(torch.equal(flat, one) for one in every)
