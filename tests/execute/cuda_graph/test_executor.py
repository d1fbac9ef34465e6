"""A captured step gives eager's bits call by call, whatever the program keeps, moves or changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.execute.lockstep import Lockstep
from tests.execute.steps import plain_step
from tests.graph.recording import generalise, record
from torchjanus.core.errors import Refused
from torchjanus.execute.compiled.inductor import packer
from torchjanus.execute.cuda_graph.executor import CudaGraph
from torchjanus.execute.cuda_graph.recorded import Recorded
from torchjanus.execute.cuda_graph.static_memory import Inputs
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Violated
from torchjanus.execute.running.printing import ReplaySource
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.for_inductor import prepare
from torchjanus.graph.lowering.lower import lower


class Captured:
    """Makes the executor, trusted after ``trial`` calls, and keeps the device."""

    def __init__(self, trusted: bool = True, **device: Any) -> None:
        self.device, self.trusted = Recorded(**device), trusted

    def __call__(self, lowered: Lowered) -> CudaGraph:
        made = CudaGraph.of(lowered, self.device)
        if self.trusted:
            made.trust()
        return made


def lowered_for(function: Any, *examples: torch.Tensor) -> Lowered:
    return lower(generalise([record(function, one) for one in examples])[0])


def network(*layers: nn.Module, optimizer: str = "sgd") -> SimpleNamespace:
    torch.manual_seed(3)
    net = nn.Sequential(*layers)
    made: Any = {
        "sgd": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
        "adam": lambda p: torch.optim.Adam(p, 0.01),
        "foreach": lambda p: torch.optim.Adam(p, 0.01, foreach=True),
    }
    return SimpleNamespace(net=net, optimizer=made[optimizer](net.parameters()))


def batch(at: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(at)
    return torch.randn(8, 6, generator=draw), torch.randint(0, 4, (8,), generator=draw)


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "foreach"])
def test_a_step_is_eager_call_by_call(optimizer: str, trusted: bool) -> None:
    make = Captured(trusted)
    state = network(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4), optimizer=optimizer)
    both = Lockstep(state, plain_step, batch, make, warm=2)
    for _ in range(6):
        both.advance()
    assert make.device.launches == 6
    assert make.device.captures == (2 if trusted else 1)


def test_random_numbers_are_eagers() -> None:
    make = Captured()
    both = Lockstep(network(nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 4)), plain_step, batch, make, warm=2)
    for _ in range(5):
        both.advance()
    assert make.device.launches == 5


def predicting(state: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns 160 KiB, which are not copied for the program."""
    F.cross_entropy(state.net(x), y).backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    return state.net(x).detach().exp()


class Kept:
    """Makes the executor, and keeps what its runs return: all of it, or only where it lay."""

    def __init__(self, keep: Any) -> None:
        self.make, self.keep = Captured(), keep
        self.values: list[torch.Tensor] = []
        self.copies: list[torch.Tensor] = []
        self.places: list[int] = []

    def __call__(self, lowered: Lowered) -> Any:
        made = self.make(lowered)

        def run(inputs: Any, slots: Any) -> Any:
            values = made.run(inputs, slots)
            (large,) = (value for value in values if value.nbytes > 1 << 16)
            self.places.append(large.data_ptr())
            if self.keep is not None:
                self.values.append(self.keep(large))
                self.copies.append(self.values[-1].clone())
            return values

        return SimpleNamespace(run=run)


def wide(keep: Any, calls: int) -> Kept:
    kept = Kept(keep)
    both = Lockstep(network(nn.Linear(6, 10), nn.Linear(10, 5120)), predicting, batch, kept, warm=2)
    for _ in range(calls):
        both.advance()
    assert all(map(torch.equal, kept.values, kept.copies))
    return kept


def test_a_result_that_nobody_keeps_is_not_copied() -> None:
    kept = wide(None, 6)
    assert len(set(kept.places[1:])) == 1
    assert kept.make.device.launches == 6


@pytest.mark.parametrize("keep", [lambda one: one, lambda one: one[0]])
def test_a_result_that_is_kept_is_never_overwritten(keep: Any) -> None:
    kept = wide(keep, 6)
    assert kept.make.device.launches == 5  # one call by replay: from then on results are copied


def test_parameters_whose_memory_moves_are_found_again() -> None:
    make = Captured()
    both = Lockstep(network(nn.Linear(6, 16), nn.Linear(16, 4)), plain_step, batch, make, warm=2)
    for at in range(9):
        if at in (4, 5):
            for _, twin in both._pairs():
                if twin.is_leaf and twin.requires_grad:
                    twin.data = twin.data.clone()
        both.advance()
    # Owned memory, adopted memory, and without what has moved; one call was replay's.
    assert (make.device.captures, make.device.launches) == (3, 8)


def test_memory_that_moves_all_the_time_is_copied() -> None:
    make = Captured()
    both = Lockstep(network(nn.Linear(6, 16), nn.Linear(16, 4)), plain_step, batch, make, warm=2)
    for at in range(16):
        if at > 3:
            for number, (_, twin) in enumerate(both._pairs()):
                if twin.is_leaf and twin.requires_grad and number % 3 == at % 3:
                    twin.data = twin.data.clone()
        both.advance()
    launched = make.device.launches
    for _ in range(3):
        for _, twin in both._pairs():
            if twin.is_leaf and twin.requires_grad:
                twin.data = twin.data.clone()
        both.advance()
    assert make.device.launches == launched + 3
    assert make.device.captures <= 7


class Scheduled:
    """A learning rate that changes at each call: a number of the host."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.rate = net, 0.1


def scheduled_step(state: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = F.cross_entropy(state.net(x), y)
    loss.backward()
    with torch.no_grad():
        for parameter in state.net.parameters():
            parameter.sub_(parameter.grad * state.rate)
            parameter.grad = None
    state.rate *= 0.9
    return loss


def test_a_number_of_the_host_needs_no_other_capture() -> None:
    make = Captured()
    torch.manual_seed(1)
    both = Lockstep(Scheduled(nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))), scheduled_step, batch, make, warm=2)
    assert both.lowered.program.slots
    for _ in range(6):
        both.advance()
    assert (make.device.launches, make.device.captures) == (6, 2)


def guarded(state: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
    state.optimizer.zero_grad()
    loss = F.cross_entropy(state.net(x), y)
    if not loss > 0:
        return None
    loss.backward()
    state.optimizer.step()
    return loss


def test_a_launch_whose_assertion_fails_changes_nothing() -> None:
    make = Captured()
    state = network(nn.Linear(6, 16), nn.Dropout(0.5), nn.Linear(16, 4), optimizer="adam")
    both = Lockstep(state, guarded, batch, make, warm=2)
    for _ in range(3):
        both.advance()
    inputs, slots = both.inputs_of(both.last), both.slots_of(both.last)
    bad = [one.clone().fill_(float("nan")) if one.shape == (8, 6) else one for one in inputs]
    before, generator = [one.clone() for one in inputs], torch.get_rng_state()
    for _ in range(2):
        assert both.executable.run(bad, slots) == Violated((0,))
        assert all(map(torch.equal, inputs, before))
        assert torch.equal(torch.get_rng_state(), generator)
    for _ in range(3):
        both.advance()
    assert make.device.launches == 8


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: x.index_put((x > 0,), x.new_ones(())), "mask"),
        (lambda x: torch.histc(x, 4), "waits for the device"),
        (lambda x: torch.linalg.inv(x), "on the host"),
    ],
)
def test_what_cannot_be_captured_is_refused_before(function: Any, why: str) -> None:
    x = torch.eye(3)
    with pytest.raises(Refused, match=why):
        CudaGraph.of(lowered_for(function, x, x, x), Recorded())


def test_a_capture_that_fails_is_a_call_by_replay() -> None:
    make = Captured()
    both = Lockstep(network(nn.Linear(6, 16), nn.Linear(16, 4)), plain_step, batch, make, warm=2)
    make.device.capture = lambda work, pool: (work(), 1 / 0)  # type: ignore[method-assign, assignment]
    for _ in range(3):
        both.advance()
    assert make.device.launches == 0


def test_an_artifact_is_captured_as_it_is() -> None:
    """By calls of ATen in place of kernels, which cannot be recorded."""

    class Artifact:
        def __init__(self, lowered: Lowered) -> None:
            prepared = prepare(lowered)
            count = sum(node.op == "placeholder" for node in prepared.graph.graph.nodes)
            source = ReplaySource(prepared.graph, count)
            compute = source.compute(source.generate())
            self.call = lambda *given: compute(given, ())
            self.lowered, self.asks, self.pack = lowered, False, packer(prepared)
            self.constants, self.copies, self.place = prepared.constants, prepared.copies, prepared.device
            self.run, self.fits = Replay(lowered).run, lambda inputs: True

    device = Recorded()

    def make(lowered: Lowered) -> CudaGraph:
        made = CudaGraph.around(cast(Any, Artifact(lowered)), device)
        made.trust()
        return made

    torch.manual_seed(1)
    state = Scheduled(nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.2), nn.Linear(5, 4)))
    both = Lockstep(state, scheduled_step, batch, make, warm=2)
    for _ in range(4):
        both.advance(1e-6)
    assert (device.launches, device.captures) == (4, 2)
    artifact = Artifact(both.lowered)
    artifact.asks = True
    with pytest.raises(Refused, match="looks at indices"):
        CudaGraph.around(cast(Any, artifact), device)


def test_memory_of_expanded_inputs_is_written_once() -> None:
    """As a gradient is that a sum has given."""
    given = torch.arange(3.0)[:, None].expand(3, 4)
    memory = Inputs([given], ())
    assert memory.tensors[0].stride() == given.stride()
    other = torch.ones(3, 1).expand(3, 4)
    memory.take([other])
    assert torch.equal(memory.tensors[0], other)
    memory.give_back([given], [0])
    assert torch.equal(given, other)
