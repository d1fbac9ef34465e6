"""First statements that differ in each call are left to Python, and those only."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from typing import Any

import pytest
import torch

import torchjanus


class Model:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 2)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def train(self, loss: torch.Tensor) -> float:
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    def step(self, x: torch.Tensor) -> float:
        kinds = [random.choice((None, "a", True)) for _ in range(8)]
        rows = x[[n for n, kind in enumerate(kinds) if kind is None] or [0]]
        return self.train(self.net(rows).pow(2).mean())


def batches(count: int) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return [torch.randn(8, 4, generator=drawn) for _ in range(count)]


def losses(fn: Any, count: int) -> list[float]:
    random.seed(0)
    return [fn(x) for x in batches(count)]


def test_the_rest_is_speculated_on_and_the_report_says_what_is_not() -> None:
    fast = torchjanus.speculate(Model().step, executor="replay")
    assert losses(fast, 30) == losses(Model().step, 30)
    counts = fast.statistics()
    assert counts.speculated >= 14 and counts.calls == 30
    assert counts.calls == counts.watched + counts.speculated + counts.imperative
    cuts = [event for event in fast.events if event.kind == "cut"]
    assert [event.call for event in cuts] == sorted(event.call for event in cuts)
    assert "runs part here" in cuts[0].text and "Python makes the statements" in cuts[0].text
    assert cuts[0].place.file == __file__ and cuts[0].place.function.endswith("step")
    assert "Python makes the statements" in str(torchjanus.explain(fast, detail=True))
    assert fast.entries and not fast.given_up


def test_a_copy_begins_anew() -> None:
    fast = torchjanus.speculate(Model().step, executor="replay")
    losses(fast, 20)
    assert fast.statistics().speculated
    other = copy.deepcopy(fast)
    assert other.statistics().calls == 0
    assert losses(other, 3)
    again = pickle.loads(pickle.dumps(torchjanus.speculate(torch.nn.Linear(1, 1))))
    assert again.statistics().calls == 0


def test_calls_within_a_watch_and_profiled_ones_are_whole() -> None:
    fast, eager = torchjanus.speculate(Model().step, executor="replay"), Model().step
    assert losses(fast, 20) == losses(eager, 20)
    outer = torchjanus.speculate(lambda x: (fast(x), [fast(x)]), executor="replay")
    random.seed(5)
    found = [outer(x) for x in batches(2)]
    random.seed(5)
    assert found == [(eager(x), [eager(x)]) for x in batches(2)]
    random.seed(5)
    profile = None
    for x in batches(6):
        profile = fast.profile(x) or profile
    assert profile is not None and profile.calls >= 3
    random.seed(5)
    for x in batches(6):
        eager(x)
    assert losses(fast, 2) == losses(eager, 2)


def test_python_makes_both_parts_where_it_makes_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = torchjanus.speculate(Model().step, executor="replay")
    losses(fast, 20)
    model = Model()
    fast._learning.policy.give_up("a test")
    losses(fast, 2)
    assert fast.given_up == "a test" and "a test" in str(torchjanus.explain(fast, detail=True))
    assert losses(model.step, 2)


def test_threads_call_it_while_it_is_cut() -> None:
    seen: list[tuple[float, float]] = []

    def step(x: torch.Tensor) -> tuple[torch.Tensor, float]:
        flags = [random.choice((None, "a", True)) for _ in range(9)]
        count = float(sum(flag is None for flag in flags))
        return x.sum() * 2, count

    fast = torchjanus.speculate(step, executor="replay")

    def work() -> None:
        for number in range(40):
            total, count = fast(torch.full((3,), float(number)))
            seen.append((total.item(), count))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(total for total, _ in seen) == sorted(6.0 * n for n in range(40) for _ in range(3))
    assert any(event.kind == "cut" for event in fast.events)


def test_what_a_backward_pass_is_to_come_of_is_not_left_to_python() -> None:
    def step(model: Model, x: torch.Tensor) -> float:
        outputs = [model.net(x[: 1 + n]) for n, kind in enumerate(random.choices((None, "a", True), k=8)) if kind]
        return model.train(sum((out.pow(2).mean() for out in outputs), model.net(x).sum() * 0))

    model, other = Model(), Model()
    fast = torchjanus.speculate(step, executor="replay")
    assert losses(lambda x: fast(model, x), 20) == losses(lambda x: step(other, x), 20)
    assert not [event for event in fast.events if event.kind == "cut"]


def test_what_differs_without_gradients_may_use_parameters() -> None:
    def step(model: Model, x: torch.Tensor) -> float:
        with torch.no_grad():
            scores = [model.net(x[:n]).sum() for n in random.sample(range(1, 8), 3) if random.random() < 0.7]
            best = min(1.0, max(map(float, scores), default=0.0))
        return model.train(model.net(x).pow(2).mean() * best)

    model, other = Model(), Model()
    fast = torchjanus.speculate(step, executor="replay")
    assert losses(lambda x: fast(model, x), 40) == losses(lambda x: step(other, x), 40)
    assert fast.statistics().speculated >= 20


def test_errors_of_both_parts_are_the_functions_own() -> None:
    def step(x: torch.Tensor, fails: int) -> float:
        kinds = [random.choice((None, "a", True)) for _ in range(8)]
        if fails == 1:
            raise ValueError(str(kinds))
        total = x.sum() * sum(kind is None for kind in kinds)
        if fails == 2:
            raise KeyError(str(kinds))
        return (total * 2).item()

    def outcome(fn: Any, x: torch.Tensor, fails: int) -> Any:
        try:
            return fn(x, fails)
        except Exception as error:
            where = error.__traceback__
            lines = []
            while where is not None:
                if where.tb_frame.f_code.co_name == "step":
                    lines.append(where.tb_lineno)
                where = where.tb_next
            return type(error), str(error), lines

    fast = torchjanus.speculate(step, executor="replay")
    met = []
    for fn in (step, fast):
        random.seed(0)
        met.append([outcome(fn, x, n % 13 - 10) for n, x in enumerate(batches(50))])
    assert met[0] == met[1]
    assert fast.statistics().speculated >= 15


def test_first_statements_for_which_graph_after_graph_is_made_are_left_to_python() -> None:
    def augmented(x: torch.Tensor) -> torch.Tensor:
        if random.random() < 0.5:
            x = x.flip(-1)
        return torch.roll(x, (random.randint(-1, 1), random.randint(-1, 1)), (0, 1))

    def step(model: Model, x: torch.Tensor) -> float:
        x = augmented(x)
        return model.train(model.net(x).pow(2).mean())

    model, other = Model(), Model()
    fast = torchjanus.speculate(step, executor="replay")
    assert losses(lambda x: fast(model, x), 60) == losses(lambda x: step(other, x), 60)
    assert any(event.kind == "cut" for event in fast.events)
    assert fast.statistics().speculated >= 25 and len(fast.entries) == 1


# -- the last statements -----------------------------------------------------------------------------------------------


class Searching(Model):
    """Trains, and then looks for something in a way that is another one each time."""

    def step(self, x: torch.Tensor) -> tuple[float, list[float]]:
        unused = x.sum()
        loss = self.net(x).pow(2).mean()
        trained = self.train(loss)
        found: list[float] = []
        for kind in random.choices((None, "a", True), k=8):
            found = sorted([*found, loss.item() if kind is None else float(len(found))])[:5]
        del unused
        return trained, found


def test_what_differs_after_the_training_is_left_to_python() -> None:
    fast = torchjanus.speculate(Searching().step, executor="replay")
    assert losses(fast, 20) == losses(Searching().step, 20)
    assert not fast.entries  # the rest forgets a variable, and would have to hold it

    def step(model: Model, x: torch.Tensor) -> tuple[float, list[float]]:
        loss = model.net(x).pow(2).mean()
        trained = model.train(loss)
        found: list[float] = []
        for kind in random.choices((None, "a", True), k=8):
            found = sorted([*found, loss.item() if kind is None else float(len(found))])[:5]
        return trained, found

    model, other = Model(), Model()
    fast = torchjanus.speculate(step, executor="replay")
    assert losses(lambda x: fast(model, x), 30) == losses(lambda x: step(other, x), 30)
    assert fast.statistics().speculated >= 14
    (event,) = [event for event in fast.events if event.kind == "cut"]
    line = step.__code__.co_firstlineno + 4
    assert event.text.startswith(f"Python makes the statements from line {line} on, graphs the rest")
    profile = [fast.profile(model, x) for x in batches(3)][-1]
    assert profile is not None
    assert losses(lambda x: step(other, x), 3) and torch.equal(model.net.weight, other.net.weight)


def test_first_and_last_statements_are_left_to_python() -> None:
    def step(model: Model, x: torch.Tensor) -> tuple[float, int]:
        kinds = [random.choice((None, "a", True)) for _ in range(8)]
        rows = x[[n for n, kind in enumerate(kinds) if kind is None] or [0]]
        trained = model.train(model.net(rows).pow(2).mean())
        count = 0
        for kind in random.choices((None, "a", True), k=8):
            count = count * 2 if kind is None else count + 1
        return trained, count

    model, other = Model(), Model()
    fast = torchjanus.speculate(step, executor="replay")
    assert losses(lambda x: fast(model, x), 50) == losses(lambda x: step(other, x), 50)
    assert fast.statistics().speculated >= 14
    cuts = [event.text for event in fast.events if event.kind == "cut"]
    up_to, last = "Python makes the statements up to line", "Python makes the statements from line"
    assert cuts[0].startswith(up_to) and cuts[-1].startswith(last)


def test_what_cannot_be_speculated_on_after_the_training_is_left_to_python() -> None:
    def step(model: Model, x: torch.Tensor) -> tuple[float, int]:
        trained = model.train(model.net(x).pow(2).mean())
        sparse = model.net.weight.detach().to_sparse()
        return trained, sparse._nnz()

    model, other = Model(), Model()
    fast = torchjanus.speculate(step, executor="replay")
    assert losses(lambda x: fast(model, x), 20) == losses(lambda x: step(other, x), 20)
    assert fast.statistics().speculated >= 10
    assert "to_sparse" in str(torchjanus.explain(fast, detail=True))


def test_a_call_after_the_training_is_left_to_python_if_what_it_calls_is_refused() -> None:
    class Meter:
        def __init__(self) -> None:
            self.rows: list[tuple[float, int]] = []

        def note(self, out: torch.Tensor) -> None:
            self.add(out.mean().item())

        def add(self, number: float) -> None:
            self.rows.append((number, eval("1 + 1")))

    def step(model: Model, meter: Meter, x: torch.Tensor) -> float:
        out = model.net(x)
        trained = model.train(out.pow(2).mean())
        meter.note(out.detach())
        return trained

    model, other, meter, expected = Model(), Model(), Meter(), Meter()
    fast = torchjanus.speculate(step, executor="replay")
    assert losses(lambda x: fast(model, meter, x), 20) == losses(lambda x: step(other, expected, x), 20)
    assert meter.rows == expected.rows
    assert fast.statistics().speculated >= 10
    line, shown = step.__code__.co_firstlineno + 3, " ".join(str(torchjanus.explain(fast)).split())
    assert f"from line {line} on, graphs the rest: calls eval()" in shown


@pytest.mark.parametrize("asks", ["backward", "grad", "more"])
def test_gradients_are_not_asked_for_across_a_cut(asks: str) -> None:
    def step(model: Model, x: torch.Tensor) -> float:
        out = model.net(x)
        model.train(out.pow(2).mean())
        again = model.net(x).pow(2).mean()
        for kind in random.choices((None, "a", True), k=8):
            if kind is None:
                x = x + 1
            elif kind == "a":
                x = x * 2
        if asks == "backward":
            again.backward()
        elif asks == "grad":
            model.net.weight.grad = torch.autograd.grad(again, model.net.weight)[0]
        else:
            (again * x.mean()).backward()
        model.opt.step()
        return again.item()

    model, other = Model(), Model()
    fast = torchjanus.speculate(step, executor="replay")
    assert losses(lambda x: fast(model, x), 20) == losses(lambda x: step(other, x), 20)
    assert not [event for event in fast.events if event.kind == "cut"]


def test_first_and_last_statements_may_return() -> None:
    class Agent(Model):
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[tuple[torch.Tensor, bool]] = []

        def step(self, x: torch.Tensor) -> Any:
            self.seen.append((x, random.random() < 0.3))
            if len(self.seen) < 6:
                return None
            drawn = random.sample(self.seen, 4)
            ended = torch.tensor([end for _, end in drawn], dtype=torch.float32)
            rows = torch.stack([row for row, _ in drawn])
            trained = self.train((self.net(rows).pow(2).mean((1, 2)) * (1 - ended)).sum())
            if len(self.seen) % 9 == 0:
                return "saved"
            for kind in random.choices((None, "a", True), k=5):
                if kind is None:
                    return trained, "none"
            return trained

    agent, other = Agent(), Agent()
    fast = torchjanus.speculate(agent.step, executor="replay")
    assert losses(fast, 120) == losses(other.step, 120)
    assert torch.equal(agent.net.weight, other.net.weight)
    counts = fast.statistics()
    assert counts.speculated >= 50
    assert counts.calls == 120 == counts.watched + counts.speculated + counts.imperative
    agent.seen.clear()
    assert fast.profile(batches(1)[0]) is None
    for x in batches(12):
        known = fast.profile(x)
    agent.seen.clear()
    assert known is not None and fast.profile(batches(1)[0]) == known  # of the calls before
    assert fast.statistics().calls == 134


def test_what_has_been_trained_may_be_looked_at_by_python() -> None:
    def step(model: Model, x: torch.Tensor) -> tuple[float, list[float]]:
        out = model.net(x)
        trained = model.train(out.pow(2).mean())
        found: list[float] = []
        for kind in random.choices((None, "a", True), k=8):
            if kind is None:
                found.append(out[: 1 + len(found)].argmax(1).float().mean().item())
            elif kind == "a":
                found.append((out * 2).sum().detach().item())
        return trained, found

    model, other = Model(), Model()
    fast = torchjanus.speculate(step, executor="replay")
    assert losses(lambda x: fast(model, x), 30) == losses(lambda x: step(other, x), 30)
    assert fast.statistics().speculated >= 14


def test_what_begins_to_differ_after_a_while_is_left_to_python() -> None:
    calls = [0]

    def step(model: Model, x: torch.Tensor) -> tuple[float, list[float]]:
        calls[0] += 1
        trained = model.train(model.net(x).pow(2).mean())
        found: list[float] = []
        for kind in random.choices((None, "a", True), k=8 * (calls[0] % 100 > 40)):
            found = sorted([*found, trained if kind is None else float(len(found))])[:5]
        return trained, found

    model, other = Model(), Model()
    fast = torchjanus.speculate(step, executor="replay")
    found = losses(lambda x: fast(model, x), 80)
    assert fast.statistics().speculated >= 55
    assert any(event.kind == "cut" and event.call > 40 for event in fast.events)
    calls[0] = 0
    assert found == losses(lambda x: step(other, x), 80)


def test_all_operations_are_not_left_to_python() -> None:
    def step(xs: torch.Tensor, length: int) -> torch.Tensor:
        h = torch.zeros(3)
        for t in range(length - 1, -1, -1):
            h = torch.tanh(h + xs[t])
        return h

    fast = torchjanus.speculate(step, executor="replay")
    for rows, length in ((11, 9), (10, 9), (9, 6), (3, 3), (5, 5), (10, 7), (8, 5), (7, 7), (9, 8)):
        xs = torch.randn(rows, 3)
        assert torch.equal(fast(xs, length), step(xs, length))
    assert not [event.text for event in fast.events if event.kind == "cut"]


class Scheduled:
    """A learning rate that is warmed up, falls, and stays; Python decides by the number of the step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(4, 2)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=0.1)
        self.seen: list[float] = []

    def rate(self, it: int) -> float:
        if it < 8:
            return 0.1 * (it + 1) / 8
        if it > 30:
            return 0.01
        return 0.1 - 0.09 * (it - 8) / 22

    def step(self, it: int, x: torch.Tensor) -> float:
        rate = self.rate(it)
        for group in self.opt.param_groups:
            group["lr"] = rate
        if it % 10 == 0:
            self.seen.append(rate)
        self.opt.zero_grad()
        loss = self.net(x).pow(2).mean()
        loss.backward()
        self.opt.step()
        return loss.item()


def test_a_schedule_in_the_first_statements_is_pythons_from_the_second_call_on() -> None:
    ours, eager = Scheduled(), Scheduled()
    fast = torchjanus.speculate(ours.step, executor="replay")
    for it, x in enumerate(batches(40)):
        assert fast(it, x) == eager.step(it, x)
    assert ours.seen == eager.seen
    for one, other in zip(ours.net.parameters(), eager.net.parameters(), strict=True):
        assert torch.equal(one, other)
    counts = fast.statistics()
    assert (counts.watched, counts.compiles) == (3, 1)
    assert counts.speculated == 40 - 3
    (cut,) = [event for event in fast.events if event.kind == "cut"]
    assert cut.call == 1 and "may be another in later calls" in cut.text
    assert cut.place.file == __file__


def test_first_statements_that_only_ask_what_is_configured_stay_in_the_graph() -> None:
    class Configured(Scheduled):
        clip = 0.5

        def step(self, it: int, x: torch.Tensor) -> float:
            norm = 2.0 if self.clip > 0.0 else 1.0
            loss = self.net(x).pow(2).mean() * norm
            if it % 10 == 0:
                self.seen.append(norm)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            return loss.item()

    ours, eager = Configured(), Configured()
    fast = torchjanus.speculate(ours.step, executor="replay")
    for it, x in enumerate(batches(40)):
        assert fast(it + 1, x) == eager.step(it + 1, x)
    assert ours.seen == eager.seen
    assert not [event for event in fast.events if event.kind == "cut"]


class Codes(torch.nn.Module):
    """Holds a moving average as a parameter that each call replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.ema = torch.nn.Parameter(torch.randn(5, 5)), torch.nn.Parameter(torch.randn(5, 5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.ema
        self.ema = torch.nn.Parameter(self.ema * 0.9 + 0.1 * y.detach().t() @ y.detach())
        self.ema.kept = True  # a graph makes no parameters with attributes of the program
        return (y * (x @ self.w)).mean()


def test_what_a_call_stores_early_is_not_cut_off_with_the_last_statements() -> None:
    def trained(speculated: bool) -> tuple[list[float], torch.Tensor, Any]:
        torch.manual_seed(0)
        model, seen = Codes(), []
        optimizer = torch.optim.SGD(model.parameters(), 0.1)

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            loss = model(x)
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
            if len(seen) > 100:
                print("many")

        made: Any = torchjanus.speculate(step, executor="replay") if speculated else step
        for _ in range(8):
            made(torch.randn(4, 5))
        return seen, model.ema, made

    losses, average, made = trained(True)
    expected = trained(False)
    assert losses == expected[0] and torch.equal(average, expected[1]) and type(average) is torch.nn.Parameter
    assert made.statistics().watched == 3  # no statement is cut off and the rest learnt anew
    assert any(one.reason == "new-object-leaves" and "kept as model.ema" in one.why for one in made.refusals)
