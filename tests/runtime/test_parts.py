"""Steps that no graph can be made of as a whole: their parts are speculated on, and the rest is Python's."""

from __future__ import annotations

import copy
import random
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torchjanus


class Forbidden:
    """Something that no graph reads: it tells when it is gone."""


def refused() -> int:
    """What makes each step that calls it Python's."""
    return 0 if weakref.ref(Forbidden())() is None else 1


def speculate(fn: Callable[..., Any], **options: Any) -> Any:
    return torchjanus.speculate(fn, **{"executor": "replay", **options})


def both(make: Callable[[], tuple[Callable[..., Any], Any]], calls: list[tuple[Any, ...]], **options: Any) -> Any:
    """Run a step eager and speculated. Results and state must be equal, bitwise. Returns the speculated step."""
    torch.manual_seed(0)
    eager, state = make()
    expected = [eager(*args) for args in copy.deepcopy(calls)]
    expected_state = torch.get_rng_state()
    torch.manual_seed(0)
    step, other = make()
    fast = speculate(step, **options)
    found = [fast(*args) for args in copy.deepcopy(calls)]
    assert same(found, expected)
    assert same(leaves(other), leaves(state))
    assert torch.equal(torch.get_rng_state(), expected_state)
    return fast


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal, tensors bit by bit."""
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def leaves(state: Any) -> Any:
    if isinstance(state, nn.Module):
        return [*state.state_dict().values(), *(p.grad for p in state.parameters() if p.grad is not None)]
    return [leaves(one) for one in state] if isinstance(state, list | tuple) else state


def batches(count: int) -> list[tuple[torch.Tensor]]:
    drawn = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 4, generator=drawn),) for _ in range(count)]


def served(fast: Any) -> dict[str, int]:
    return {part.label: part.served for part in torchjanus.explain(fast).parts if not part.why}


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_is_served_whatever_else_the_step_does(name: str) -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        opt = OPTIMIZERS[name](net.parameters())
        schedule = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)

        def step(x: torch.Tensor) -> float:
            opt.zero_grad()
            loss = net(x).pow(2).mean()
            refused()
            loss.backward()
            refused()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            refused()
            opt.step()
            refused()
            schedule.step()
            return loss.item()

        return step, net

    fast = both(make, batches(30))
    counts = fast.statistics()
    assert counts.speculated == 0 and counts.partly >= 17 and counts.calls == 30
    found = served(fast)
    for label in ("opt.zero_grad", "opt.step", "nn.utils.clip_grad_norm_", "schedule.step"):
        assert found[label] >= 12, found


def test_functions_that_contain_the_training_are_parts() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.net = nn.Linear(4, 2)
            self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
            self.seen = 0

        def update(self, x: torch.Tensor) -> torch.Tensor:
            loss = self.net(x).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.seen += 1
            return loss.detach()

        @torch.no_grad()
        def evaluate(self, x: torch.Tensor) -> float:
            return (self.net(x) > 0).float().mean().add(self.net(x).std()).mul(2).item()

        def epoch(self, x: torch.Tensor) -> tuple[float, int]:
            total = 0.0
            for _ in range(1 + self.seen % 3):
                total += self.update(x).item()
                refused()
            return total + self.evaluate(x), self.seen

        def step(self, x: torch.Tensor) -> tuple[float, int]:
            refused()
            return self.epoch(x)

    def make() -> tuple[Callable[..., Any], Any]:
        trainer = Trainer()
        return trainer.step, trainer.net

    fast = both(make, batches(30))
    assert fast.statistics().partly >= 17
    found = served(fast)
    assert sorted(count >= 15 for count in found.values()) == [True, True], found  # the loop's statement, self.evaluate


def test_runs_of_statements_in_a_loop_are_one_graph() -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Linear(4, 1)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor, count: int) -> tuple[list[float], float]:
            losses, last = [], 0.0
            for number in range(count):
                scale = 1.0 / (1 + number)
                loss = net(x).pow(2).mean() * scale
                opt.zero_grad()
                loss.backward()
                opt.step()
                last = loss.item()
                refused()
                losses.append(last)
            return losses, last

        return step, net

    rng = random.Random(4)
    fast = both(make, [(x, rng.randrange(1, 7)) for (x,) in batches(30)])
    [part] = [part for part in torchjanus.explain(fast).parts if part.label.startswith("lines")]
    assert part.graphs <= 2 and part.served >= 60 and not part.why
    text = str(torchjanus.explain(fast, detail=True))
    assert part.label in text and "weak-reference" in text and "calls by" in text


def test_variables_of_a_run_are_the_functions_own() -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Linear(4, 2)

        def step(x: torch.Tensor, flag: bool) -> Any:
            best = None
            kept = x.sum()
            if flag:
                best = (net.weight.detach() * 2).sum() + kept
            kept = kept + 1
            refused()
            mean = x.mean() * 2 + 1 - kept
            scaled = mean * kept / 3
            (low, high), rest = (x.min(), x.max()), [mean, scaled]
            refused()
            return best, kept, low, high, rest, sorted(name for name in locals() if name != "net")

        return step, net

    calls = [(x, number % 3 == 0) for number, (x,) in enumerate(batches(24))]
    fast = both(make, calls)
    assert fast.statistics().partly == 0  # locals() is called: there are no runs

    def make_without_locals() -> tuple[Callable[..., Any], Any]:
        def step(x: torch.Tensor, flag: bool) -> Any:
            best = None
            kept = x.sum()
            if flag:
                best = (x * 2).sum() + kept
            kept = kept.add(1).mul(2).sub(3)
            refused()
            mean = x.mean() * 2 + 1 - kept
            scaled = mean * kept / 3
            (low, high), rest = (x.min(), x.max()), [mean, scaled]
            refused()
            return best, kept, low, high, rest

        return step, []

    fast = both(make_without_locals, calls)
    assert fast.statistics().partly >= 15


def test_a_traceback_has_the_programs_lines_once() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        return x.view(3, 5)

    def step(x: torch.Tensor) -> torch.Tensor:
        refused()
        y = (x * 2).relu().add(1).sub(3)
        y = fails(y) if x.numel() > 15 else y
        refused()
        return y

    fast = speculate(step)
    for _ in range(12):
        fast(torch.ones(3))

    def frames(fn: Any) -> list[tuple[str, int | None]]:
        try:
            fn(torch.ones(4, 5))
        except RuntimeError as error:
            return [(frame.name, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)[1:]]
        raise AssertionError("it should raise")

    assert frames(fast) == frames(step)


def test_nobody_else_sees_the_variants() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.net = nn.Linear(4, 2)
            self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

        def inner(self, x: torch.Tensor) -> float:
            refused()
            loss = self.net(x).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            return loss.item()

        def step(self, x: torch.Tensor) -> float:
            return self.inner(x)

    trainer = Trainer()
    before = {name: vars(Trainer)[name] for name in ("inner", "step")}, dict(vars(trainer.opt)), dict(vars(trainer))
    codes = [function.__code__ for function in before[0].values()]
    optimizer_step = torch.optim.SGD.step
    fast = speculate(trainer.step)
    for (x,) in batches(30):
        fast(x)
    assert fast.statistics().partly >= 10
    assert {name: vars(Trainer)[name] for name in ("inner", "step")} == before[0]
    assert [function.__code__ for function in before[0].values()] == codes
    assert vars(trainer).keys() == before[2].keys() and vars(trainer.opt).keys() == before[1].keys()
    assert torch.optim.SGD.step is optimizer_step


def test_recursive_functions_and_closures_made_in_each_call() -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Linear(4, 4)
        opt = torch.optim.Adam(net.parameters())

        def step(x: torch.Tensor, depth: int) -> float:
            def descend(y: torch.Tensor, left: int) -> torch.Tensor:
                refused()
                return net(y) if left == 0 else descend(torch.tanh(net(y)), left - 1) + y

            opt.zero_grad()
            loss = descend(x, depth).pow(2).mean()
            loss.backward()
            opt.step()
            return loss.item()

        return step, net

    rng = random.Random(2)
    fast = both(make, [(x, rng.randrange(1, 5)) for (x,) in batches(30)])
    assert served(fast)["opt.step"] >= 15


def test_several_optimizers_at_one_site_and_a_new_one() -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        nets = [nn.Linear(4, 2), nn.Linear(4, 3)]
        opts = [torch.optim.SGD(nets[0].parameters(), lr=0.1), torch.optim.Adam(nets[1].parameters())]

        def step(x: torch.Tensor, number: int) -> list[float]:
            if number == 25:
                opts[0] = torch.optim.SGD(nets[0].parameters(), lr=0.05, momentum=0.5)
            losses = []
            for net, opt in zip(nets, opts, strict=True):
                refused()
                loss = net(x).pow(2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                losses.append(loss.item())
            return losses

        return step, nets

    fast = both(make, [(x, number) for number, (x,) in enumerate(batches(40))])
    assert fast.statistics().partly >= 25


def test_the_whole_step_is_served_again_once_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchjanus.runtime.learning import policy

    monkeypatch.setattr(policy, "AGAIN", 20)

    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Linear(4, 2)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor, number: int) -> float:
            if number < 15:
                refused()
            loss = net(x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss.item()

        return step, net

    fast = both(make, [(x, number) for number, (x,) in enumerate(batches(45))])
    counts = fast.statistics()
    assert counts.partly >= 5 and counts.speculated >= 15


def test_a_step_within_a_watched_run_is_whole() -> None:
    net = nn.Linear(4, 2)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> float:
        refused()
        loss = net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    inner = speculate(step)
    for (x,) in batches(12):
        inner(x)
    assert inner.statistics().partly
    outer = speculate(lambda x: inner(x) + 1)
    for (x,) in batches(6):
        outer(x)
    assert outer.refusals and outer.statistics().watched == 3


def test_with_the_clock_small_parts_are_left_to_python() -> None:
    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))
        opt = torch.optim.Adam(net.parameters())

        def tiny(value: int) -> int:
            return value + 1

        def step(x: torch.Tensor) -> float:
            refused()
            loss = net(x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            refused()
            opt.step()
            return loss.item() + tiny(1)

        return step, net

    drawn = torch.Generator().manual_seed(1)
    fast = both(make, [(torch.randn(256, 64, generator=drawn),) for _ in range(30)], executor="auto")
    whys = {part.label: part.why for part in torchjanus.explain(fast).parts}
    assert "too little time" in whys["tiny"]
    overhead = fast.overhead
    assert all(region.part.learning.budget.overhead.seconds <= overhead.seconds + 1e-6 for region in fast.regions
               if region.part is not None)  # fmt: skip


def test_copies_begin_anew() -> None:
    net = nn.Linear(4, 2)

    def step(x: torch.Tensor) -> torch.Tensor:
        refused()
        total = (net.weight.detach() @ x.t()).relu().sum().add(1)
        return total

    fast = speculate(step)
    for (x,) in batches(12):
        fast(x)
    assert fast.regions
    assert not copy.deepcopy(fast).regions


def test_results_of_selections_are_known_to_have_had_their_backward_pass() -> None:
    rows = torch.tensor([0, 2])

    def make() -> tuple[Callable[..., Any], Any]:
        net = nn.Linear(4, 3)
        opt = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> tuple[float, float]:
            refused()
            opt.zero_grad()
            chosen = net(x)[rows].exp()  # what it saves is a list of indices
            loss = chosen.sum()
            loss.backward()
            opt.step()
            refused()
            return loss.item(), chosen.sum().item()

        return step, net

    assert both(make, batches(20)).statistics().partly >= 8


def test_results_with_their_backward_pass_to_come_are_parts_if_they_hold_none() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.tanh(self.a(x)) * 2 + 1)

    def make() -> tuple[Callable[..., Any], Any]:
        net = Net()
        opt = torch.optim.SGD(net.parameters(), lr=0.1)

        def step(x: torch.Tensor) -> float:
            y = net(x)
            refused()
            loss = (y * y + y.sin()).mean() + y.abs().sum()
            refused()
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss.item()

        return step, net

    fast = both(make, batches(26))
    found = served(fast)
    assert {"opt.step", "opt.zero_grad"} < found.keys(), found  # they are not part of an open run of statements
    [label] = found.keys() - {"opt.step", "opt.zero_grad"}
    assert label.startswith("line ") and found[label] >= 10, found  # the model's call


def test_methods_of_the_steps_own_object_are_parts_where_the_program_sees_when_objects_are_gone() -> None:
    class Trainer:
        def __init__(self) -> None:
            self.net = nn.Linear(4, 2)
            self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)
            self.listener = weakref.ref(self.net)

        def step(self, x: torch.Tensor) -> float:
            loss = self.net(x).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            return loss.item() if self.listener() is not None else 0.0

    def make() -> tuple[Callable[..., Any], Any]:
        trainer = Trainer()
        return trainer.step, trainer.net

    fast = both(make, batches(20))
    [run] = [part for part in torchjanus.explain(fast).parts if part.label.startswith("lines")]
    assert not run.why and run.served >= 8, run


@pytest.mark.slow
def test_the_share_of_a_part_is_that_of_the_programs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchjanus.runtime.parts import skeleton

    looks_for = skeleton.call_sites

    def slowly(fn: Any) -> Any:
        end = time.thread_time() + 0.2
        while time.thread_time() < end:
            pass
        return looks_for(fn)

    monkeypatch.setattr(skeleton, "call_sites", slowly)
    net = nn.Linear(64, 64)

    def work(x: torch.Tensor) -> torch.Tensor:
        for _ in range(30):
            x = torch.tanh(x @ net.weight.detach())
        return x

    def step(x: torch.Tensor) -> torch.Tensor:
        refused()
        return work(x) if work(x).sum() < 1e9 else x

    fast = speculate(step)
    for _ in range(6):
        fast(torch.ones(256, 64))
    [part] = [part for part in torchjanus.explain(fast).parts if part.label == "work"]
    assert part.share > 0.2


def test_what_refused_runs_have_met_is_let_go() -> None:
    def make() -> tuple[Any, Any]:
        log: list[Any] = []

        class Loud:
            def __init__(self, name: Any) -> None:
                self.name = name

            def __del__(self) -> None:
                log.append(self.name)

        held = [Loud("first")]

        def step(x: torch.Tensor, number: int) -> Any:
            made = Loud(number)
            log.append(f"before {number}")
            y = x * made.name
            del made
            log.append(f"after {number}")
            if number % 5 == 1:
                held[0] = Loud(f"held {number}")
            return y

        return step, log

    both(make, [(torch.ones(3), number) for number in range(16)])


def test_the_record_of_a_run_is_not_taken_for_a_weak_reference_of_the_program() -> None:
    """A run whose lifetimes are refused goes on with weak references to what it has read."""

    class Ending:
        def __del__(self) -> None:
            pass

    class Trainer:
        def __init__(self) -> None:
            self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
            self.optimizer = torch.optim.Adam(self.net.parameters())

        def step(self, x: torch.Tensor) -> tuple[float, int]:
            loss = self.net(x).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            Ending()
            return loss.item(), len(self.net)

    def make() -> tuple[Callable[..., Any], Any]:
        trainer = Trainer()
        return trainer.step, trainer.net

    fast = both(make, batches(20))
    line = Trainer.step.__code__.co_firstlineno
    assert f"lines {line + 1} to {line + 4}" in served(fast) or f"lines {line + 1} to {line + 3}" in served(fast)
