"""Two processes that train together, with compiled code. A module, for it is imported by both."""

from __future__ import annotations

import datetime
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import torchjanus
from tests.ranks import together
from torchjanus.core.settings import CACHE

CALLS = 16
TIMEOUT = datetime.timedelta(seconds=300)  # in which the other rank compiles


def run(rank: int, store: str, results: str, caches: list[str]) -> None:
    """In each process: train eagerly and compiled, and save how far apart both are, whether the ranks are equal after
    each call, and what became of the compiled parts. ``caches``: the folder of each for what it has compiled."""
    os.environ[CACHE.name] = caches[rank]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=TIMEOUT)
    ways: list[Any] = []
    for _ in range(2):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 2)
        )
        ways.append((net, _step_of(net)))
    fast: Any = torchjanus.speculate(ways[1][1], executor="inductor")
    draw, apart, equal = torch.Generator().manual_seed(rank), 0.0, True
    for _ in range(CALLS):
        x = torch.randn(8, 8, generator=draw)
        expected, met = ways[0][1](x), fast(x)
        apart = max(apart, float((expected - met).abs()))
        flat = torch.cat([p.detach().reshape(-1) for p in ways[1][0].parameters()])
        every = [torch.empty_like(flat) for _ in range(2)]
        dist.all_gather(every, flat)
        equal = equal and torch.equal(*every)
    assert fast.entries, str(torchjanus.explain(fast, detail=True))
    entry = fast.entries[0]
    torch.save((apart, equal, fast.statistics().speculated, entry.engine.notes), f"{results}.{rank}")
    dist.destroy_process_group()


def _step_of(net: nn.Module) -> Any:
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0008)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def run_both(folder: Path, *, separate: bool) -> list[Any]:
    """Return what each process has saved. ``separate``: as on two machines, they share no folder."""
    store, results = tempfile.mktemp(dir=folder), str(folder / "results")
    caches = [folder / f"cache{rank if separate else ''}" for rank in range(2)]
    for cache in caches:
        cache.mkdir(mode=0o700, exist_ok=True)
    together(run, (store, results, [str(cache) for cache in caches]), 2)
    return [torch.load(f"{results}.{rank}", weights_only=False) for rank in range(2)]
