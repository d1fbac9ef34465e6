"""Lowering keeps what eager does: mutation, views, aliasing, autograd in all its uses, modes, and changing numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchjanus
from tests.execute.lockstep import Lockstep
from tests.graph.recording import generalise, record
from torchjanus.core.errors import Refused
from torchjanus.execute.replay import Replay
from torchjanus.graph.ir.lowered import Fresh, FromInput, GradState, Lowered, NoGradient, ViewOf
from torchjanus.graph.ir.program import Node, Program, Ref, Slot, SlotKind
from torchjanus.graph.lowering import lower as lowering
from torchjanus.graph.lowering.lower import lower


def data(at: int) -> tuple[torch.Tensor, float]:
    draw = torch.Generator().manual_seed(at)
    return torch.randn(4, 6, generator=draw), 0.1 + 0.01 * at


def state() -> SimpleNamespace:
    torch.manual_seed(5)
    return SimpleNamespace(
        w=torch.randn(6, 6, requires_grad=True),
        b=torch.randn(6, requires_grad=True),
        buffer=torch.randn(4, 6),
        count=torch.zeros((), dtype=torch.int64),
        linear=nn.Linear(6, 6),
        lstm=nn.LSTM(6, 6, batch_first=True),
    )


def views_in_place(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    s.buffer[1:3, ::2].mul_(0.5).add_(x[1:3, ::2], alpha=lr)
    s.buffer.t()[2] = lr
    s.buffer[0, 0] = 3.0
    s.count += 1
    return s.buffer.sum() + s.count


def data_in_place(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    loss = (x @ s.w + s.b).relu().mean()
    loss.backward()
    s.w.data.add_(s.w.grad.data, alpha=-lr)
    s.b.data -= lr * s.b.grad
    s.w.grad.zero_()
    s.b.grad = None
    return loss.detach()


def written_by_hand(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    loss = F.mse_loss(x @ s.w, x)
    (grad,) = torch.autograd.grad(loss, [s.w])
    with torch.no_grad():
        s.w -= lr * grad
    return loss


def second_order(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    loss = torch.tanh(x @ s.w).pow(2).sum()
    (grad,) = torch.autograd.grad(loss, [s.w], create_graph=True)
    total = loss + lr * grad.norm()
    total.backward()
    with torch.no_grad():
        s.w.sub_(s.w.grad * 0.01)
    s.w.grad = None
    return total.detach()


def shared_graph(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    hidden = torch.sigmoid(x @ s.w)
    hidden.sum().backward(retain_graph=True)
    (hidden * lr).pow(2).sum().backward()
    with torch.no_grad():
        s.w.add_(s.w.grad, alpha=-0.1)
        s.w.grad.zero_()
    return hidden.detach().mean()


def checkpointed(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    out = checkpoint(lambda v: torch.tanh(s.linear(v)), x, use_reentrant=False)
    loss = (out * lr).sum()
    loss.backward()
    return loss.detach()


def attention(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    q = (x @ s.w).view(1, 2, 4, 3)
    out = F.scaled_dot_product_attention(q, q, q, dropout_p=0.2, is_causal=True)
    out.sum().backward()
    return out.detach()


def recurrent(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    out, (_, c) = s.lstm(x.view(2, 2, 6))
    loss = out.sum() * lr + c.mean()
    loss.backward()
    return loss.detach()


def made_inside(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    mask = torch.arange(6) < 4
    table = torch.tensor([lr, 1.0, lr])
    noise = torch.randn(4, 6) * 0.1 + torch.empty(4, 6).uniform_(0, 1) + torch.rand_like(x)
    filled = torch.full((4, 6), lr)
    picked = torch.where(mask, x + noise, filled) * table.sum()
    order = torch.randperm(4)
    s.buffer.copy_(picked[order])
    return picked


def part_precision(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = F.relu(s.linear(x))
        out = s.linear(hidden) @ s.w
        loss = F.mse_loss(out.float(), x)
    loss.backward()
    with torch.no_grad():
        s.w.add_(s.w.grad, alpha=-lr)
        s.w.grad.zero_()
        s.linear.weight.grad.zero_()
        s.linear.bias.grad.zero_()
    return loss.detach()


def without_gradients(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    with torch.inference_mode():
        return s.linear(x).argmax(1)


def frozen(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    s.w.requires_grad_(False)
    loss = (x @ s.w + s.b).pow(2).mean()
    loss.backward()
    s.w.requires_grad_(True)
    return loss.detach()


def channels_last_draws(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    y = x.view(1, 2, 3, 4).contiguous(memory_format=torch.channels_last)
    s.buffer.t().bernoulli_(0.5)
    s.buffer[::2].normal_()
    return F.dropout(y, 0.5) * lr + torch.rand_like(y)


def out_of_place(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    torch.mul(x, lr, out=s.buffer)
    loss = (s.w * lr).norm() / (1 + lr) + s.b.std() - lr
    loss.backward()
    return loss.detach()


def numbers_everywhere(s: Any, x: torch.Tensor, lr: float) -> torch.Tensor:
    y = (lr - x * s.w[:4]) / lr + lr / (x.abs() + 1) - lr * s.b
    y = torch.lerp(y, x, lr) + torch.addcmul(x, x, y, value=lr) + y.clamp(-lr, lr) + (x > lr)
    y = y + x.masked_fill(x > 0, lr) + F.leaky_relu(x, lr) + x.new_full((6,), lr)
    y.sum().backward()
    return y.detach()


PROGRAMS: list[Callable[..., Any]] = [
    views_in_place, data_in_place, written_by_hand, second_order, shared_graph, checkpointed, attention, recurrent,
    made_inside, part_precision, without_gradients, frozen, channels_last_draws, out_of_place, numbers_everywhere,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_replay_is_bitwise_eager(program: Callable[..., Any]) -> None:
    run = Lockstep(state(), program, data, Replay)
    assert not run.lowered.pinned, run.lowered.pin_reasons
    for _ in range(4):
        run.advance()


def lowered_of(function: Callable[..., Any], *calls: tuple[Any, ...]) -> Lowered:
    program, _ = generalise([record(function, *arguments) for arguments in calls])
    return lower(program)


def test_results_say_where_they_live_and_what_autograd_knows() -> None:
    weight = torch.randn(3, requires_grad=True)

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = (x * weight).sum()
        loss.backward()
        kept = (weight * 2).exp()
        return loss, loss, kept, kept.detach(), x, x[1:], weight.grad, x.clone()

    lowered = lowered_of(step, (torch.randn(3),))
    loss, again, kept, detached, same, part, grad, copied = lowered.outputs
    assert loss == again and isinstance(loss.source, Fresh) and loss.state is GradState.FREED
    assert kept.state is GradState.LIVE and isinstance(kept.source, Fresh)
    assert isinstance(detached.source, ViewOf) and detached.source.base == kept.source
    assert detached.state is GradState.PLAIN
    assert isinstance(same.source, FromInput)
    assert part.source == ViewOf(same.source, (2,), (1,), 1)
    (leaf,) = lowered.leaves
    assert leaf.changed and leaf.result.source == grad.source
    assert isinstance(copied.source, Fresh), "a clone of an input is a tensor of its own"


def test_a_number_is_fetched_as_it_was_then() -> None:
    x = torch.tensor([1.0, 2.0])

    def step() -> torch.Tensor:
        first = x.sum()
        first.item()
        first.mul_(10)
        return first

    recording = record(step)
    program, _ = generalise([recording])
    executable = Replay(lower(program))
    values = executable.run([x], [])
    assert isinstance(values, list)
    fetched, final = (values[result.source.index] for result in executable.lowered.outputs)  # type: ignore[union-attr]
    assert (fetched.item(), final.item()) == (3.0, 30.0)


def test_gradients_may_be_dropped_kept_or_made() -> None:
    net = nn.Linear(2, 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = net(x).sum()
        loss.backward()
        net.bias.grad = None
        return loss.detach()

    lowered = lowered_of(step, (torch.randn(3, 2),))
    sources = {lowered.program.inputs[leaf.index].example.dim(): leaf for leaf in lowered.leaves}
    assert isinstance(sources[2].result.source, Fresh) and sources[2].changed
    # Written in any case: where a gradient is thrown away, it is not asked whether there was one.
    assert isinstance(sources[1].result.source, NoGradient) and sources[1].changed


def test_random_draws_are_never_dropped() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        F.dropout(x, 0.5)
        return x + torch.rand(4)

    lowered = lowered_of(step, (torch.randn(4),))
    assert lowered.random
    assert str(lowered).count("aten.rand.default") == 2
    assert str(lowered).count("aten.bernoulli") == 1


def test_lowering_draws_nothing_and_touches_no_tensor() -> None:
    weight = torch.randn(3, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = F.dropout(x * weight, 0.5).sum() + torch.rand(())
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad)  # type: ignore[arg-type]
        return loss

    program, _ = generalise([record(step, torch.randn(3))])
    generator, version, grad = torch.get_rng_state(), weight._version, weight.grad
    lower(program)
    assert torch.equal(torch.get_rng_state(), generator)
    assert weight._version == version and weight.grad is grad


def test_autocast_around_the_call_of_lower_does_not_leak_in() -> None:
    program, _ = generalise([record(lambda x: x @ x, torch.ones(2, 2))])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (value,) = Replay(lower(program)).run([torch.ones(2, 2)], [])  # type: ignore[misc]
    assert value.dtype == torch.float32


def test_a_call_that_needs_data_is_refused_at_its_place() -> None:
    program, _ = generalise([record(lambda x: x.nonzero() + 1, torch.ones(2))])
    with pytest.raises(Refused, match=r"test\.py:1: nonzero raised"):
        lower(program)


def test_a_number_in_a_shape_is_pinned() -> None:
    def step(x: torch.Tensor, n: int, p: float) -> torch.Tensor:
        return F.dropout(x.expand(n, 4), p) * n

    lowered = lowered_of(step, (torch.randn(4), 2, 0.25), (torch.randn(4), 3, 0.5))
    kinds = {kind.type: index for index, kind in enumerate(lowered.program.slots)}
    assert lowered.pinned == {kinds[int]: 3, kinds[float]: 0.5}
    assert all(lowered.pin_reasons.values())


def test_the_one_number_of_many_that_changes_the_graph_is_found_in_few_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    def step(x: torch.Tensor, n: int, *rates: float) -> torch.Tensor:
        for rate in rates:
            x = x * rate
        return x.repeat(n).sum()

    made = []
    trace = lowering.trace
    monkeypatch.setattr(lowering, "trace", lambda *args: made.append(1) or trace(*args))  # type: ignore[func-returns-value]
    first, second = ((torch.randn(3), 2 + at, *(at + rate / 40 for rate in range(1, 33))) for at in range(2))
    lowered = lowered_of(step, first, second)
    kinds = {kind.type: index for index, kind in enumerate(lowered.program.slots)}
    assert lowered.pinned == {kinds[int]: 3}
    assert len(lowered.program.slots) == 33
    assert len(made) < 25  # one at a time it would take 70


def test_whole_numbers_vary_where_they_are_data() -> None:
    def step(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n + x.long().float() / n + (x > n) + torch.full((2,), n)

    run = Lockstep(
        SimpleNamespace(a=torch.ones(2), b=torch.ones(2), c=torch.ones(2)),
        lambda s, x, n: step(x + s.a + s.b + s.c, n),
        lambda at: (torch.full((2,), 3.7), at + 2),
        Replay,
    )
    assert not run.lowered.pinned, run.lowered.pin_reasons
    for _ in range(3):
        run.advance()


def test_a_slot_is_distinguished_from_a_constant_of_the_same_value() -> None:
    def step(x: torch.Tensor, lr: float) -> torch.Tensor:
        return x * lr + x * 0.5 - x / lr

    run = Lockstep(SimpleNamespace(a=torch.ones(2), b=torch.ones(2), c=torch.ones(2)),
                   lambda s, x, lr: step(x + s.a + s.b + s.c, lr),
                   lambda at: (torch.arange(2.0), 0.5 / (4 - at) if at < 4 else 0.5), Replay)  # fmt: skip
    for _ in range(3):
        run.advance()


def test_the_default_dtype_of_the_program_holds() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        program, _ = generalise([record(lambda n: torch.ones(3) / 3 + torch.zeros(3, dtype=torch.int64) / 7, 1)])
    finally:
        torch.set_default_dtype(torch.float32)
    lowered = lower(program)
    assert lowered.default_dtype == torch.float64
    (value,) = Replay(lowered).run([], [])  # type: ignore[misc]
    assert value.dtype == torch.float64 and value[0].item() == 1 / 3


def test_seeding_inside_is_refused() -> None:
    program = Program((), (), (Node(torch.manual_seed, (3,), {}, ()),), (), (), (), ())
    with pytest.raises(Refused, match=r"manual_seed\(\) inside the step"):
        lower(program)


def test_history_from_outside_is_refused() -> None:
    weight = torch.randn(3, requires_grad=True)
    carried = weight * 2

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = (carried * x).sum()
        loss.backward()
        return loss

    recording = record(step, torch.ones(3))
    program, _ = generalise([recording])
    with pytest.raises(Refused, match="gradients flow into t0"):
        lower(program)


def test_an_input_that_shares_memory_with_a_changed_one_is_refused() -> None:
    whole = torch.zeros(4)
    part = whole[:2]

    def step() -> torch.Tensor:
        whole.add_(1)
        return part * 2

    program, _ = generalise([record(step)])
    with pytest.raises(Refused, match="shares its memory"):
        lower(program)


def test_a_list_operation_that_reads_what_it_wrote_is_refused() -> None:
    a, b = torch.ones(2), torch.ones(2)
    program, _ = generalise([record(lambda: torch._foreach_add_([a, b], [b, a]))])
    with pytest.raises(Refused, match="changed earlier in its list"):
        lower(program)


def test_an_index_is_pinned() -> None:
    x = torch.zeros(4)
    recording = record(lambda: x + 1)
    program = Program(
        inputs=tuple(recording.inputs),
        slots=(SlotKind(int, (1, 2)),),
        nodes=(Node(torch.Tensor.__getitem__, (Ref(0), Slot(0)), {}, (Ref(1),)),),
        outputs=(Ref(1),),
        output_after=(1,),
        assertions=(),
        leaves=(),
    )
    assert lower(program).pinned == {0: 2}


def test_what_cannot_be_traced_says_nothing_on_the_terminal(caplog: pytest.LogCaptureFixture) -> None:
    """torch logs an error of tracing where it occurs, though another attempt, or a refusal, follows."""
    table = torch.zeros(4, 12)
    place = [0]

    def step(row: torch.Tensor) -> torch.Tensor:
        table[:, place[0] : place[0] + 4] = row
        place[0] = (place[0] + 4) % 12
        return table.sum(0)

    logger = logging.getLogger("torch._subclasses.fake_tensor")
    logger.addHandler(caplog.handler)  # it does not propagate
    try:
        fast = torchjanus.speculate(step, executor="replay")
        for number in range(9):
            fast(torch.full((4, 4), float(number)))
    finally:
        logger.removeHandler(caplog.handler)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
