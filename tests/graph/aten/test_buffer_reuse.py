"""Results written over what they are made of: the bits are eager's, and nobody sees an old value change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.operator_library import aten_operators
from torchjanus import speculate
from torchjanus.execute.replay import Replay
from torchjanus.graph.aten.may_fail import may_fail
from torchjanus.ops.aten import in_place_form, operator_of

aten = torch.ops.aten


def in_place(one: Any) -> Any:
    """What a graph may call in its place to overwrite the first argument."""
    return in_place_form(one) if operator_of(one).same_in_place else None


def layouts(dtype: torch.dtype) -> list[Tensor]:
    """Positive numbers in several layouts, with tails that vector instructions leave over."""
    made = torch.rand(7, 13, generator=torch.Generator().manual_seed(0)).to(dtype) + 0.5
    return [made, made.t(), made.reshape(7, 13, 1).permute(2, 0, 1), made[0, 0], made[:0]]


def arguments(count: int, others: Any) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """What operators may take behind the first argument; most take only some of it."""
    each = others if count == 0 else list(others)
    positional = [(), (each,), (0.7,), (0.6, 0.9), (each, each), (each, 0.3), (each, each, 0.3)]
    if count:
        positional += [([0.3] * count,), (each, each, [0.3] * count)]
    return [(given, named) for given in positional for named in ({}, {"alpha": 0.3}, {"value": 0.37})]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_operators_in_place_compute_the_same_bits(dtype: torch.dtype) -> None:
    tensors = layouts(dtype)
    others = [torch.rand_like(one) + 0.5 for one in tensors]
    tried = set()
    forms = {one: form for one in aten_operators() if (form := in_place(one)) is not None}
    for functional, in_place_one in forms.items():
        if dtype is torch.bfloat16 and operator_of(functional).rounds_number:
            continue
        several = functional._schema.name.startswith("aten::_foreach")
        cases = [(tensors, others)] if several else list(zip(tensors, others, strict=True))
        for first, second in cases:
            for given, named in arguments(len(tensors) if several else 0, second):
                try:
                    expected = functional(first, *given, **named)
                except (TypeError, RuntimeError, IndexError):
                    continue  # It takes something else.
                made = [one.clone(memory_format=torch.preserve_format) for one in (first if several else [first])]
                in_place_one(made if several else made[0], *given, **named)
                assert all(map(torch.equal, made, expected if several else [expected])), (functional, given)
                tried.add(functional)
    # What takes other arguments than those: a tensor of numbers, and rounding modes.
    assert len(tried) >= 0.7 * len(forms)


def replay_of(step: Any) -> Replay:
    """What runs the one graph of a step."""
    (entry,) = step.entries
    run = entry.launch.names["run"]
    assert isinstance(run.__self__, Replay)
    return run.__self__


class Training:
    """A step over one weight, by a rule of the test's."""

    def __init__(self, rule: Callable[[Any, Tensor], Any], executor: str | None) -> None:
        self.weight = torch.linspace(-1, 1, 12).reshape(3, 4).clone()
        self.other = torch.ones(3, 4)
        self.kept: Any = None
        self.step = (lambda x: rule(self, x)) if executor is None else speculate(rule, executor=executor)
        self.speculated = executor is not None

    def run(self, calls: int = 8) -> list[Any]:
        seen = []
        for number in range(calls):
            x = torch.full((3, 4), 0.25 * (number + 1))
            result = self.step(self, x) if self.speculated else self.step(x)
            seen.append((result, self.weight.clone(), self.other.clone(), self.weight._version > 0))
        return seen


def decayed(self: Training, x: Tensor) -> Tensor:
    self.weight.mul_(0.9).add_(x, alpha=0.1)
    return self.weight.sum()


def read_after(self: Training, x: Tensor) -> Tensor:
    before = self.weight.clone()
    self.weight.mul_(0.5).add_(x)
    return before - self.weight


def returned(self: Training, x: Tensor) -> Tensor:
    made = self.weight * x
    self.weight.copy_(made)
    return made


def viewed(self: Training, x: Tensor) -> Tensor:
    made = x * 2
    row = made[1]
    made = made + 1
    made.mul_(3)
    return row + made[1]


def twice(self: Training, x: Tensor) -> Tensor:
    made = x.exp()
    self.other.add_(made * made)
    self.weight.addcmul_(made, made, value=0.5)
    return made.neg()


def swapped(self: Training, x: Tensor) -> Tensor:
    a, b = self.weight.clone(), self.other.clone()
    self.weight.copy_(b).mul_(0.5)
    self.other.copy_(a).add_(x)
    return a


def of_rows(self: Training, x: Tensor) -> Tensor:
    self.weight[1].mul_(0.5)
    self.weight[:, 2].add_(x[:, 0])
    return self.weight.sum()


def in_lists(self: Training, x: Tensor) -> Tensor:
    torch._foreach_mul_([self.weight, self.other], 0.9)
    torch._foreach_add_([self.weight, self.other], [x, self.weight + x])
    return self.other.sum()


RULES = [decayed, read_after, returned, viewed, twice, swapped, of_rows, in_lists]


@pytest.mark.parametrize("rule", RULES)
def test_values_and_updates_are_eagers(rule: Callable[..., Any]) -> None:
    assert str(Training(rule, "replay").run()) == str(Training(rule, None).run())


def test_an_optimizer_overwrites_what_it_updates() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    @speculate(executor="replay")
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(4):
        step(torch.ones(2, 4))
    version, place = model.weight._version, model.weight.data_ptr()
    step(torch.ones(2, 4))
    assert (model.weight._version > version, model.weight.data_ptr()) == (True, place)
    replay = replay_of(step)
    assert replay._left == []
    assert len(replay._updated) == len(replay.lowered.mutated) == 8  # two parameters; two moments and a count for each


def test_elements_are_put_in_place_unless_one_lies_outside() -> None:
    rows, counts = torch.zeros(6, 3), torch.zeros(4)

    @speculate(executor="replay")
    def step(x: Tensor, at: int) -> None:
        rows[at] = x
        rows[at, 0] += 1
        counts[at] += 1

    for number in range(5):
        step(torch.ones(3), number % 3)
    place = rows.data_ptr()
    step(torch.full((3,), 2.0), 1)
    replay = replay_of(step)
    assert (replay._left, len(replay._updated), rows.data_ptr()) == ([], 2, place)
    assert (rows[1].tolist(), counts.tolist()) == ([3.0, 2.0, 2.0], [2.0, 3.0, 1.0, 0.0])
    before = rows.clone()
    with pytest.raises(IndexError):
        replay.run([torch.ones(3), rows, counts], [5])  # of the rows there are six, of the counts four
    assert torch.equal(rows, before)
    with pytest.raises(IndexError):
        step(torch.ones(3), 5)
    assert (rows[5].tolist(), counts.tolist()) == ([2.0, 1.0, 1.0], [2.0, 3.0, 1.0, 0.0])  # as eager leaves it


def test_nothing_is_overwritten_where_an_assertion_fails() -> None:
    weight, count = torch.ones(3), [0]

    @speculate(executor="replay")
    def step(x: Tensor) -> Tensor:
        weight.mul_(0.5)
        weight.add_(x)
        if weight.sum() > 100:
            count[0] += 1
            weight.zero_()
        return weight.sum()

    for number in range(8):
        step(torch.ones(3) * number)
    before = weight.clone()
    assert step.statistics().violated == 0
    step(torch.full((3,), 1000.0))
    assert step.statistics().violated == 1
    assert (count[0], weight.tolist(), before.tolist() != weight.tolist()) == (1, [0.0] * 3, True)


def test_an_error_amid_the_updates_is_not_mended_by_a_second_update(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.ones(3)

    @speculate(executor="replay")
    def step(x: Tensor) -> Tensor:
        weight.add_(x)
        return weight.sum()

    for _ in range(5):
        step(torch.ones(3))

    def full(tensors: list[Tensor]) -> None:
        raise MemoryError("no memory")

    monkeypatch.setattr("torchjanus.execute.replay.increment_version", full)
    with pytest.raises(MemoryError, match="no memory") as raised:
        step(torch.ones(3))
    assert "its tensors are updated" in raised.value.__notes__[0]
    assert weight.tolist() == [7.0] * 3


def large(ordinary: bool, executor: str = "replay") -> tuple[nn.Linear, Any]:
    """A step over a parameter of 1 MiB that sets gradients to None first, or after the loss."""
    torch.manual_seed(0)
    model = nn.Linear(512, 512)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @speculate(executor=executor)
    def step(x: Tensor) -> Tensor:
        if ordinary:
            optimizer.zero_grad()
        loss = model(x).square().mean()
        if not ordinary:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


@pytest.mark.parametrize("ordinary", [True, False])
def test_gradients_that_are_thrown_away_are_freed_before_the_graph_runs(ordinary: bool) -> None:
    """Nothing that comes before they are thrown away can raise."""
    model, step = large(ordinary)
    for _ in range(5):
        step(torch.ones(2, 512))
    seen = look(step, model)
    step(torch.ones(2, 512))
    assert seen == [(True, False)]  # the bias is not worth it
    assert model.weight.grad is not None


def look(step: Any, model: nn.Linear) -> list[tuple[bool, bool]]:
    """Whether the gradients are gone when the graph begins."""
    replay, seen = replay_of(step), []

    def looking(*given: Any) -> Any:
        seen.append((model.weight.grad is None, model.bias.grad is None))
        return replay.run(*given)

    (entry,) = step.entries
    entry.launch.use(looking)
    return seen


def classifying(loss: Any) -> tuple[nn.Linear, Any]:
    """A step that sets gradients to None after a loss that raises on some targets."""
    torch.manual_seed(0)
    model = nn.Linear(512, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @speculate(executor="replay")
    def step(x: Tensor, target: Tensor) -> Tensor:
        made = loss(model(x), target)
        optimizer.zero_grad()
        made.backward()
        optimizer.step()
        return made.detach()

    return model, step


def test_gradients_are_freed_early_only_where_the_loss_before_that_cannot_raise() -> None:
    model, step = classifying(F.cross_entropy)
    for _ in range(5):
        step(torch.ones(2, 512), torch.tensor([1, 63]))
    seen = look(step, model)
    step(torch.ones(2, 512), torch.tensor([1, 63]))
    assert seen == [(True, False)]
    before = model.weight.grad.clone()
    with pytest.raises(IndexError, match="out of bounds"):
        step(torch.ones(2, 512), torch.tensor([1, 64]))
    assert seen == [(True, False), (False, False)]
    assert torch.equal(model.weight.grad, before)  # eager has not come to throw it away either


def test_dropout_cannot_raise_if_its_probability_is_known() -> None:
    model, step = classifying(lambda scores, target: F.cross_entropy(F.dropout(scores, 0.5), target))
    for _ in range(6):
        step(torch.ones(2, 512), torch.tensor([1, 63]))
    seen = look(step, model)
    step(torch.ones(2, 512), torch.tensor([1, 63]))
    assert seen == [(True, False)]
    graph = torch.fx.Graph()
    given, chance = graph.placeholder("given"), graph.placeholder("chance")
    fails = [may_fail(graph.call_function(aten.bernoulli.p, (given, p))) for p in (0.0, 0.3, 1.0, 1.5, -1.0, chance)]
    assert fails == [False, False, False, True, True, True]


def test_gradients_stay_where_it_is_not_known_what_would_raise() -> None:
    model, step = classifying(lambda scores, target: scores.sigmoid().flatten()[target * 2].mean())
    for _ in range(5):
        step(torch.ones(2, 512), torch.tensor([1, 63]))
    seen = look(step, model)
    step(torch.ones(2, 512), torch.tensor([1, 63]))
    assert seen == [(False, False)]


@pytest.mark.parametrize("how", ["read", "added to", "hooked"])
def test_gradients_that_somebody_looks_at_before_stay(how: str) -> None:
    """They are the same as eager's, too."""

    def made() -> tuple[nn.Linear, list[Tensor], Callable[[Tensor], Tensor]]:
        torch.manual_seed(0)
        model = nn.Linear(512, 64)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        found: list[Tensor] = []

        def step(x: Tensor) -> Tensor:
            loss = model(x).square().mean()
            if how == "read":
                found.append(model.weight.grad.sum())
            elif how == "added to":
                loss.backward(retain_graph=True)
                found.append(model.weight.grad.sum())
            else:
                handle = model.weight.register_hook(lambda grad: grad * 2)
            optimizer.zero_grad()
            loss.backward()
            if how == "hooked":
                handle.remove()
            optimizer.step()
            return loss.detach()

        return model, found, step

    model, found, step = made()
    twin, theirs, eager = made()
    speculated = speculate(executor="replay")(step)
    for _ in range(6):
        assert torch.equal(speculated(torch.ones(2, 512)), eager(torch.ones(2, 512)))
        assert torch.equal(model.weight, twin.weight)
    assert found == theirs
    thrown = [
        entry.lowered.program.inputs[leaf.index]
        for entry in speculated.entries
        for leaf in entry.lowered.leaves
        if leaf.thrown
    ]
    assert not any(taken.example.shape == model.weight.shape for taken in thrown)


def test_gradients_stay_where_an_assertion_may_fail() -> None:
    model, _ = large(True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found: list[bool] = []

    @speculate(executor="replay")
    def step(x: Tensor) -> Tensor:
        found.append(model.weight.grad is not None)
        optimizer.zero_grad()
        loss = model(x).square().mean()
        if loss < 1000:
            loss.backward()
        return loss.detach()

    for _ in range(6):
        step(torch.ones(2, 512))
    assert not any(leaf.thrown for entry in step.entries for leaf in entry.lowered.leaves)
    step(torch.full((2, 512), 1e6))
    assert found == [False, *[True] * 6]
    assert model.weight.grad is None


def quotient_of_made(z: Tensor, w: Tensor) -> Tensor:
    return (z * 1) / w


def divided_in_place(z: Tensor, w: Tensor) -> Tensor:
    made = z * 1
    made /= w
    made.div_(w.real)
    return made


def divided_lists(z: Tensor, w: Tensor) -> Tensor:
    made = [z * 1, z * 2]
    torch._foreach_div_(made, [w, w])
    return made[0] + made[1]


def divided_rows(z: Tensor, w: Tensor) -> Tensor:
    made = z.reshape(1, -1) * 1
    made[0].div_(w)
    made[:, :2] /= w[:2]
    return made


@pytest.mark.parametrize("rule", [quotient_of_made, divided_in_place, divided_lists, divided_rows])
@pytest.mark.parametrize("size", [2, 5, 7, 15])
def test_complex_quotients_have_the_bits_of_their_form(rule: Callable[[Tensor, Tensor], Tensor], size: int) -> None:
    step = speculate(rule, executor="replay")
    for number in range(12):
        generator = torch.Generator().manual_seed(number)
        z, w = (torch.randn(size, dtype=torch.complex64, generator=generator) * 9 for _ in range(2))
        assert torch.equal(step(z, w), rule(z, w))
    assert step.statistics().speculated == 9
