"""Which executor runs: by name, after a trial, by measure; a candidate that disagrees is reported and never used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.execute import trust
from torchjanus.execute.replay import Replay
from torchjanus.execute.running.base import Violated
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.runtime import default_executor
from torchjanus.runtime.entries import engine, middles, race, trial_calls
from torchjanus.runtime.entries.engine import EXECUTORS, Engine
from torchjanus.runtime.learning import entry_maker


class Noted:
    """In place of store.Verdict."""

    def __init__(self, word: str = "") -> None:
        self.word = word

    def kept(self) -> str:
        return self.word

    def keep(self, word: str) -> None:
        self.word = word


class Fake:
    """Stands for Inductor: replay, late, or wrong by a factor, and it counts its runs."""

    name = "fake"
    error = 0.0
    delay = 0
    runs = 0
    kept = False
    keys = ()  # of its code in the store
    verdict: Noted | None = None

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self._replay = Replay(lowered)

    def fits(self, inputs: Sequence[torch.Tensor]) -> bool:
        return True

    def run(self, inputs: Sequence[torch.Tensor], slots: Sequence[Any]) -> list[torch.Tensor] | Violated:
        type(self).runs += 1
        if self.delay:
            sum(range(self.delay))
        old = [t.detach().clone() for t in inputs]
        values = self._replay.run(inputs, slots)
        with torch.no_grad():
            for index in self.lowered.mutated:
                # Only the state update is wrong: the loss says nothing of it.
                inputs[index].copy_(old[index] + (inputs[index] - old[index]) * (1 - self.error))
        return values

    @classmethod
    def order(cls, lowered: Lowered) -> Order:
        return Order(cls(lowered))


@dataclass
class Order:
    """A compilation that is over when it begins."""

    candidate: Fake
    child: None = None
    is_stored: bool = True
    needs_inductor: bool = False

    def start(self) -> Order:
        return self

    def result(self, timeout: float | None = None) -> Fake:
        return self.candidate

    def kill(self) -> None: ...

    def cancel(self) -> None: ...


class Step:
    def __init__(self, executor: str) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.step = torchjanus.speculate(self.body, executor=executor)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def calls(self, count: int, step: Any = None, first: int = 0) -> list[float]:
        return [(step or self.step)(torch.full((4, 3), 1.0 + at / 7)).item() for at in range(first, first + count)]

    @property
    def engine(self) -> Engine:
        (entry,) = self.step.entries
        return entry.engine  # type: ignore[no-any-return]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    cls = type("Fake", (Fake,), {})
    monkeypatch.setattr(middles, "Inductor", cls)
    monkeypatch.setattr(engine, "order_of", cls.order)
    monkeypatch.setattr(trial_calls, "_LONG", 1e9)  # no call is so long, however busy the machine
    return cls


def eager(count: int) -> tuple[list[float], list[list[float]]]:
    made = Step("replay")
    losses = made.calls(count, made.body)
    return losses, made.net.weight.tolist()


def test_replay_compiles_nothing(fake: type[Fake]) -> None:
    made = Step("replay")
    made.calls(8)
    assert made.engine.current == "replay"
    assert made.engine.notes == []
    assert fake.runs == 0


def test_a_candidate_that_agrees_twice_is_used(fake: type[Fake]) -> None:
    made = Step("inductor")
    losses = made.calls(4)
    assert made.engine.current == "replay, inductor on trial"
    losses = [*losses, *(made.step(torch.full((4, 3), 1.0 + at / 7)).item() for at in range(4, 9))]
    assert made.engine.current == "fake"
    assert (losses, made.net.weight.tolist()) == eager(9)
    assert fake.runs == 6
    assert any("agreed with replay on 3 calls" in note for note in made.engine.notes)


def test_memory_is_given_back_when_a_graph_is_made_and_when_its_executor_is_chosen(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[str] = []
    monkeypatch.setattr(entry_maker, "give_back", lambda: given.append("made"))
    monkeypatch.setattr(engine, "give_back", lambda: given.append("chosen"))
    made = Step("inductor")
    made.calls(3)
    assert given == ["made"]
    made.calls(9)
    assert made.engine.current == "fake" and given == ["made", "chosen"]


def test_a_candidate_whose_updates_are_wrong_is_never_used(fake: type[Fake]) -> None:
    fake.error = 0.5
    made = Step("inductor")
    losses = made.calls(14)
    assert made.engine.current == "replay"
    assert (losses, made.net.weight.tolist()) == eager(14)  # the trial's effects are replay's
    assert fake.runs == 2  # the first proves nothing; after the second eight questions are asked, one in each call
    report = str(torchjanus.explain(made.step, detail=True))
    assert "not used: fake disagrees with replay: the update of input" in report
    assert made.step.statistics().speculated == 11


def test_what_has_agreed_in_an_earlier_run_is_tried_once(fake: type[Fake]) -> None:
    verdict = Noted()
    fake.kept, fake.verdict = True, verdict
    made = Step("inductor")
    made.calls(5)
    assert made.engine.current == "replay, inductor on trial" and not verdict.kept()
    made.calls(2)
    assert made.engine.current == "fake" and verdict.kept() == "passed"
    again = Step("inductor")
    losses = again.calls(4)
    assert again.engine.current == "fake"
    assert (losses, again.net.weight.tolist()) == eager(4)
    assert any("on a call, as it did in an earlier run" in note for note in again.engine.notes)


def test_what_has_agreed_in_an_earlier_run_and_does_not_any_more_is_never_used(fake: type[Fake]) -> None:
    fake.kept, fake.verdict, fake.error = True, Noted("passed"), 0.5
    made = Step("inductor")
    losses = made.calls(14)
    assert made.engine.current == "replay"
    assert (losses, made.net.weight.tolist()) == eager(14)


def test_auto_takes_the_faster_one_by_measure(fake: type[Fake]) -> None:
    fake.delay = 200_000
    made = Step("auto")
    losses = made.calls(3)
    made.step.wait()
    losses += made.calls(1 + 3 + 12 + 1, first=3)
    assert made.engine.current == "replay"
    assert (losses, made.net.weight.tolist()) == eager(20)
    assert fake.runs == 3 + 6
    assert made.engine.notes[-1].startswith("fastest by measure: replay (replay ")


def test_a_clear_lead_is_measured_once_and_a_near_one_in_each_run(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Replay.run
    steps: list[Step] = []

    def slow(self: Replay, *given: Any) -> Any:
        if self is steps[-1].engine.replay:
            sum(range(200_000))
        return real(self, *given)

    monkeypatch.setattr(Replay, "run", slow)
    fake.kept, fake.verdict = True, (verdict := Noted())

    def train(count: int) -> Step:
        steps.append(made := Step("auto"))
        made.calls(3)
        made.step.wait()
        made.calls(count, first=3)
        return made

    with monkeypatch.context() as within:
        within.setattr(race, "LEAD", 1e6)
        train(1 + 3 + 12)
        assert verdict.kept() == "passed"
        assert any(note.startswith("fastest by measure") for note in train(1 + 1 + 12).engine.notes)
    train(1 + 1 + 12)
    assert verdict.kept() == "leads"
    once = train(1 + 1)
    assert once.engine.current == "fake"
    assert once.engine.notes[-1] == "faster than replay by what an earlier run has measured"


def test_auto_takes_the_candidate_where_it_is_faster(fake: type[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    real = Replay.run

    def slow(self: Replay, *given: Any) -> Any:
        if type(self) is Replay and self is made.engine.replay:
            sum(range(200_000))
        return real(self, *given)

    monkeypatch.setattr(Replay, "run", slow)
    made = Step("auto")
    losses = made.calls(3)
    made.step.wait()
    losses += made.calls(16, first=3)
    assert made.engine.current == "fake"
    assert (losses, made.net.weight.tolist()) == eager(19)


@dataclass
class Clock:
    """Stands for the module time: a run of replay takes a second, one of a candidate as long as ``fake`` says."""

    now: float = 1.0
    fake: float = 1.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(fake: type[Fake], monkeypatch: pytest.MonkeyPatch) -> Clock:
    made, run, replay = Clock(), fake.run, Replay.run

    def slow(self: Fake, *given: Any) -> Any:
        before = made.now
        values = run(self, *given)
        made.now = before + made.fake
        return values

    def slow_too(self: Replay, *given: Any) -> Any:
        made.now += 1
        return replay(self, *given)

    monkeypatch.setattr(fake, "run", slow)
    monkeypatch.setattr(Replay, "run", slow_too)
    for module in (engine, trial_calls):
        monkeypatch.setattr(module, "time", made)
    for module in (race, trial_calls, trust):
        monkeypatch.setattr(module, "undelayed", made.perf_counter)
    monkeypatch.setattr(trial_calls, "_trials", trial_calls._Trials())
    monkeypatch.setattr(trial_calls, "_LONG", 0.05)
    return made


def tried(count: int) -> Step:
    """After so many calls from the one that finds the artifact on."""
    made = Step("auto")
    losses = made.calls(3)
    made.step.wait()
    losses += made.calls(count, first=3)
    assert losses == eager(3 + count)[0]
    return made


def test_where_calls_are_long_a_trial_ends_when_the_candidate_is_seen_to_be_no_faster(
    fake: type[Fake], clock: Clock
) -> None:
    clock.fake, fake.verdict = 1.0, Noted()
    made = tried(1 + 2 * (1 + 6) + 1)
    assert (made.engine.current, fake.runs, fake.verdict.kept()) == ("replay", 3, "passed")
    assert made.engine.notes[-1] == "fastest on trial: replay (replay 1000000 us, fake 1000000 us)"
    clock.fake = 1.3
    assert tried(26).engine.current == "replay"
    assert fake.verdict.kept() == "trails"
    fake.kept, fake.runs = True, 0
    again = tried(4)
    assert (again.engine.current, fake.runs) == ("replay", 0)
    assert again.engine.notes[-1] == "slower than replay by what an earlier run has measured"


def test_where_calls_are_long_a_clear_lead_on_trial_needs_no_race(fake: type[Fake], clock: Clock) -> None:
    clock.fake, fake.verdict = 0.5, Noted()
    made = tried(20)
    assert made.engine.current == "fake" and fake.verdict.kept() == "leads"
    assert made.engine.notes[-1] == "fastest on trial: fake (replay 1000000 us, fake 500000 us)"


def test_where_calls_are_long_a_near_race_is_shorter_by_what_the_trial_has_timed(
    fake: type[Fake], clock: Clock
) -> None:
    clock.fake, fake.verdict = 0.95, Noted()
    made = tried(20)
    assert made.engine.trying
    runs = fake.runs
    made.calls(8, first=23)
    assert (made.engine.current, fake.verdict.kept()) == ("fake", "passed")
    assert made.engine.notes[-1].startswith("fastest by measure: fake (")
    assert runs < 3 + 4


def test_what_trials_and_races_take_beyond_eagers_time_is_charged(fake: type[Fake], clock: Clock) -> None:
    clock.fake = 1.5
    made = Step("auto")
    made.calls(3)
    made.step.wait()
    account = made.step._learning.budget
    account.record_python_call(1.0)
    before = account.overhead.seconds
    totals = [account.overhead.seconds - before]
    for first in range(3, 20):
        made.calls(1, first=first)
        clock.now += 10.0
        totals.append(account.overhead.seconds - before)
    spent = [round(two - one, 3) for one, two in pairwise(totals)]
    assert set(spent) <= {0.0, 0.5, 1.5} and spent.count(1.5) >= 2  # neither; a race; on trial


def test_long_calls_are_seldom_on_trial(fake: type[Fake], clock: Clock) -> None:
    made = Step("auto")
    losses = made.calls(3)
    made.step.wait()
    runs = []
    for first in range(3, 17):
        losses += made.calls(1, first=first)
        clock.now += 0.5
        runs.append(fake.runs)
    # The call that finds the artifact, one of two seconds on trial, six seconds in which none is, ...
    assert runs == [0, *[1] * 5, *[2] * 5, 3, 3, 3]
    assert losses == eager(17)[0]


def test_graphs_take_turns_on_trial_where_calls_are_long(fake: type[Fake], clock: Clock) -> None:
    often, rare = Step("auto"), Step("auto")
    for step in (often, rare):
        step.calls(3)
        step.step.wait()
        step.calls(1, first=3)  # finds the artifact
    often.calls(1, first=4)
    assert fake.runs == 1
    rare.calls(1, first=4)
    assert fake.runs == 1  # it is too soon after the other's
    clock.now += 6
    rare.calls(1, first=5)
    assert fake.runs == 2  # and here it need not wait for calls of its own


def test_long_calls_are_tried_at_once_where_that_is_known_to_be_over_soon(
    fake: type[Fake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_calls, "_LONG", 0.0)
    monkeypatch.setattr(trial_calls, "_trials", trial_calls._Trials())
    fake.kept, fake.verdict = True, Noted("leads")
    made = Step("auto")
    made.calls(3)
    made.step.wait()
    made.calls(2, first=3)
    assert made.engine.current == "fake"


def test_what_cannot_be_compiled_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(lowered: Lowered) -> Any:
        raise RuntimeError("no compiler\nand much more")

    monkeypatch.setattr(middles, "Inductor", cannot)
    made = Step("inductor")
    losses = made.calls(6)
    assert (losses, made.net.weight.tolist()) == eager(6)
    assert made.engine.current == "replay"
    assert made.engine.notes == ["inductor could not compile the graph: RuntimeError: no compiler"]
    assert "inductor could not compile" in str(torchjanus.explain(made.step, detail=True))


def test_a_candidate_that_raises_on_trial_is_not_used(fake: type[Fake], monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(self: Any, *given: Any) -> Any:
        raise ValueError("broken artifact")

    monkeypatch.setattr(fake, "run", raising)
    made = Step("inductor")
    losses = made.calls(6)
    assert (losses, made.net.weight.tolist()) == eager(6)
    assert any("it raised ValueError: broken artifact" in note for note in made.engine.notes)


def test_the_default_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    before = default_executor()
    assert before in EXECUTORS
    with pytest.raises(torchjanus.Unsupported, match="'fastest'"):
        default_executor("fastest")
    try:
        assert default_executor("replay") == "replay" == default_executor()
        step = torchjanus.speculate(lambda x: x + 1)
        for _ in range(5):
            step(torch.ones(2))
        assert step.entries[0].engine.current == "replay"
    finally:
        default_executor(before)


@pytest.mark.slow
def test_inductor_for_real() -> None:
    made = Step("inductor")
    losses = made.calls(8)
    assert made.engine.current == "inductor", made.engine.notes
    expected, _ = eager(8)
    assert losses == pytest.approx(expected, rel=1e-5)


def test_nothing_is_compiled_where_other_ranks_choose_for_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "is_one_of_several", lambda: True)
    step = torchjanus.speculate(lambda x: (x * 2).sum(), executor="auto")
    for _ in range(5):
        step(torch.ones(2))
    step.wait()
    step(torch.ones(2))
    (entry,) = step.entries
    assert not entry.engine.asked
    assert any("not compiled: each rank" in note for note in entry.engine.notes)
