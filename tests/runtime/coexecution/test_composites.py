"""Composite events: one call of an optimizer is one event of a skeleton, and everything is as in eager, whatever the
program does with gradients, groups, settings and state."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import torchjanus
from torchjanus.runtime.coexecution.recording.placeholders import Placeholder
from torchjanus.runtime.coexecution.skeleton import Run

CALLS = 14
Step = Callable[[int, Tensor], Any]


class Made:
    """A model with an optimizer, and what the program does with them (``step``)."""

    def __init__(self, kind: Callable[[Any], torch.optim.Optimizer], body: Callable[[Made, int, Tensor], Any]) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 3))
        self.extra = nn.Linear(4, 3)
        self.optimizer = kind([*self.model.parameters(), *self.extra.parameters()])
        self.seen: list[Any] = []
        self.more: Any = None
        self._body = body

    def step(self, number: int, x: Tensor) -> Any:
        return self._body(self, number, x)

    def loss(self, x: Tensor) -> Tensor:
        scores: Tensor = self.model(x)
        return scores.square().mean()

    def everything(self) -> list[Any]:
        parameters = [*self.model.parameters(), *self.extra.parameters()]
        gradients = [None if p.grad is None else p.grad.tolist() for p in parameters]
        state = self.optimizer.state_dict()
        values = {
            key: {name: part.tolist() if isinstance(part, Tensor) else part for name, part in record.items()}
            for key, record in state["state"].items()
        }
        return [[p.tolist() for p in parameters], gradients, values, str(state["param_groups"]), list(self.seen)]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the calls that were one event."""
    found: list[str] = []
    composite = Run.composite

    def counted(self: Run, func: Any, first: Any, args: Any, kwargs: Any) -> Any:
        before = self.position
        result = composite(self, func, first, args, kwargs)
        if self.recorder is None and before in self.served.composites:
            section = self.served.composites[before].section
            if self.position == section.end and all(
                self.values[n] is None for n in section_made(self, before) if n not in wanted(self, before)
            ):
                found.append(func.__name__)
        return result

    monkeypatch.setattr(Run, "composite", counted)
    return found


def section_made(run: Run, at: int) -> list[int]:
    one = run.served.composites[at]
    walked = one.following or ()
    return [n for k in range(at, one.section.end) if k not in walked for n in run.served.events[k].made]


def wanted(run: Run, at: int) -> set[int]:
    return {n for n, _ in run.served.composites[at].wanted}


def alike(
    kind: Callable[[Any], torch.optim.Optimizer], body: Callable[[Made, int, Tensor], Any], calls: int = CALLS
) -> Any:
    """Make the calls in eager and co-executed, and compare all after each."""
    eager, other = Made(kind, body), Made(kind, body)
    step = torchjanus.speculate(other.step, executor="coexecute")
    generator = torch.Generator().manual_seed(5)
    for number in range(calls):
        x = torch.randn(6, 4, generator=generator)
        assert str(step(number, x)) == str(eager.step(number, x))
        assert other.everything() == eager.everything()
        assert not any(type(p.grad) is Placeholder for p in other.model.parameters())
    return step


def adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain(made: Made, number: int, x: Tensor) -> Any:
    made.optimizer.zero_grad()
    loss = made.loss(x)
    loss.backward()
    nn.utils.clip_grad_norm_(made.model.parameters(), 0.5)
    made.optimizer.step()
    return loss.item()


KINDS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": sgd,
    "adam": adam,
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True, weight_decay=0.1),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "adamax": lambda parameters: torch.optim.Adamax(parameters),
    "nadam": lambda parameters: torch.optim.NAdam(parameters),
    "radam": lambda parameters: torch.optim.RAdam(parameters),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, momentum=0.5),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters),
    "asgd": lambda parameters: torch.optim.ASGD(parameters),
    "rprop": lambda parameters: torch.optim.Rprop(parameters),
    "foreach": lambda parameters: torch.optim.Adam(parameters, lr=0.01, foreach=True),
    "tensor": lambda parameters: torch.optim.Adam(parameters, lr=torch.tensor(0.01)),
}


# Each becomes events in the same way: the others differ in their arithmetic only.
QUICK = ("sgd", "momentum", "adam", "nadam", "rprop", "tensor")


@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=pytest.mark.slow if one not in QUICK else ()) for one in KINDS]
)
def test_every_optimizer_is_equal_to_eager(kind: str) -> None:
    alike(KINDS[kind], plain)


@pytest.mark.parametrize("kind", [sgd, adam])
def test_the_three_calls_are_one_event_each(kind: Any, taken: list[str]) -> None:
    step = alike(kind, plain)
    served = step.coexecution.served
    assert served > 5
    for name in ("zero_grad", "clip_grad_norm_", "step"):
        assert taken.count(name) >= served - 2


class Finalized:
    """An object of a cycle, which the collector finalizes."""

    def __init__(self, seen: list[str]) -> None:
        self.seen, self.itself = seen, self

    def __del__(self) -> None:
        self.seen.append("finalized")


def test_what_the_collector_calls_is_not_the_program_s(taken: list[str]) -> None:
    seen: list[str] = []

    def body(made: Made, number: int, x: Tensor) -> Any:
        for _ in range(20):
            Finalized(seen)
        return plain(made, number, x)

    def callback(phase: str, info: Any) -> None:
        seen.append(phase)

    before, thresholds = [*gc.callbacks], gc.get_threshold()
    gc.callbacks.append(callback)
    gc.set_threshold(30, 1000, 1000)  # a collection wherever a few objects are made
    try:
        step = alike(adam, body)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(callback)
    assert gc.callbacks == before
    assert {"finalized", "start", "stop"} <= {*seen}
    assert step.coexecution.served > 5
    assert taken.count("step") >= step.coexecution.served - 2


def test_a_rate_that_changes(taken: list[str]) -> None:
    def kind(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=0.01)

    def body(made: Made, number: int, x: Tensor) -> Any:
        if made.more is None:
            made.more = torch.optim.lr_scheduler.ExponentialLR(made.optimizer, 0.9)
        loss = plain(made, number, x)
        made.more.step()
        return loss

    step = alike(kind, body, 24)
    assert step.coexecution.served > 8
    assert taken.count("step") > 6


def test_settings_that_change_by_hand() -> None:
    def body(made: Made, number: int, x: Tensor) -> Any:
        group = made.optimizer.param_groups[0]
        group["lr"] = 0.1 / (1 + number // 3)
        if number == 8:
            group["weight_decay"] = 0.1
        if number == 10:
            group["momentum"] = 0.5
        return plain(made, number, x)

    assert alike(sgd, body, 20).coexecution.served


def test_gradients_that_may_be_none() -> None:
    def body(made: Made, number: int, x: Tensor) -> Any:
        made.optimizer.zero_grad()
        loss = made.loss(x)
        if number % 3 == 2:
            loss = loss + made.extra(x).sum()
        loss.backward()
        made.optimizer.step()
        return loss.item()

    step = alike(adam, body, 24)  # the two layers' counters of steps come apart
    assert step.coexecution.served > 8


def test_counters_that_come_apart_are_seen(taken: list[str]) -> None:
    def body(made: Made, number: int, x: Tensor) -> Any:
        if number == 9:  # by native code: no call of torch tells of it
            weight = next(made.model.parameters())
            made.optimizer.state[weight]["step"].untyped_storage().copy_(torch.tensor(3.0).untyped_storage())
        return plain(made, number, x)

    alike(adam, body, 16)


def test_groups_that_change() -> None:
    def kind(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters[:6], lr=0.01)

    def body(made: Made, number: int, x: Tensor) -> Any:
        if number == 7:
            made.optimizer.add_param_group({"params": [*made.extra.parameters()], "lr": 0.5})
        made.optimizer.zero_grad()
        loss = made.loss(x) + made.extra(x).square().sum()
        loss.backward()
        made.optimizer.step()
        if number == 11:
            made.optimizer.param_groups[0]["params"].reverse()
        return loss.item()

    assert alike(kind, body, 20).coexecution.served > 4


def test_state_that_the_program_reads_and_replaces() -> None:
    def body(made: Made, number: int, x: Tensor) -> Any:
        loss = plain(made, number, x)
        weight = next(made.model.parameters())
        record = made.optimizer.state[weight]
        made.seen.append((record["exp_avg"].sum().item(), record["step"].item(), weight.grad.sum().item()))  # type: ignore[union-attr]
        if number == 6:
            made.more = made.optimizer.state_dict()
        if number == 9:
            made.optimizer.load_state_dict(made.more)
        if number == 11:
            record["exp_avg"] = torch.zeros_like(record["exp_avg"])
        return loss

    assert alike(adam, body, 18).coexecution.served > 4


def test_gradients_that_the_program_reads_and_changes_in_between() -> None:
    def body(made: Made, number: int, x: Tensor) -> Any:
        made.optimizer.zero_grad(set_to_none=number % 2 == 0)
        weights = [*made.model.parameters()]
        none = [p.grad is None for p in weights]
        loss = made.loss(x)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(weights, 0.1 if number < 9 else 0.2)
        weights[1].grad.mul_(0.5)  # type: ignore[union-attr]
        made.optimizer.step()
        return loss.item(), norm.item(), none, weights[0].grad.abs().max().item()  # type: ignore[union-attr]

    assert alike(adam, body, 22).coexecution.served > 6


def test_what_follows_may_diverge_or_raise() -> None:
    def body(made: Made, number: int, x: Tensor) -> Any:
        loss = plain(made, number, x)
        if number in (6, 7, 8, 12, 13):
            made.seen.append(next(made.model.parameters()).grad.clone().tolist())  # type: ignore[union-attr]
        if number in (9, 15):
            try:
                raise ValueError(number)
            except ValueError:
                made.seen.append([p.sum().item() for p in made.model.parameters()])
        return loss

    assert alike(adam, body, 18).coexecution.transitions


def test_an_error_after_the_optimizer_leaves_the_update_made() -> None:
    def body(made: Made, number: int, x: Tensor) -> Any:
        loss = plain(made, number, x)
        if number == 9:
            raise ValueError("late")
        return loss

    eager, other = Made(adam, body), Made(adam, body)
    step = torchjanus.speculate(other.step, executor="coexecute")
    for number in range(14):
        x = torch.randn(6, 4)
        for one in (eager.step, step):
            if number == 9:
                with pytest.raises(ValueError, match="late"):
                    one(number, x)
            else:
                one(number, x)
        assert other.everything() == eager.everything()
    assert step.coexecution is not None
    assert step.coexecution.served > 4


class Halved(torch.optim.SGD):
    """An optimizer of the program's own."""

    def _init_group(self, group: Any, *lists: Any) -> Any:
        made.append(len(group["params"]))
        return super()._init_group(group, *lists)  # type: ignore[no-untyped-call]


made: list[int] = []


class Own(torch.optim.Optimizer):
    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    made.append(p.numel())
                    p.add_(p.grad.sign(), alpha=-group["lr"])


def test_the_program_s_own_code_runs_for_each_parameter(taken: list[str]) -> None:
    del made[:]
    alike(lambda parameters: Halved(parameters, lr=0.1), plain)
    assert made == [8] * 2 * CALLS
    del made[:]
    alike(Own, plain)
    assert len(made) == 6 * 2 * CALLS
    assert "step" not in taken


def test_hooks_of_an_optimizer_are_the_program_s(taken: list[str]) -> None:
    def body(made: Made, number: int, x: Tensor) -> Any:
        if made.more is None:
            made.more = made.optimizer.register_step_pre_hook(lambda *_: made.seen.append("before"))
            made.optimizer.register_step_post_hook(
                lambda *_: made.seen.append(next(made.model.parameters()).sum().item())
            )
        return plain(made, number, x)

    step = alike(adam, body)
    assert step.coexecution.served > 4
    assert taken.count("step") > 3


def test_a_closure_is_the_program_s() -> None:
    def body(made: Made, number: int, x: Tensor) -> Any:
        def closure() -> Tensor:
            made.optimizer.zero_grad()
            loss = made.loss(x)
            loss.backward()
            made.seen.append(loss.item())
            return loss

        return made.optimizer.step(closure).item()  # type: ignore[arg-type,attr-defined]

    alike(sgd, body)


def test_torch_is_as_it_was_outside_of_calls() -> None:
    before = torch.optim.Optimizer.zero_grad, torch.optim.Adam(nn.Linear(1, 1).parameters()).step.__func__  # type: ignore[attr-defined]
    cell = before[1].__closure__[0].cell_contents
    alike(adam, plain)
    assert torch.optim.Optimizer.zero_grad is before[0]
    assert before[1].__closure__[0].cell_contents is cell
