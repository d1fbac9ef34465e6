"""What comes before the last cut may be run as graphs of its own, by any executor, and does what eager does."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import torchjanus
from torchjanus.execute.replay import Replay
from torchjanus.execute.staged import Staged
from torchjanus.graph.aten.middle_segments import middles_of, private_nodes
from torchjanus.graph.aten.segments import tail_of
from torchjanus.graph.ir.lowered import Lowered

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no torch.distributed")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process is the only one of its group."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Training:
    """A model of several buckets, with buffers, random numbers, a decision and a metric."""

    def __init__(self, private: bool, plain: bool = False) -> None:
        torch.manual_seed(0)
        first = [nn.LayerNorm(16)] if plain else [nn.BatchNorm1d(16), nn.Dropout(0.2)]
        last = [] if plain else [nn.LayerNorm(16)]
        self.net = nn.Sequential(
            nn.Linear(4, 16), *first, nn.GELU(), nn.Linear(16, 16), *last, nn.GELU(), nn.Linear(16, 3)
        )
        # What depends on buffers that were broadcast is not private.
        options: dict[str, Any] = {"bucket_cap_mb": 0.0005, "broadcast_buffers": not private}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # newer PyTorch has another name for it
            self.model = nn.parallel.DistributedDataParallel(self.net, **options)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.total = torch.zeros(())

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        self.total += loss.detach()
        if loss > 50:
            loss = loss * 0.5
        loss.backward()
        nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
        self.optimizer.step()
        return loss.detach()

    def state(self) -> list[torch.Tensor]:
        states = [value for state in self.optimizer.state.values() for value in state.values()]
        tensors = [*self.net.state_dict().values(), self.total, *states, torch.get_rng_state()]
        return [tensor.clone() for tensor in tensors]


def with_middles(lowered: Lowered, private: bool) -> Staged:
    """Return what runs the graph, with replay of what may be compiled before the last cut."""
    tail = tail_of(lowered)
    middles = middles_of(lowered, tail, private_nodes(lowered) if private else None)
    staged = Staged(lowered, tail, middles)
    staged.use(Replay.of(tail.lowered).run)
    for one in middles:
        staged.use(Replay(one.lowered).run, one.stage)
    return staged


@pytest.mark.parametrize(("private", "plain"), [(False, False), (True, False), (False, True)])
@pytest.mark.usefixtures("alone")
def test_parts_before_the_last_cut_do_what_eager_does(
    private: bool, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchjanus.graph.aten.middle_segments.LEAST", 4)
    found: list[list[Any]] = []
    for speculating in (False, True):
        training = Training(private, plain)
        step: Any = torchjanus.speculate(training.step, executor="replay") if speculating else training.step
        draw = torch.Generator().manual_seed(1)
        rows = []
        for number in range(14):
            if speculating and number == 8:
                (entry,) = step.entries
                staged = with_middles(entry.lowered, private)
                assert len(staged.middles) >= 2
                entry.launch.use(staged.begin)
            torch.manual_seed(number)
            x = torch.randn(5, 4, generator=draw) * (100 if number == 11 else 1)
            rows.append([step(x), *training.state()])
        found.append(rows)
    assert step.statistics().speculated >= 8
    for number, (eager, ours) in enumerate(zip(*found, strict=True)):
        assert all(torch.equal(one, other) for one, other in zip(eager, ours, strict=True)), number


@pytest.mark.usefixtures("alone")
def test_only_what_is_summed_depends_on_private_nodes() -> None:
    training = Training(True)
    step: Any = torchjanus.speculate(training.step, executor="replay")
    for _ in range(8):
        step(torch.randn(5, 4))
    lowered = step.entries[0].lowered
    private = private_nodes(lowered)
    names = {str(node.target) for node in private}
    assert any("layer_norm_backward" in name for name in names), names
    assert not any("batch_norm" in name and "backward" not in name for name in names)  # running statistics are kept
    assert not any("gelu.default" in name for name in names)  # the loss is returned
    results = list(lowered.graph.graph.nodes)[-1].args[0]
    asked = {position for cut in lowered.program.cuts for position in cut.outputs}
    kept = [lowered.outputs[position].source for position in range(len(lowered.outputs)) if position not in asked]
    assert not private.intersection(results[one.index] for one in kept if hasattr(one, "index"))
    assert not private.intersection(results[lowered.fresh :])


@pytest.mark.usefixtures("alone")
def test_a_collective_that_is_no_sum_keeps_what_it_sends() -> None:
    net = nn.Sequential(*[nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)] * 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor, summed: bool) -> None:
        optimizer.zero_grad()
        net(x).square().sum().backward()
        reduce = dist.all_reduce if summed else functools.partial(dist.broadcast, src=0)
        for parameter in net.parameters():
            reduce(parameter.grad)
        optimizer.step()

    for summed in (True, False):
        fast: Any = torchjanus.speculate(step, executor="replay")
        for _ in range(6):
            fast(torch.randn(5, 4), summed)
        assert bool(private_nodes(fast.entries[0].lowered)) is summed
