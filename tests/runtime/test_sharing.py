"""One step and several callers: threads, re-entrant calls, steps in steps, copies, descriptors, coroutines."""

from __future__ import annotations

import asyncio
import copy
import gc
import operator
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torchjanus


def speculate(fn: Any = None, **options: Any) -> Any:
    return torchjanus.speculate(fn, **{"executor": "replay", **options})


def in_threads(*works: Callable[[], None]) -> None:
    """Run all of these at once; what any of them raises is raised here."""
    errors: list[BaseException] = []
    ready = threading.Barrier(len(works))

    def run(work: Callable[[], None]) -> None:
        ready.wait()
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# -- threads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calls", [6, 200])
def test_threads_call_one_pure_step(calls: int) -> None:
    """Each with arguments, shapes and branches of its own; guards miss and assertions fail while others call."""

    def step(x: torch.Tensor, k: float) -> torch.Tensor:
        y = x * k
        if y.sum() > 0:
            y = y + 1
        return y.cumsum(0)

    fast = speculate(step)

    def work(seed: int) -> Callable[[], None]:
        def calls_of_one() -> None:
            draw = torch.Generator().manual_seed(seed)
            for call in range(calls):
                x = torch.randn(2 + (seed + call // 50) % 3, generator=draw)
                k = float(seed if call % 10 else -seed)
                assert torch.equal(fast(x, k), step(x, k))

        return calls_of_one

    in_threads(*(work(seed) for seed in range(1, 6)))
    counts = fast.statistics()
    assert not [event for event in fast.events if event.kind == "fault"]
    if calls > 100:
        assert counts.speculated > 0


def test_threads_train_models_of_their_own_by_one_step() -> None:
    def step(model: Any, optimizer: Any, x: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    fast = speculate(step)

    def trained(run: Any, seed: int) -> tuple[list[float], list[torch.Tensor]]:
        model = torch.nn.Linear(3, 2)
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = [run(model, optimizer, torch.randn(4, 3, generator=draw)) for _ in range(20)]
        return losses, list(model.parameters())

    def work(seed: int) -> Callable[[], None]:
        def train() -> None:
            losses, parameters = trained(fast, seed)
            expected, others = trained(step, seed)
            assert losses == expected
            assert all(map(torch.equal, parameters, others))

        return train

    in_threads(*(work(seed) for seed in range(4)))
    assert not [event for event in fast.events if event.kind == "fault"]


def test_threads_call_several_steps_at_once() -> None:
    def made(k: int) -> tuple[Any, dict[str, Any]]:
        state: dict[str, Any] = {"n": 0, "total": torch.zeros(3)}

        def step(x: torch.Tensor) -> torch.Tensor:
            state["n"] += k
            state["total"] += x * k
            return state["total"] * state["n"]

        return speculate(step), state

    steps = [made(k) for k in range(1, 5)]

    def work(fast: Any) -> Callable[[], None]:
        return lambda: [fast(torch.ones(3)) for _ in range(60)] and None

    in_threads(*(work(fast) for fast, _ in steps))
    for k, (fast, state) in enumerate(steps, 1):
        for _ in range(5):  # only one thread watches at a time: by now this one's turn has come
            fast(torch.ones(3))
        assert state["n"] == 65 * k
        assert torch.equal(state["total"], torch.full((3,), 65.0 * k))
        assert fast.statistics().speculated >= 2
        assert not [event for event in fast.events if event.kind == "fault"]


def test_failures_of_one_thread_leave_the_others_calls_alone() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.cholesky(x).sum()

    fast = speculate(step)
    for _ in range(4):
        fast(torch.eye(2))

    def good() -> None:
        for k in range(1, 100):
            assert fast(torch.eye(2) * k * k).item() == 2 * k

    def bad() -> None:
        for _ in range(40):
            with pytest.raises(torch.linalg.LinAlgError):
                fast(-torch.eye(2))

    in_threads(good, bad, good)
    assert not [event for event in fast.events if event.kind == "fault"]


# -- calls within calls ---------------------------------------------------------------------------------------------


def test_a_step_that_calls_itself_through_native_code() -> None:
    seen: list[float] = []

    @speculate
    def step(x: torch.Tensor, depth: int) -> torch.Tensor:
        seen.append(depth)
        return x if depth == 0 else operator.call(step, x * 2, depth - 1) + depth

    for call in range(8):
        assert step(torch.ones(1), 3).item() == 14
        assert seen == [3, 2, 1, 0] * (call + 1)


def test_an_inner_step_whose_assumption_fails_inside_an_outer_one() -> None:
    state = {"scale": 2.0, "inner": 0, "outer": 0}

    @speculate
    def inner(x: torch.Tensor) -> torch.Tensor:
        state["inner"] += 1
        return x * state["scale"] if x.sum() > 0 else -x

    @speculate
    def outer(x: torch.Tensor) -> torch.Tensor:
        state["outer"] += 1
        return inner(x) + inner(x + 1)

    for call in range(20):
        x = torch.full((2,), -5.0 if call in (6, 11, 12) else 1.0)
        if call == 9:
            state["scale"] = 3.0
        scale = state["scale"]
        expected = torch.full((2,), 9.0) if x.sum() < 0 else x * scale + (x + 1) * scale
        assert torch.equal(outer(x), expected)
        if call % 2:
            inner(x)
    assert state["outer"] == 20
    assert state["inner"] == 50
    assert outer.statistics().speculated > 5


def test_several_assumptions_that_fail_in_one_call() -> None:
    state = {"a": 1.0, "b": 2.0, "mode": "x"}

    def step(x: torch.Tensor, n: int) -> torch.Tensor:
        if state["mode"] == "x" and x.min() > 0:
            return x * state["a"] * n
        return x + state["b"] * n

    fast = speculate(step)
    for call in range(30):
        if call % 7 == 6:
            state.update(a=call / 2, b=call / 3, mode="x" if call % 2 else "y")
        x = torch.full((2 + call // 15,), 1.0 if call % 5 else -1.0)
        assert torch.equal(fast(x, call % 3), step(x, call % 3)), call
    assert fast.statistics().missed > 0
    assert fast.statistics().violated > 0


# -- copies ---------------------------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.count = 0
        self.fast = speculate(self.work)

    def work(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return self.linear(x).detach()


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("calls", [0, 6])
def test_a_model_that_holds_its_own_step(name: str, calls: int) -> None:
    model = Model()
    for _ in range(calls):
        model.fast(torch.ones(1, 2))
    other = COPIES[name](model)
    assert other.fast.fn.__self__ is other
    assert other.fast.statistics().calls == 0
    with torch.no_grad():
        other.linear.weight.zero_()
        other.linear.bias.fill_(7.0)
    for _ in range(6):
        assert torch.equal(other.fast(torch.ones(1, 2)), torch.full((1, 2), 7.0))
    assert (model.count, other.count) == (calls, calls + 6)
    assert other.fast.statistics().speculated == 3
    before = model.linear(torch.ones(1, 2)).detach()
    assert torch.equal(model.fast(torch.ones(1, 2)), before)


def test_a_shallow_copy_of_an_object_with_a_decorated_method() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        @speculate
        def step(self, x: torch.Tensor) -> torch.Tensor:
            self.n += 1
            return x * self.n

    one = Counter()
    for _ in range(5):
        one.step(torch.ones(1))
    two = copy.copy(one)
    assert [two.step(torch.ones(1)).item() for _ in range(4)] == [6.0, 7.0, 8.0, 9.0]
    assert (one.n, two.n) == (5, 9)
    assert copy.copy(Counter.step) is not Counter.step


def test_options_survive_copies() -> None:
    step = torchjanus.speculate(double, watch=5, executor="replay", verify=3)
    for other in (copy.copy(step), copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        assert (other.watch, other.executor, other.verify, other.fn) == (5, "replay", 3, double)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_a_step_is_collected_with_its_entries() -> None:
    def made() -> tuple[Any, torch.nn.Module]:
        model = torch.nn.Linear(2, 2)

        def step(x: torch.Tensor) -> torch.Tensor:
            return model(x).detach()

        return speculate(step), model

    fast, model = made()
    for _ in range(5):
        fast(torch.ones(1, 2))
    gone = weakref.ref(fast), weakref.ref(fast.entries[0].lowered.graph), weakref.ref(model)
    del fast, model
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


def test_a_model_that_holds_its_own_step_is_collected() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
            self.fast = speculate(self.work)

        def work(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).detach()

    model = Model()
    for _ in range(5):
        model.fast(torch.ones(1, 2))
    assert model.fast.statistics().speculated == 2
    gone = weakref.ref(model), weakref.ref(model.layer)
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


# -- kinds of functions -----------------------------------------------------------------------------------------------


def test_descriptors() -> None:
    class Steps:
        scale = 3

        @classmethod
        @speculate
        def of_class(cls, x: torch.Tensor) -> torch.Tensor:
            return x * cls.scale

        @staticmethod
        @speculate
        def of_none(x: torch.Tensor) -> torch.Tensor:
            return x * 5

        @property
        @speculate
        def made(self) -> torch.Tensor:
            return torch.ones(1) * self.scale

    class More(Steps):
        scale = 4

    for call in range(8):
        x = torch.full((1,), float(call))
        assert Steps.of_class(x).item() == 3 * call
        assert More.of_class(x).item() == 4 * call
        assert (Steps.of_none(x).item(), More().of_none(x).item()) == (5 * call, 5 * call)
        assert (Steps().made.item(), More().made.item()) == (3, 4)
    assert vars(Steps)["of_none"].__func__.statistics().speculated == 13


def test_coroutines_and_generators_run_as_they_are() -> None:
    @speculate
    async def later(x: torch.Tensor) -> torch.Tensor:
        await asyncio.sleep(0)
        return x * 2

    @speculate
    def several(x: torch.Tensor) -> Any:
        yield x
        yield x * 2

    async def main() -> None:
        for call in range(6):
            assert (await later(torch.ones(1) * call)).item() == 2 * call
            assert [y.item() for y in several(torch.ones(1) * call)] == [call, 2 * call]

    asyncio.run(main())
    for step, word in ((later, "coroutine"), (several, "generator")):
        assert step.statistics().speculated == step.statistics().watched == 0
        assert word in step.given_up
        assert "instead:" in str(torchjanus.explain(step, detail=True))


def test_a_step_called_in_tasks_of_an_event_loop() -> None:
    state = {"n": 0}

    @speculate
    def step(x: torch.Tensor) -> torch.Tensor:
        state["n"] += 1
        return x * 2

    async def task(k: int) -> None:
        for _ in range(5):
            assert step(torch.full((1,), float(k))).item() == 2 * k
            await asyncio.sleep(0)

    async def main() -> None:
        await asyncio.gather(*(task(k) for k in range(4)))

    asyncio.run(main())
    assert state["n"] == 20
    assert step.statistics().speculated == 17
