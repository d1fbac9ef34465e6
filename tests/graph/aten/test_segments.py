"""The last part of a graph with cuts is a graph of its own, and all parts together do what eager does."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

import torchjanus
from torchjanus.execute.replay import Replay
from torchjanus.graph.aten.buffer_reuse import of_updates
from torchjanus.graph.aten.clean_up import is_view
from torchjanus.graph.aten.segments import given_at, stages_of, tail_of


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.first = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.3))
        self.second = nn.Linear(6, 3)
        self.optimizer = torch.optim.SGD([*self.first.parameters(), *self.second.parameters()], lr=0.01, momentum=0.9)
        self.drawn: list[float] = []

    def step(self, x: torch.Tensor, limit: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
        hidden = self.first(x)
        wide = hidden.t()
        if hidden.sum() > limit:
            hidden = hidden * 2
        # In the middle of the step, after what may raise, and before what it goes into: nobody knows what it changes.
        noise = zlib.crc32(b"noise") / 2**32
        self.drawn.append(noise)
        out = torch.dropout(self.second(hidden + noise), 0.2, True)
        loss = out.pow(2).mean() + (wide @ hidden).mean()
        if loss > limit * 10:
            loss = loss * 0.5
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach(), hidden.detach(), noise

    def state(self) -> list[torch.Tensor]:
        modules = (self.first, self.second)
        return [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]


def seeded(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def compared(executor: str, calls: int, exact: bool = True) -> Any:
    eager, ours = Training(), Training()
    step: Any = torchjanus.speculate(ours.step, executor=executor)
    draw = torch.Generator().manual_seed(1)
    for number in range(calls):
        x = torch.randn(5, 4, generator=draw)
        limit = torch.tensor(50.0 if number % 7 else -50.0)  # now and then both tensors decide otherwise
        found = []
        for function in (eager.step, step):
            seeded(number)
            found.append((function(x, limit), torch.get_rng_state(), np.random.get_state()[1].tolist()))
        (expected, state, numbers), (met, own_state, own_numbers) = found
        assert torch.equal(state, own_state)
        assert numbers == own_numbers
        assert met[2] == expected[2]
        tensors = zip((*expected[:2], *eager.state()), (*met[:2], *ours.state()), strict=True)
        for one, other in tensors:
            torch.testing.assert_close(other, one, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5)
        assert ours.drawn == eager.drawn
    return step


def test_parts_do_what_eager_does() -> None:
    step = compared("replay", 24)
    assert step.statistics().speculated >= 12
    assert any(entry.lowered.program.cuts for entry in step.entries)


@pytest.mark.slow
def test_the_last_part_is_compiled() -> None:
    step = compared("inductor", 24, exact=False)
    assert step.statistics().speculated >= 12
    assert any(entry.lowered.program.cuts and entry.engine.current == "inductor" for entry in step.entries)


def test_what_is_carried_is_let_go_and_holds_no_views() -> None:
    step = compared("replay", 7)
    (whole,) = {id(e.lowered): e.lowered for e in step.entries if e.lowered.program.cuts}.values()
    tail = tail_of(whole)
    stages = stages_of(whole)
    last = len(whole.program.cuts)
    assert tail.live
    assert all(stages[node] < last and not is_view(node) for node in tail.live)
    own = [node for node in whole.graph.graph.nodes if node.op == "call_function" and stages[node] == last]
    assert tail.lowered.nodes >= len(own) > 0
    count = len(whole.program.inputs)
    inputs = [torch.zeros(entry.example.size(), dtype=entry.example.dtype) for entry in tail.lowered.program.inputs]
    assert len(inputs) == count + len(tail.live)
    Replay(tail.lowered).compute(inputs, [0.5 if slot.type is float else 1 for slot in whole.program.slots])
    assert len(inputs) == count


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """This process is the only one of its group."""
    if not dist.is_available():
        pytest.skip("this PyTorch has no torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_buckets_are_reduced_while_the_backward_pass_goes_on() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=0.0001)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def train(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step: Any = torchjanus.speculate(train, executor="replay")
    for _ in range(5):
        step(torch.ones(4, 8))
    (whole,) = {id(e.lowered): e.lowered for e in step.entries}.values()
    cuts, stages = whole.program.cuts, stages_of(whole)
    assert [cut.begins for cut in cuts] == ["early"] * 3 + [""] * 3
    products = [stage for node, stage in stages.items() if node.target is torch.ops.aten.mm.default]
    # of each layer the gradient of the weight, after that of the layer's output
    assert products == [0, 0, 1, 1, 2]
    # updates overwrite what they update, so they come when nothing can fail any more
    updates = [stage for node, stage in stages.items() if node.kwargs.get("alpha") == -0.1]
    assert updates == [6] * 6
    tail = tail_of(whole).lowered
    assert len(of_updates(tail).updated) == len(tail.mutated) == 12  # parameters and momentum
    # the sum overwrites the gradient of the last layer's weight, which an earlier segment has computed
    taken = [node for node in tail.graph.graph.nodes if node.op == "placeholder"]
    over = {node.args[0] for node in of_updates(tail).forms if node.target is torch.ops.aten.copy.default}
    assert over and over <= {taken[place] for place in tail.scratch}


@pytest.mark.usefixtures("alone")
def test_a_bucket_is_packed_into_memory_of_its_own() -> None:
    """The reduction overwrites it, and nothing else that the program sees."""
    layer = nn.Linear(3, 1, bias=False)
    model = nn.parallel.DistributedDataParallel(layer)
    seen = list[torch.Tensor]()
    layer.weight.register_hook(lambda gradient: seen.append(gradient))

    def train(x: torch.Tensor) -> torch.Tensor:
        layer.weight.grad = None
        seen.clear()
        model(x).sum().backward()
        return layer.weight.grad * 1

    step: Any = torchjanus.speculate(train, executor="replay")
    for number in range(6):
        x = torch.full((2, 3), 1.0 + number)
        assert torch.equal(step(x), train(x))
    assert step.statistics().speculated >= 2
    for entry in step.entries:
        given = [given_at(entry.lowered, cut) for cut in entry.lowered.program.cuts if cut.begins]
        assert [node.target for (node,) in given] == [torch.ops.aten.mul.Tensor]
        assert all(len(node.users) == 1 for (node,) in given)


@pytest.mark.usefixtures("alone")
def test_what_may_raise_comes_before_what_begins_after_it() -> None:
    def reduce(x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        total = x * 2
        picked, other = x[places], x.exp()
        handle = dist.all_reduce(total, async_op=True)
        assert handle is not None
        other = other @ other
        handle.wait()
        return total + picked.sum() + other

    step: Any = torchjanus.speculate(reduce, executor="replay")
    for number in range(6):
        x, places = torch.full((3, 3), 1.0 + number), torch.tensor([0, 2])
        assert torch.equal(step(x, places), reduce(x, places))
    (entry,) = step.entries
    stages = stages_of(entry.lowered)
    found = {node.target: stage for node, stage in stages.items() if node.op == "call_function"}
    assert [cut.begins for cut in entry.lowered.program.cuts] == ["here", ""]
    aten = torch.ops.aten
    assert (found[aten.index.Tensor], found[aten.exp.default], found[aten.mm.default]) == (0, 1, 1)
