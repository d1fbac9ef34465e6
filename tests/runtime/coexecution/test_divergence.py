"""A call that diverges, at whatever event, leaves what eager leaves: results, state, gradients, generators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch

import torchjanus
from tests.runtime.coexecution.programs import PROGRAMS, Made, Twins
from torchjanus.core.settings import COEXECUTION
from torchjanus.runtime.coexecution.graphs.matching import MISS


@pytest.fixture(autouse=True)
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COEXECUTION.name, "lazy")


def coexecuted(step: Any) -> Any:
    return torchjanus.speculate(step, executor="coexecute")


def learnt(twins: Twins) -> Any:
    """Make calls until one is served, and return the path that served it."""
    step = twins.steps[1]
    for number in range(len(twins.made[0].calls)):
        before = step.statistics().speculated
        twins.call(number)
        if step.statistics().speculated > before:
            return next(iter(step._coexecution._last.values()))
    raise AssertionError(torchjanus.explain(step))


@pytest.mark.parametrize(
    "name", ["numpy_in_the_middle", pytest.param("feedback", marks=pytest.mark.slow), "two_gradients"]
)
def test_divergence_at_every_event(name: str) -> None:
    twins = Twins(PROGRAMS[name], coexecuted)
    learnt(twins)
    paths = twins.steps[1]._coexecution._last
    last = len(twins.made[0].calls) - 1
    for _ in range(3):  # all numbers that vary have been seen
        twins.call(last)
    count = len(next(iter(paths.values())).matchers)
    before = twins.steps[1].coexecution
    for k in range(count):
        served = next(iter(twins.steps[1]._coexecution._last.values()))
        matcher = served.matchers[k]
        composites, served.composites = served.composites, {}
        served.matchers[k] = lambda *_: MISS
        twins.call(last)
        served.matchers[k] = matcher
        served.composites = composites
        twins.call(last)
    report = twins.steps[1].coexecution
    assert report.transitions == before.transitions + count
    assert report.served == before.served + count
    assert [event.text for event in twins.steps[1].events if event.kind == "fault"] == []


def test_divergence_within_composite_events_and_after_them() -> None:
    twins = Twins(PROGRAMS["adam"], coexecuted)
    learnt(twins)
    last = len(twins.made[0].calls) - 1
    for _ in range(3):
        twins.call(last)
    served = next(iter(twins.steps[1]._coexecution._last.values()))
    walked = [k for one in served.composites.values() for k in one.following or (one.section.begin,)]
    ends = [one.section.end for one in served.composites.values()]
    assert len(walked) > 10
    before = twins.steps[1].coexecution.transitions
    for k in (*walked, *ends, len(served.matchers) - 1):
        served = next(iter(twins.steps[1]._coexecution._last.values()))
        matcher = served.matchers[k]
        served.matchers[k] = lambda *_: MISS
        twins.call(last)
        assert torch.is_grad_enabled()
        served.matchers[k] = matcher
        twins.call(last)
    assert twins.steps[1].coexecution.transitions > before + 10
    assert [event.text for event in twins.steps[1].events if event.kind == "fault"] == []


@pytest.mark.parametrize("name", ["adam", "feedback", "numpy_in_the_middle"])
def test_an_error_of_the_graph_is_eagers_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    twins = Twins(PROGRAMS[name], coexecuted)
    served = learnt(twins)
    begin = served.begin_graph

    class Failing:
        def advance(self, *_: Any) -> Any:
            raise RuntimeError("no memory")

        def abandon(self) -> None: ...

    monkeypatch.setattr(served, "begin_graph", Failing)
    last = len(twins.made[0].calls) - 1
    twins.call(last)
    monkeypatch.setattr(served, "begin_graph", begin)
    twins.call(last)
    assert any("no memory" in event.text for event in twins.steps[1].events if event.kind == "fault")


def raising() -> Made:
    """A step of which each operation may raise; its handler goes on."""
    w = torch.randn(4, requires_grad=True)
    failing = [-1]
    caught: list[int] = []

    def at(number: int, func: Any, *args: Any) -> Any:
        if failing[0] == number:
            return func(*args, torch.zeros(2, 3, 7), torch.zeros(1), torch.zeros(1))  # too many arguments
        return func(*args)

    def step(x: torch.Tensor) -> Any:
        w.grad = None
        total = torch.zeros(())
        for number, func in enumerate((torch.sin, torch.cos, torch.tanh)):
            try:
                h = at(2 * number, torch.mul, x, w)
                total = total + at(2 * number + 1, func, h).sum()
            except TypeError:
                caught.append(number)
        if total.requires_grad:
            total.backward()
            with torch.no_grad():
                w.add_(w.grad, alpha=-0.1)  # type: ignore[arg-type]
        return total.detach()

    made = Made(step, [(torch.randn(6, 4),) for _ in range(14)], [w, caught])
    made.failing = failing  # type: ignore[attr-defined]
    return made


def struck(twins: Twins, numbers: Iterable[int]) -> None:
    """Make a call that fails at each of the places, and one after it that does not."""
    for number in numbers:
        for call, failing in ((12, number), (13, -1)):
            for made in twins.made:
                made.failing[0] = failing  # type: ignore[attr-defined]
            twins.call(call)


def test_an_error_at_each_operation_is_handled_by_the_program() -> None:
    twins = Twins(raising, coexecuted)
    learnt(twins)
    struck(twins, range(6))
    assert twins.made[1].state[1] == [0, 0, 1, 1, 2, 2]
    assert twins.steps[1].coexecution.transitions >= 6


def ending() -> Made:
    """A step that raises after some of its work."""
    w = torch.randn(4, requires_grad=True)
    failing = [-1]

    def step(x: torch.Tensor) -> Any:
        w.grad = None
        (x * w).sin().sum().backward()
        if failing[0] == 0:
            raise ValueError("after backward")
        with torch.no_grad():
            w.add_(w.grad * torch.rand(4))  # type: ignore[operator]
        if failing[0] == 1:
            raise ValueError("after the update")
        return w.detach().sum().item()

    made = Made(step, [(torch.randn(6, 4),) for _ in range(14)], [w])
    made.failing = failing  # type: ignore[attr-defined]
    return made


def test_a_step_that_raises_has_done_its_work_so_far() -> None:
    twins = Twins(ending, coexecuted)
    learnt(twins)
    struck(twins, (0, 1, 0, 1))
    assert twins.steps[1].coexecution.served >= 4


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(
    ("work", "most"),
    [
        (lambda h, number: h.clamp(max=number), 1e300),
        (lambda h, number: h.half().masked_fill(h > 0, number), 1e6),
        (lambda h, number: torch.full((2,), number) + h.sum(), -1e300),
        (lambda h, number: h * int(number), 1e30),
        (lambda h, number: h.long().add_(int(number)), -1e30),
    ],
)
def test_a_number_that_an_operation_does_not_take(work: Any, most: float, varies: bool) -> None:
    def make() -> Made:
        calls, caught = [0], [""]

        def step(x: torch.Tensor) -> Any:
            calls[0] += 1
            h = x * 2
            try:
                return work(h, most if calls[0] in (8, 17, 24) else float(calls[0]))
            except (RuntimeError, OverflowError) as error:
                caught[0] = str(error)
                return h + 1

        given = [(torch.randn(2 + i * 7 % 11 if varies else 3, 4),) for i in range(28)]
        return Made(step, given, [calls, caught])

    twins = Twins(make, coexecuted)
    twins.run()
    assert twins.made[0].state[1] != [""]
    assert [event.text for event in twins.steps[1].events if event.kind == "fault"] == []
    assert twins.steps[1].coexecution.served > 0


def test_a_result_that_lives_on_for_the_first_time() -> None:
    def make() -> Made:
        kept: list[torch.Tensor] = []
        keep = [False]

        def step(x: torch.Tensor) -> torch.Tensor:
            h = x * 2
            if keep[0]:
                kept.append(h)
            return h.sum()

        made = Made(step, [(torch.randn(6, 4),) for _ in range(14)], [kept])
        made.keep = keep  # type: ignore[attr-defined]
        return made

    twins = Twins(make, coexecuted)
    learnt(twins)
    for made in twins.made:
        made.keep[0] = True  # type: ignore[attr-defined]
    for number in range(6, 12):
        twins.call(number)
    assert len(twins.made[1].state[0]) == 6
    assert twins.steps[1].coexecution.transitions == 1


def test_hooks_that_are_registered_after_a_path_was_learnt_run() -> None:
    for register in (
        lambda w, hook: w.register_hook(hook),
        lambda w, hook: w.register_post_accumulate_grad_hook(hook),
        lambda w, hook: w.expand_as(w).grad_fn.next_functions[0][0].register_hook(hook),
    ):
        w = torch.randn(4, requires_grad=True)
        node = w.expand_as(w).grad_fn
        seen: list[int] = []

        def step(x: torch.Tensor, w: torch.Tensor = w) -> float:
            w.grad = None
            loss = (x * w).sum()
            loss.backward()
            return loss.item()

        speculated = coexecuted(step)
        for _ in range(5):
            speculated(torch.randn(6, 4))
        before = speculated.coexecution.served
        assert before > 0
        register(w, lambda *_, seen=seen: seen.append(1))
        for _ in range(3):
            speculated(torch.randn(6, 4))
        assert seen == [1, 1, 1]
        assert speculated.coexecution.served == before
        assert node is not None
