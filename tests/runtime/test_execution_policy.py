"""Whoever is faster makes the calls: Python or the graphs. Results and state are eager's either way."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.runtime.parts import execution_policy
from torchjanus.runtime.parts.execution_policy import ExecutionPolicy
from torchjanus.runtime.parts.part import Part

MEASURE = "".join("PG" if python else "GP" for python in execution_policy.ORDER)  # who makes its calls


class Engine:
    """An engine as far as Pace looks at it."""

    def __init__(self) -> None:
        self.current = "replay"
        self.trying = False


class Program:
    """Calls whose times are given, made as Pace wants them."""

    def __init__(self, by_python: float, by_graphs: float) -> None:
        self.said: list[str] = []
        self.busy = False
        self.execution_policy = ExecutionPolicy(
            lambda kind, text: self.said.append(text), measures=True, busy=lambda: self.busy
        )
        self.times = {True: by_python, False: by_graphs}
        self.kinds: list[tuple[object, float]] = [(0, 1.0)]  # by turns; how much longer calls of each take
        self.made = 0
        self.engines: Any = [Engine()]
        self.speculated = 0

    def calls(self, count: int) -> str:
        """Who made them: p for Python, g for a graph; capital letters where a call was timed."""
        made = ""
        for _ in range(count):
            python = None
            kind, longer = self.kinds[self.made % len(self.kinds)]
            self.made += 1
            if self.execution_policy.rest:
                self.execution_policy.rest -= 1
                python = True
            elif self.speculated >= self.execution_policy.due:
                python = self.execution_policy.trial(self.speculated, self.engines, lambda kind=kind: kind)  # type: ignore[misc]
            timed = self.execution_policy.measuring
            self.speculated += not python
            if timed:
                self.execution_policy.record_timed_call(
                    bool(python), longer * self.times[bool(python)], self.speculated
                )
            who = "p" if python else "g"
            made += who.upper() if timed else who
        return made


def test_graphs_that_are_clearly_faster_are_asked_once() -> None:
    program = Program(by_python=2.0, by_graphs=1.0)
    assert program.calls(execution_policy.FIRST + 6) == "g" * execution_policy.FIRST + "GPGPPG"
    assert program.calls(5000) == "g" * 5000
    assert program.said == []


def test_python_takes_over_where_it_is_faster_and_is_asked_ever_more_rarely() -> None:
    program = Program(by_python=1.0, by_graphs=2.0)
    assert program.calls(execution_policy.FIRST + 20) == "g" * execution_policy.FIRST + MEASURE
    rests = program.calls(8 * execution_policy.AGAIN).split(
        MEASURE[: 2 * execution_policy.FEW]
    )  # which tells that nothing has changed
    assert all(set(rest) == {"p"} for rest in rests)
    assert (
        abs(len(rests[0]) - execution_policy.AGAIN) < 2 * execution_policy.LOOK
        and abs(len(rests[1]) - 2 * execution_policy.AGAIN) < 2 * execution_policy.LOOK
    )
    program.times = {True: 2.0, False: 1.0}
    made = program.calls(40 * execution_policy.AGAIN)
    assert made.endswith("g" * 5000) and made.count("G") == 3
    assert len(program.said) == 2 and "Python is faster" in program.said[0] and "graphs make" in program.said[1]


def test_a_few_calls_that_something_disturbed_do_not_give_the_calls_to_python() -> None:
    program = Program(by_python=1.2, by_graphs=1.0)
    program.calls(execution_policy.FIRST)
    for _ in range(2):  # a part is ordered from the compiler, and the machine is busy
        program.times[False] = 90.0
        program.calls(2)
        program.times[False] = 1.0
        program.calls(2)
    program.calls(2 * execution_policy.PAIRS)
    assert not program.execution_policy.eager and program.said == []


def test_a_close_race_takes_more_calls_and_ends_with_the_graphs() -> None:
    program = Program(by_python=0.99, by_graphs=1.0)
    assert program.calls(
        execution_policy.FIRST + 2 * execution_policy.MANY
    ) == "g" * execution_policy.FIRST + MEASURE * (execution_policy.MANY // execution_policy.PAIRS)
    assert program.calls(execution_policy.AGAIN) == "g" * execution_policy.AGAIN
    assert program.calls(2 * execution_policy.MANY) == MEASURE * (execution_policy.MANY // execution_policy.PAIRS)
    assert program.calls(2 * execution_policy.AGAIN) == "g" * 2 * execution_policy.AGAIN


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("every", range(2, 9))
@pytest.mark.parametrize("by_graphs", [0.5, 2.0])
def test_calls_that_take_longer_at_regular_distances_are_not_one_sides_only(
    reported: bool, every: int, by_graphs: float
) -> None:
    for first in range(every):
        program = Program(by_python=1.0, by_graphs=by_graphs)
        longer = [5.0 if number == first else 1.0 for number in range(every)]
        program.kinds = [(number if reported else 0, times) for number, times in enumerate(longer)]
        program.calls(execution_policy.FIRST + 4 * execution_policy.MANY)
        assert program.execution_policy.eager is (by_graphs > 1) and not program.execution_policy.measuring


def test_kinds_of_calls_count_by_how_long_they_take() -> None:
    program = Program(by_python=1.0, by_graphs=0.5)
    program.kinds = [("updates", 0.1), ("updates", 0.1), ("updates", 0.1), ("evaluates", 10.0)]
    took = program.execution_policy.record_timed_call

    def slow_at_evaluating(python: bool, seconds: float, speculated: int) -> None:
        took(python, 20.0 if seconds == 5.0 else seconds, speculated)

    program.execution_policy.record_timed_call = slow_at_evaluating  # type: ignore[method-assign]
    program.calls(execution_policy.FIRST + 8 * execution_policy.PAIRS)
    assert program.execution_policy.eager


def test_who_makes_the_calls_goes_on_where_the_other_is_as_fast() -> None:
    program = Program(by_python=1.0, by_graphs=2.0)
    program.calls(execution_policy.FIRST + 2 * execution_policy.PAIRS)
    assert program.execution_policy.eager
    program.times = {True: 1.0, False: 0.99}  # graphs of another path have come, and are no faster
    program.engines.append(Engine())
    program.calls(2 * execution_policy.AGAIN)
    assert program.execution_policy.eager and not program.execution_policy.measuring
    program.times = {True: 1.0, False: 0.9}
    program.calls(8 * execution_policy.AGAIN)
    assert not program.execution_policy.eager


def test_another_executor_is_another_race() -> None:
    program = Program(by_python=1.0, by_graphs=2.0)
    program.calls(execution_policy.FIRST + 20)
    assert program.execution_policy.eager
    program.engines[0].trying = True  # an artifact has come
    made = program.calls(execution_policy.LOOK + execution_policy.FIRST)
    assert made == "p" * execution_policy.LOOK + "g" * execution_policy.FIRST
    assert program.calls(execution_policy.FIRST) == "g" * execution_policy.FIRST  # its trial is not over yet
    program.engines[0].trying, program.engines[0].current = False, "inductor"
    program.times = {True: 2.0, False: 1.0}
    made = program.calls(execution_policy.FIRST + 6)
    assert made.count("G") == made.count("P") == 3 and not program.execution_policy.eager


def test_what_was_found_while_a_compilation_went_on_holds_until_it_is_over() -> None:
    program = Program(by_python=57.0, by_graphs=153.0)
    program.calls(execution_policy.FIRST)
    program.busy = True
    assert program.calls(2 * execution_policy.PAIRS) == MEASURE and program.execution_policy.eager
    assert program.calls(4 * execution_policy.LOOK) == "p" * 4 * execution_policy.LOOK
    program.busy, program.times = False, {True: 1.5, False: 1.0}
    made = program.calls(execution_policy.LOOK + 1 + 6)
    assert "pGPGPPGg" in made and not program.execution_policy.eager
    assert program.calls(2 * execution_policy.AGAIN) == "g" * 2 * execution_policy.AGAIN


def test_graphs_that_were_faster_during_a_compilation_are_measured_once_more_after_it() -> None:
    program = Program(by_python=2.0, by_graphs=1.0)
    program.busy = True
    assert program.calls(execution_policy.FIRST + 6) == "g" * execution_policy.FIRST + "GPGPPG"
    assert program.calls(10 * execution_policy.FIRST) == "g" * 10 * execution_policy.FIRST
    program.busy, program.times = False, {True: 1.0, False: 2.0}
    assert "P" in program.calls(execution_policy.FIRST + 2 * execution_policy.PAIRS) and program.execution_policy.eager


def test_nothing_is_measured_where_an_executor_was_asked_for() -> None:
    assert ExecutionPolicy(lambda kind, text: None, measures=False, busy=bool).due == math.inf


def test_calls_that_no_graph_makes_end_the_measure() -> None:
    measure = ExecutionPolicy(lambda kind, text: None, measures=True, busy=bool)
    engines: Any = [Engine()]
    assert measure.trial(execution_policy.FIRST, engines) is False
    for _ in range(execution_policy.UNTIMED):
        measure.record_untimed(execution_policy.FIRST)
    assert not measure.measuring and measure.due > execution_policy.FIRST


def test_a_measure_goes_on_as_long_as_graphs_make_more_calls_than_not() -> None:
    program = Program(by_python=1.0, by_graphs=1.1)
    for _ in range(2 * execution_policy.UNTIMED):
        program.calls(1)
        if program.execution_policy.measuring and program.speculated % 3 == 0:
            program.execution_policy.record_untimed(program.speculated)
    assert program.execution_policy.measuring
    program.calls(2 * execution_policy.MANY)
    assert program.execution_policy.eager


class Training:
    """A step with state and random numbers."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.steps = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.dropout(self.net(x), 0.5).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return loss.detach()


@pytest.mark.parametrize("python_is_slow", [False, True])
def test_state_random_numbers_and_results_are_eagers_whoever_makes_the_calls(
    monkeypatch: pytest.MonkeyPatch, python_is_slow: bool
) -> None:
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only
    monkeypatch.setattr(execution_policy, "AGAIN", 12)
    eager, made = Training(), Training()
    step = torchjanus.speculate(made.step, executor="auto")
    data = torch.Generator().manual_seed(0)
    batches = [torch.randn(4, 3, generator=data) for _ in range(120)]
    torch.manual_seed(1)
    expected = [eager.step(batch) for batch in batches]
    torch.manual_seed(1)
    found = []
    for number, batch in enumerate(batches):
        if number == 6:
            (entry,) = step.entries
            run = entry.engine.replay.run
            if python_is_slow:
                monkeypatch.setattr(step._part, "fn", _slowed(step._part.fn))
            else:
                entry.engine._exchange(_slowed(run))
        found.append(step(batch))
    assert all(map(torch.equal, found, expected))
    assert eager.steps == made.steps == 120
    assert all(map(torch.equal, eager.net.parameters(), made.net.parameters()))
    assert step._execution_policy.eager is not python_is_slow
    reported = [event.text for event in step.events if event.kind == "executor"]
    assert (reported == []) is python_is_slow
    if not python_is_slow:
        assert "Python is faster and makes the calls" in str(torchjanus.explain(step, detail=True))


def _slowed(call: Any) -> Any:
    def slowed(*args: Any) -> Any:
        time.sleep(0.005)
        return call(*args)

    return slowed


def test_errors_look_as_ever_while_calls_are_timed() -> None:
    def step(x: torch.Tensor, divisor: int) -> torch.Tensor:
        return x * (1 // divisor)

    fast = torchjanus.speculate(step, executor="auto")
    for _ in range(execution_policy.FIRST + 4):
        fast(torch.ones(2), 1)
    assert fast._execution_policy.measuring or fast._execution_policy.eager
    for _ in range(3):
        with pytest.raises(ZeroDivisionError) as raised:
            fast(torch.ones(2), 0)
        assert "torchjanus/runtime/parts/execution_policy" not in str(raised.traceback)
    for _ in range(10):
        assert torch.equal(fast(torch.ones(2), 1), torch.ones(2))


def test_graphs_are_looked_for_again_where_calls_by_python_have_become_much_longer() -> None:
    program = Program(by_python=1.0, by_graphs=3.0)
    assert "p" in program.calls(200)
    policy = program.execution_policy
    assert policy.eager
    for _ in range(execution_policy.CHANGED - 1):
        policy.record_python_call(100.0, program.speculated)
    policy.record_python_call(1.0, program.speculated)
    assert policy.eager, "they have to be consecutive"
    for _ in range(execution_policy.CHANGED):
        policy.record_python_call(100.0, program.speculated)
    assert not policy.eager
    assert set(program.calls(execution_policy.FIRST)) == {"g"}


def test_long_calls_are_compared_sooner() -> None:
    policy = ExecutionPolicy(lambda kind, text: None, measures=True, busy=lambda: False)
    policy.record_python_call(execution_policy.LONG / 2, 0)
    assert policy.due == execution_policy.FIRST
    policy.record_python_call(execution_policy.LONG * 2, 0)
    assert policy.due == execution_policy.SOON


def test_calls_that_are_pythons_are_looked_at_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    step = torchjanus.speculate(lambda x: x + 1, executor="auto")
    policy, looked = step._learning.policy, []
    monkeypatch.setattr(type(policy), "may_skip_graphs", True)
    monkeypatch.setattr(type(policy), "skips_graphs", lambda self, share: looked.append(share) or True)
    for number in range(100):
        assert step(torch.tensor(number)).item() == number + 1
    assert 25 < len(looked) < 60
    assert step.statistics().calls == step.statistics().imperative == 100
    assert 97 <= sum(count for count, _ in step.times.total.values()) <= 100
    step._part.wait()
    assert not step._part.skipped_calls


def test_calls_of_a_path_without_a_graph_are_not_compared_with_those_of_the_graph(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every second call is short, and there is a graph of the long ones only, which makes them in half the time. The
    median of all calls by Python is shorter than that, and says nothing."""
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only
    clock = [0.0]

    def step(x: torch.Tensor, number: int) -> torch.Tensor:
        return x * 2 + 1 if number % 2 == 0 else x - 1

    fast = torchjanus.speculate(step, executor="auto")

    def timed(make: Any, by_graph: bool) -> Any:
        def call(self: Any, args: Any, kwargs: Any) -> Any:
            before = fast.statistics().speculated
            result = make(self, args, kwargs)
            long = args[1] % 2 == 0
            clock[0] += (5.0 if by_graph and fast.statistics().speculated > before else 10.0) if long else 1.0
            return result

        return call

    monkeypatch.setattr("torchjanus.runtime.parts.part._now", lambda: clock[0])
    monkeypatch.setattr(Part, "_by_graph", timed(Part._by_graph, True))
    monkeypatch.setattr(Part, "_by_python", timed(Part._by_python, False))
    for number in range(0, 16, 2):
        fast(torch.ones(2), number)
    account: Any = fast._learning.budget
    account.allows = lambda kind, *, first=False, odds=1: False  # the other path is not learnt
    for number in range(16, 400):
        expected = step(torch.ones(2), number)
        assert torch.equal(fast(torch.ones(2), number), expected)
    assert fast.share == 0.5
    assert not fast.is_pythons
