"""What records a call of torch, a loop or a backward pass fails: each is made once, and no graph is made of it."""

from __future__ import annotations

import pytest
import torch

import torchjanus
from tests.injection.internal import EVERYDAY, check
from tests.programs import harness
from torchjanus.semantics.torch.arguments import Arguments
from torchjanus.semantics.torch.backward_code import BackwardCode
from torchjanus.semantics.torch.fetching import Fetching
from torchjanus.semantics.torch.node_recorder import NodeRecorder
from torchjanus.semantics.torch.sizes import Sizes
from torchjanus.semantics.watch.loops.counted import ForLoops

PROGRAMS = harness.programs_in(harness.load_file(EVERYDAY))
METHODS = [
    (NodeRecorder, "_operate"),
    (NodeRecorder, "_note"),
    (NodeRecorder, "ref"),
    (NodeRecorder, "known"),
    (Arguments, "symbol"),
    (Sizes, "pin"),
    (Sizes, "traced"),
    (Fetching, "_fetched"),
    (BackwardCode, "_begin"),
    (BackwardCode, "_end"),
    (ForLoops, "_begun"),
    (ForLoops, "_begin_iteration"),
    (ForLoops, "record_end"),
    (ForLoops, "_combined_begun"),
    (ForLoops, "_begin_combined"),
    (ForLoops, "_combined_ended"),
]
CASES = [(*method, program) for method in METHODS for program in PROGRAMS]


@pytest.mark.parametrize(
    ("owner", "name", "program"),
    [
        pytest.param(*case, id=f"{case[1]}-{case[2]}", marks=pytest.mark.slow if number % 24 else ())
        for number, case in enumerate(CASES)
    ],
)
def test_the_program_does_not_notice(owner: type, name: str, program: str) -> None:
    check(program, owner, name)


@pytest.mark.parametrize("after", [False, True])
def test_a_call_is_made_once(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    operate = NodeRecorder._operate

    def failing(self, *args, **kwargs):
        if after:
            operate(self, *args, **kwargs)
        raise KeyError("of ours")

    monkeypatch.setattr(NodeRecorder, "_operate", failing)
    total = torch.zeros(2)
    step = torchjanus.speculate(lambda x: total.add_(x) * torch.rand(2), executor="replay")
    torch.manual_seed(0)
    made = [step(torch.ones(2)) for _ in range(5)]
    torch.manual_seed(0)
    assert all(torch.equal(one, (n + 1.0) * torch.rand(2)) for n, one in enumerate(made))
    assert step.statistics().speculated == 0
    assert "torchjanus itself failed on a call of" in str(torchjanus.explain(step, detail=True))


def test_errors_of_torch_are_the_programs() -> None:
    @torchjanus.speculate(executor="replay")
    def step(x):
        try:
            return x @ torch.ones(7)
        except RuntimeError:
            return x * 2

    for _ in range(5):
        step(torch.ones(2))
    assert "itself failed" not in str(torchjanus.explain(step, detail=True))


def test_code_that_autograd_calls_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self, *args, **kwargs):
        raise KeyError("of ours")

    monkeypatch.setattr(BackwardCode, "_begin", failing)
    weight, seen = torch.ones(2, requires_grad=True), []

    @torchjanus.speculate(executor="replay")
    def step(x):
        product = weight * x
        product.register_hook(lambda grad: grad * 3)
        product.sum().backward()
        seen.append(1)

    for _ in range(5):
        step(torch.ones(2))
    assert weight.grad.tolist() == [15, 15]
    assert len(seen) == 5
    assert step.statistics().speculated == 0
    assert "torchjanus itself failed in code that autograd calls" in str(torchjanus.explain(step, detail=True))


@pytest.mark.parametrize(
    "name", ["_begun", "_begin_iteration", "record_end", "_combined_begun", "_begin_combined", "_combined_ended"]
)
def test_loops_go_on(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def failing(self, *args, **kwargs):
        raise KeyError("of ours")

    monkeypatch.setattr(ForLoops, name, failing)

    @torchjanus.speculate(executor="replay")
    def step(x, parts):
        for n, part in enumerate(parts):
            x = x + part * n
        for n in range(len(parts)):
            x = x * (n + 1)
        return x

    parts = [torch.ones(2) * n for n in range(3)]
    for _ in range(5):
        assert step(torch.ones(2), parts).tolist() == [36, 36]
    assert step.statistics().speculated == 0
    assert "torchjanus itself failed in a loop: KeyError: 'of ours'" in str(torchjanus.explain(step, detail=True))
