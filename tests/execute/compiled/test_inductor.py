"""Inductor's whole-step graphs: eager's numbers within rounding, its random draws, and no update on a violation."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchjanus
from tests.execute.lockstep import Lockstep
from tests.execute.steps import data_of, kept_grads_step, make_state, plain_step, schedule
from tests.graph.generalize.test_generalize import plan_of
from torchjanus.execute.compiled.inductor import Inductor
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Executable, Violated
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.for_inductor import prepare
from torchjanus.graph.lowering.lower import lower

CASES = [
    ("mlp", "adamw", plain_step, pytest.mark.slow),
    ("mlp", "sgd", kept_grads_step, ()),
    ("mlp", "adam-foreach", kept_grads_step, pytest.mark.slow),
    ("mlp", "rmsprop", plain_step, pytest.mark.slow),
    ("mlp", "adagrad", plain_step, pytest.mark.slow),
    ("mlp", "nesterov", plain_step, pytest.mark.slow),
    ("lstm", "adamw", kept_grads_step, pytest.mark.slow),
    ("tied", "adam", plain_step, pytest.mark.slow),
    ("convnet", "sgd", plain_step, pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("model", "optimizer", "step"), [pytest.param(*case[:3], marks=case[3], id="-".join(case[:2])) for case in CASES]
)
def test_a_training_run_is_within_rounding(model: str, optimizer: str, step: Callable[..., Any]) -> None:
    run = Lockstep(make_state(model, optimizer), step, data_of(model), Inductor, before=schedule)
    for _ in range(6):
        run.advance(tolerance=1e-5 if model != "convnet" else 1e-4)


def numbers_step(state: Any, x: torch.Tensor, p: float, n: int) -> torch.Tensor:
    """Numbers that change from call to call, in every position that takes them, and draws in channels-last memory."""
    y = (p - x * state.a) / p + p / (x.abs() + 1) - p * state.b + n * x / (n + 1)
    y = torch.lerp(y, x, p) + torch.addcmul(x, x, y, value=p) + y.clamp(-p, p) + (x > p)
    y = y + x.masked_fill(x > 0, p) + F.leaky_relu(x, p) + x.new_full((6,), p) + torch.tensor([p] * 6) + x**p.real
    y = torch.where(x > 0, y, p) + torch.add(x, y, alpha=n) - torch.sub(x, y, alpha=p)
    (p * x[0] * (state.d + state.e)).sum().backward()  # both gradients are the same numbers, and not the same tensor
    total = (y.mean() * p + n) / (1 + p)
    image = x.view(1, 2, 4, 3).contiguous(memory_format=torch.channels_last)
    parts = [state.a, state.b, state.c]
    torch._foreach_mul_(parts, [p, 1.0, p])
    torch._foreach_add_(parts, [part.clone() for part in reversed(parts)], alpha=p)
    torch._foreach_addcdiv_(parts, parts, [part.abs() + 1 for part in parts], [p, p, 0.5])
    return total + F.dropout(image, 0.5).mul(p).flatten()[:6].sum()


def test_numbers_are_data() -> None:
    torch.manual_seed(0)
    state = SimpleNamespace(a=torch.randn(6), b=torch.randn(6), c=torch.randn(6))
    state.d, state.e = torch.randn(6, requires_grad=True), torch.randn(6, requires_grad=True)
    draw = torch.Generator().manual_seed(1)

    def data(at: int) -> tuple[torch.Tensor, float, int]:
        return torch.rand(4, 6, generator=draw) + 0.1, 0.2 + 0.05 * at, at + 3

    def before(state: Any, at: int) -> None:
        state.d.grad = state.e.grad = None

    run = Lockstep(state, numbers_step, data, Inductor, before=before)
    assert len(run.lowered.leaves) == 2 and all(leaf.changed for leaf in run.lowered.leaves)
    assert not run.lowered.pinned, run.lowered.pin_reasons
    for _ in range(4):
        run.advance(tolerance=1e-5)
        assert run.twin.d.grad.data_ptr() != run.twin.e.grad.data_ptr()


def guarded_step(state: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A user's check in the middle of a step, after something has been written already."""
    state.steps += 1
    loss = F.cross_entropy(state.net(x), y)
    if not torch.isfinite(loss):
        raise FloatingPointError
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(state.net.parameters(), 1.0)
    if norm > 1000:
        return norm
    state.optimizer.step()
    state.optimizer.zero_grad()
    return loss


def all_of(run: Lockstep) -> list[torch.Tensor]:
    return [twin for _, twin in run._pairs()]


@pytest.mark.parametrize("executor", [Replay, Inductor])
@pytest.mark.parametrize("broken", ["infinite", "large"])
def test_a_violation_changes_nothing(executor: Callable[[Lowered], Executable], broken: str) -> None:
    state = make_state("mlp", "sgd")
    state.steps = torch.zeros((), dtype=torch.int64)
    run = _once(executor, state)
    run.advance(tolerance=1e-5)
    x, _ = run.data(50)
    x[0, 0] = float("inf") if broken == "infinite" else 1e9
    recording_inputs = [*run.inputs_of(run.last)]
    where = {id(entry.example): number for number, entry in enumerate(run.last.inputs)}
    recording_inputs[where[id(run.last_data[0])]] = x
    before = [tensor.detach().clone() for tensor in recording_inputs]
    versions = [tensor._version for tensor in recording_inputs]
    generator = torch.get_rng_state()
    outcome = run.executable.run(recording_inputs, run.slots_of(run.last))
    assert isinstance(outcome, Violated)
    assert outcome.assertions == ((0,) if broken == "infinite" else (1,))
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(a, b) for a, b in zip(recording_inputs, before, strict=True))
    if executor is Replay:
        assert [tensor._version for tensor in recording_inputs] == versions
    run.advance(tolerance=1e-5)


_KEPT: dict[Any, Lockstep] = {}


def _once(executor: Callable[[Lowered], Executable], state: SimpleNamespace) -> Lockstep:
    """One compilation serves both tests."""
    if executor not in _KEPT:
        _KEPT[executor] = Lockstep(state, guarded_step, data_of("mlp"), executor)
    return _KEPT[executor]


def test_one_artifact_serves_all_sizes() -> None:
    weight = torch.randn(4, 3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x @ weight, y) / x.shape[0]

    calls = [(torch.randn(n, 4), torch.randint(3, (n,))) for n in (3, 5, 6, 2, 9, 33)]
    graph = lower(plan_of(step, calls[:3]).program)
    compiled, replay = Inductor(graph), Replay(graph)
    for call in calls:
        inputs = [{"x": call[0], "y": call[1]}.get(entry.name, weight) for entry in graph.program.inputs]
        assert torch.allclose(compiled.run(inputs, [])[0], replay.run(inputs, [])[0])


@pytest.mark.slow
def test_a_loop_that_gives_one_tensor_does_not_end_the_program() -> None:
    """Inductor's C++ crashes when it calls an operator that returns a list of one tensor."""
    w = torch.randn(8, 8) / 3

    def step(x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = torch.tanh(x @ w)
        return x * 2

    speculated = torchjanus.speculate(step, executor="inductor")
    for _ in range(8):
        x = torch.randn(4, 8)
        torch.testing.assert_close(speculated(x), step(x))
    assert speculated.entries[0].engine.current == "inductor"


def classifier() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    torch.manual_seed(0)
    net = torch.nn.Linear(6, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


@pytest.mark.parametrize("executor", ["inductor", pytest.param("auto", marks=pytest.mark.slow)])
def test_sizes_that_the_compiler_does_not_expect_are_replayed(executor: str) -> None:
    """Inductor decides by the sizes that it is shown, here that a sum has few terms."""
    eager, fast = classifier(), torchjanus.speculate(classifier(), executor=executor)
    data = torch.Generator().manual_seed(0)

    def both(batch: int) -> None:
        x, y = torch.randn(batch, 6, generator=data), torch.randint(4, (batch,), generator=data)
        torch.testing.assert_close(fast(x, y), eager(x, y))

    for batch in (8, 8, 16, 5):
        both(batch)
    (entry,) = fast.entries
    entry.engine.wait()
    for batch in range(3, 27):
        both(batch)
    compiled = entry.engine._trial.candidate if entry.engine._trial else entry.engine.compiled
    if executor == "inductor":
        assert compiled is not None and compiled.fits(_inputs(entry, 9))
        assert not compiled.fits(_inputs(entry, 100_000))
    assert any("agreed with replay on 7 calls" in note for note in entry.engine.notes), entry.engine.notes
    both(100_000)
    both(7)
    assert fast.statistics().speculated == 27 and fast.entries == [entry]


def _inputs(entry: Any, batch: int) -> list[torch.Tensor]:
    """Like the graph's inputs, for a batch of this size."""
    return [
        torch.empty(
            [
                batch if symbol is not None else size
                for size, symbol in zip(one.example.size(), one.symbols or [None] * 9)
            ]
        )
        for one in entry.lowered.program.inputs
    ]


def copying_step(shared: torch.Tensor, local: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """A worker takes the shared parameters before these are updated."""
    local.copy_(shared)
    before = shared.clone()
    shared.sub_(0.1 * (local * x))
    return before


def copying_graph() -> Lowered:
    shared, local = torch.randn(3, 4), torch.randn(3, 4)
    return lower(plan_of(lambda x: copying_step(shared, local, x), [(torch.randn(3, 4),) for _ in range(3)]).program)


def test_what_is_copied_from_an_input_that_changes_is_a_value_of_its_own() -> None:
    graph = prepare(copying_graph()).graph.graph
    written = {node.args[0]: node.args[1] for node in graph.nodes if node.target is torch.ops.aten.copy_.default}
    (values,) = [node.args[0] for node in graph.nodes if node.op == "output"]
    assert len(written) == 2
    for value in (*written.values(), *values):
        assert value.target not in (torch.ops.aten.copy.default, torch.ops.aten.clone.default)
        assert value not in written


@pytest.mark.slow
def test_a_copy_of_an_input_is_taken_before_its_update() -> None:
    graph = copying_graph()
    compiled, replay = Inductor(graph), Replay(graph)
    for _ in range(3):
        inputs = [torch.randn(3, 4) for _ in graph.program.inputs]
        others = [tensor.clone() for tensor in inputs]
        for one, two in zip(compiled.run(inputs, []), replay.run(others, []), strict=True):
            torch.testing.assert_close(one, two)
        for one, two in zip(inputs, others, strict=True):
            torch.testing.assert_close(one, two)


@pytest.mark.slow
def test_positions_that_follow_from_sizes_cost_no_copies_and_are_replayed_where_there_are_too_many() -> None:
    def reading(executor: str | None) -> tuple[Any, nn.Module]:
        torch.manual_seed(0)
        model = nn.ModuleDict({"words": nn.Embedding(11, 4), "places": nn.Embedding(9, 4), "head": nn.Linear(4, 11)})
        opt = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(ids: torch.Tensor) -> float:
            x = model["words"](ids) + model["places"](torch.arange(ids.shape[1]))
            loss = model["head"](x).square().mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss.item()

        return (step if executor is None else torchjanus.speculate(step, executor=executor)), model

    (eager, wanted), (step, model) = reading(None), reading("inductor")
    for length in (3, 5, 7, 4, 6, 8, 9, *range(2, 10), 10, 9, 11, 3):
        ids = torch.arange(2 * length).view(2, length) % 11
        if length > 9:
            for run in (eager, step):
                with pytest.raises(IndexError, match="index out of range in self"):
                    run(ids)
        else:
            assert step(ids) == pytest.approx(eager(ids), rel=1e-5)
        for mine, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs)
    assert "inductor agreed with replay" in str(torchjanus.explain(step, detail=True))
    (entry,) = step.entries
    made = entry.engine.compiled
    assert made is not None
    assert not made._undone
    assert made._bounds
