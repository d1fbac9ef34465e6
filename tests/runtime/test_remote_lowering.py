"""Large programs are lowered in another process: no call waits for that, and results are eager's throughout."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import torchjanus
from tests.runtime.runs.test_lowering_cache import Choosing, Trees
from torchjanus.core.errors import Refusal, refused
from torchjanus.execute.processes.lowering import NotLowered, pack_made
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Program
from torchjanus.graph.lowering.lower import lower_rolled
from torchjanus.graph.operators.loop_op import own_keys
from torchjanus.graph.recursion.cells.invoke import NotBatched
from torchjanus.graph.regions.loop_bytes import has_loops
from torchjanus.runtime.learning.pending_graphs import PendingGraphs
from torchjanus.runtime.runs import lowering_cache
from torchjanus.runtime.runs.records import EventLog


class Training:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.Linear(5, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.scale = 1.0
        self.count = 0

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.net(x).pow(2).mean() * self.scale
        loss.backward()
        self.optimizer.step()
        self.count += 1
        return loss.detach()


class Both:
    """The same training, eager and speculated: each call is compared."""

    def __init__(self) -> None:
        self.eager, self.ours = Training(), Training()
        self.step = torchjanus.speculate(self.ours.step, executor="auto")
        self.random = torch.Generator().manual_seed(1)

    def call(self, rows: int = 3) -> None:
        x = torch.randn(rows, 4, generator=self.random)
        state = torch.get_rng_state()
        expected = self.eager.step(x)
        torch.set_rng_state(state)
        assert torch.equal(self.step(x), expected)
        assert self.ours.count == self.eager.count
        for one, other in zip(self.ours.net.parameters(), self.eager.net.parameters(), strict=True):
            assert torch.equal(one, other)

    def calls(self, count: int) -> None:
        for _ in range(count):
            self.call()


class Other:
    """In the place of the other process: makes the graphs on request."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.asked = 0
        self.failure: Exception | None = None
        self.cancelled = 0
        self.lowered: list[Lowered] = []

    def request(self, program: Program, text: str) -> Any:
        self.asked += 1
        with own_keys() as keys:
            self.lowered.append(lower_rolled(program))
        packed = pack_made(self.lowered[-1], program, keys)
        other = self

        class Made:
            child = None

            def result(self, timeout: float | None = None) -> bytes | None:
                assert other.go.wait(600)
                if other.failure is not None:
                    raise other.failure
                return packed

            def kill(self) -> None:
                other.go.set()

            def cancel(self) -> None:
                other.cancelled += 1

        return Made


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Iterator[Other]:
    made = Other()

    class Lowering:
        request = made.request

        def __new__(cls, request: Any) -> Any:
            return request()

    monkeypatch.setattr(lowering_cache, "Lowering", Lowering)
    monkeypatch.setattr(lowering_cache, "MANY", 0)
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only
    yield made
    made.go.set()


def test_calls_are_pythons_until_the_graph_is_there(other: Other) -> None:
    both = Both()
    both.calls(3 + 5)
    counts = both.step.statistics()
    assert (counts.watched, counts.imperative, counts.speculated, counts.compiles) == (3, 5, 0, 0)
    said = str(torchjanus.explain(both.step, detail=True))
    assert "a graph is being made" in said or "a graph waits for its turn" in said
    assert other.asked == 1
    other.go.set()
    both.step.wait()
    assert "being made (for" not in str(torchjanus.explain(both.step, detail=True))
    both.calls(4)
    counts = both.step.statistics()
    assert (counts.watched, counts.imperative, counts.speculated, counts.compiles) == (3, 5, 4, 1)
    assert other.asked == 1


@pytest.mark.parametrize(("at_first", "asked"), [(1, 1), (1000, 0)])
def test_while_learning_is_free_larger_programs_are_lowered_in_the_call(
    other: Other, monkeypatch: pytest.MonkeyPatch, at_first: int, asked: int
) -> None:
    monkeypatch.setattr(lowering_cache, "MANY", 1)
    monkeypatch.setattr(lowering_cache, "AT_FIRST", at_first)
    both = Both()
    both.calls(4)
    assert other.asked == asked
    assert both.step.statistics().speculated == 1 - asked


def test_a_call_takes_what_is_there(other: Other) -> None:
    both = Both()
    both.calls(3)
    other.go.set()
    both.step._learning.pending_graphs.remote.wait()
    assert "the next call takes it" in str(torchjanus.explain(both.step, detail=True))
    both.call()
    both.call()
    counts = both.step.statistics()
    assert (counts.imperative, counts.speculated) == (1, 1)


def test_where_the_other_process_fails_the_graph_is_made_here(other: Other) -> None:
    other.failure = NotLowered("its process was ended by SIGKILL")
    other.go.set()
    both = Both()
    both.calls(3)
    both.step.wait()
    both.calls(3)
    assert both.step.statistics().speculated == 3


def test_what_the_other_process_refuses_is_refused(other: Other) -> None:
    other.failure = refused("trace-differs", "a step that no graph can be", "It is made up.")
    other.go.set()
    both = Both()
    both.calls(3)
    both.step.wait()
    both.call()
    assert "a step that no graph can be" in both.step.given_up
    assert not both.step.being_made


def test_graphs_that_there_are_go_on_while_another_is_made(other: Other) -> None:
    other.go.set()
    both = Both()
    both.calls(3)
    both.step.wait()
    both.call()
    other.go.clear()
    both.eager.scale = both.ours.scale = 0.5  # relaxed: it is to be an input
    both.call()
    assert both.step.being_made
    both.call()
    both.eager.scale = both.ours.scale = 1.0
    both.call()  # by the graph that has it as a constant
    counts = both.step.statistics()
    assert (counts.watched, counts.speculated, counts.imperative) == (3, 2, 2)
    other.go.set()
    both.step.wait()
    for scale in (0.25, 0.75, 1.0):
        both.eager.scale = both.ours.scale = scale
        both.call()
    counts = both.step.statistics()
    assert (counts.watched, counts.speculated, counts.imperative) == (3, 5, 2)


def test_other_sizes_in_the_meantime_are_learnt_afterwards(other: Other) -> None:
    both = Both()
    both.calls(3)
    for rows in (5, 6, 7):
        both.call(rows)
    assert both.step.statistics().watched == 3
    other.go.set()
    both.step.wait()
    both.call()
    for rows in (5, 6, 7, 8, 9, 10, 11):
        both.call(rows)
        both.step.wait()
    assert both.step.statistics().speculated >= 5


def test_nobody_waits_for_what_nobody_wants(other: Other) -> None:
    both = Both()
    both.calls(3)
    tickets = [*both.step._learning.pending_graphs.remote._tickets.values()]
    both.step._learning.policy.give_up("enough of it")
    assert not both.step.being_made
    both.step.wait()
    both.call()
    assert [ticket.given_up for ticket in tickets] == [True]
    assert tickets[0].wait(600)
    other.go.clear()  # giving it up has set it
    forgotten = Both()
    forgotten.calls(3)
    (ticket,) = forgotten.step._learning.pending_graphs.remote._tickets.values()
    del forgotten
    gc.collect()
    assert ticket.given_up


def test_sizes_that_change_are_no_hindrance(other: Other) -> None:
    both = Both()
    other.go.set()
    for rows in (3, 5, 3, 7, 4):
        both.call(rows)
        both.step.wait()
    asked = other.asked
    for rows in (6, 8, 3, 12, 2):
        both.call(rows)
    assert both.step.statistics().speculated >= 5
    assert other.asked == asked
    (entry,) = [entry for entry in both.step.entries if entry.lowered.program.dimensions]
    assert entry.runs >= 5
    assert "shape[0]" in str(torchjanus.explain(both.step, detail=True))


def test_nothing_is_given_up_while_the_other_way_is_awaited(other: Other) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        h = torch.tanh(x * 2)
        return (h * 3).sum() if x.sum() > 0 else (h + 1).mean()

    ours = torchjanus.speculate(step, executor="auto")
    variants = [torch.full((2, 2), value) for value in (1.0, -1.0)]

    def calls(*picks: int) -> None:
        for pick in picks:
            assert torch.equal(ours(variants[pick]), step(variants[pick]))

    calls(0, 0, 0)
    other.go.set()
    ours.wait()
    calls(0, 1)
    ours.wait()  # for the graph in which the tensor may be another one
    other.go.clear()
    while not ours.being_made:  # the second way's graph
        calls(1)
        assert ours.statistics().calls < 12
    calls(*[1, 0] * 20)
    other.go.set()
    ours.wait()
    before = ours.statistics().speculated
    calls(*[1, 0] * 10)
    assert ours.statistics().speculated >= before + 10  # but for calls by Python that are timed
    assert "dropped" not in str(torchjanus.explain(ours, detail=True))


def test_small_programs_are_lowered_in_the_call() -> None:
    step = torchjanus.speculate(lambda x: (x * 2).sum(), executor="auto")
    for number in range(5):
        assert step(torch.full((3,), float(number))).item() == 6.0 * number
    assert step.statistics().speculated == 2


def test_another_process_in_earnest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering_cache, "MANY", 0)
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only
    monkeypatch.setattr(lowering_cache, "lower_whole", None)  # not here
    both = Both()
    both.calls(4)
    both.step.wait()
    both.calls(4)
    assert both.step.statistics().speculated == 4


def over_time(cell: nn.LSTMCell, x: torch.Tensor) -> torch.Tensor:
    h, c = torch.zeros(len(x), 5), torch.zeros(len(x), 5)
    loss = torch.zeros(())
    for t in range(x.shape[1]):
        h, c = cell(x[:, t], (h, c))
        loss = loss + h.pow(2).mean()
    loss.backward()
    return loss.detach()


def with_attention(cell: nn.LSTMCell, x: torch.Tensor) -> torch.Tensor:
    memory = x[0]  # of another length in each call
    h, c = torch.zeros(1, 5), torch.zeros(1, 5)
    for row in x.unbind(1):
        seen = torch.softmax(memory @ row.t(), 0).t() @ memory
        h, c = cell(seen.mean(0, keepdim=True), (h, c))
    h.sum().backward()
    return h.detach()


def until_small(cell: nn.LSTMCell, x: torch.Tensor) -> torch.Tensor:
    h, c = torch.zeros(len(x), 5), torch.zeros(len(x), 5)
    left = x.abs().sum()
    while left > 0.1:
        h, c = cell(x[:, 0], (h, c))
        left = left * 0.5
    h.sum().backward()
    return h.detach()


def always_twenty(cell: nn.LSTMCell, x: torch.Tensor) -> torch.Tensor:
    h, c = torch.zeros(len(x), 5), torch.zeros(len(x), 5)
    for _ in range(20):
        h, c = cell(x[:, 0], (h, c))
    h.sum().backward()
    return h.detach()


@pytest.mark.parametrize("program", [over_time, with_attention, until_small, always_twenty], ids=lambda p: p.__name__)
def test_loops_come_with_their_iterations(other: Other, program: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering_cache, "lower_whole", None)  # not here
    monkeypatch.setattr(lowering_cache, "MANY", 1000)  # loops go there whatever their size
    if program is always_twenty:
        monkeypatch.setattr(lowering_cache, "MANY", 0)
    torch.manual_seed(0)
    cells = [nn.LSTMCell(4, 5) for _ in range(2)]
    cells[1].load_state_dict(cells[0].state_dict())
    step = torchjanus.speculate(program, executor="auto")
    lengths = [7] * 12 if program is always_twenty else [5, 7, 6, 4, 8, 5, 9, 6, 3, 7, 10, 4]
    for length in lengths:
        x = torch.rand(3, length, 4) * length
        torch.testing.assert_close(step(cells[1], x), program(cells[0], x), rtol=0, atol=0)
        for one, two in zip(cells[0].parameters(), cells[1].parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-5, atol=1e-6)
        other.go.set()
        step.wait()
    assert step.statistics().speculated >= 5
    assert has_loops(other.lowered[-1].program)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_go_there_whatever_their_size(
    other: Other, kind: type[nn.RNNBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering_cache, "lower_whole", None)  # not here
    monkeypatch.setattr(lowering_cache, "MANY", 1000)
    torch.manual_seed(0)
    layers = [kind(4, 5) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())

    def program(layer: nn.RNNBase, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = layer(x)[0].square().mean()
        loss.backward()
        return loss.detach()

    step = torchjanus.speculate(program, executor="auto")
    for number in range(8):
        x = torch.rand(3, 2, 4) + number
        torch.testing.assert_close(step(layers[1], x), program(layers[0], x), rtol=1e-5, atol=1e-6)
        for one, two in zip(layers[0].parameters(), layers[1].parameters(), strict=True):
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-5, atol=1e-6)
        other.go.set()
        step.wait()
    assert other.asked and step.statistics().speculated >= 4


def test_operators_of_ours_without_keys_are_no_hindrance(other: Other) -> None:
    layer, last = nn.Linear(4, 4), nn.Linear(4, 1)

    def step(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = torch.tanh(layer(x))
        loss = nn.functional.binary_cross_entropy_with_logits(last(x), torch.ones(3, 1))
        loss.backward()
        return loss.detach()

    ours = torchjanus.speculate(step, executor="auto")
    other.go.set()
    for n in (5, 7, 6, 4, 8, 5, 9, 6):
        x = torch.randn(3, 4)
        assert torch.equal(ours(x, n), step(x, n))
        ours.wait()
    assert "binary_cross_entropy_with_logits" in str(other.lowered[-1].graph.graph)
    assert ours.statistics().speculated >= 4


@pytest.mark.parametrize("stacked", [True, False])
def test_the_plan_with_counts_as_sizes_is_what_comes_back(other: Other, stacked: bool) -> None:
    layer = nn.Linear(4, 4)

    def step(x: torch.Tensor, n: int) -> torch.Tensor:
        rows, t = [], 0.0
        for _ in range(n):
            x = torch.tanh(layer(x) + t)
            rows.append(x)
            t += 0.1
        loss = torch.stack(rows).pow(2).mean() if stacked else x.pow(2).mean()
        loss.backward()
        return loss.detach()

    ours = torchjanus.speculate(step, executor="auto")
    other.go.set()
    for n in (5, 7, 6, 4, 8, 5, 9, 6, 3, 7, 10, 4):
        x = torch.randn(3, 4)
        layer.zero_grad()
        expected, gradient = step(x, n), layer.weight.grad
        layer.zero_grad()
        assert torch.equal(ours(x, n), expected)
        torch.testing.assert_close(layer.weight.grad, gradient)
        ours.wait()
    assert ours.statistics().speculated >= 7
    assert ours.statistics().compiles == 1


def by_sign(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    loss = (x @ w).sum()
    if loss > 0:
        loss = loss * 2
    loss.backward()
    return loss.detach()


def test_the_graph_of_another_way_is_taken_when_calls_go_that_way(other: Other) -> None:
    eager, ours = torch.ones(4, 2, requires_grad=True), torch.ones(4, 2, requires_grad=True)
    step = torchjanus.speculate(by_sign, executor="auto")

    def calls(*signs: int) -> None:
        for sign in signs:
            x = sign * torch.rand(3, 4)
            assert torch.equal(step(ours, x), by_sign(eager, x))
            assert ours.grad is not None and eager.grad is not None
            assert torch.equal(ours.grad, eager.grad)

    calls(1, 1, 1)
    other.go.set()
    step.wait()
    calls(1, 1)
    assert step.statistics().speculated == 2
    other.go.clear()
    calls(-1, -1, -1)  # watched, and the graph of this variant is asked for
    asked = other.asked
    assert asked >= 2
    tried = step.statistics().violated
    calls(*[-1] * 10)
    counts = step.statistics()
    assert counts.violated - tried <= 4  # then the first graph is not tried any more
    assert counts.speculated == 2
    other.go.set()
    step.wait()
    calls(-1, 1, -1, 1, 1)
    assert step.statistics().speculated == 7


def test_a_graph_is_asked_now_and_then_while_that_of_the_other_way_is_made(other: Other) -> None:
    step = torchjanus.speculate(by_sign, executor="auto")
    w = torch.ones(4, 2, requires_grad=True)

    def calls(sign: int, count: int) -> int:
        before = step.statistics().speculated
        for _ in range(count):
            step(w, sign * torch.rand(3, 4))
        return step.statistics().speculated - before

    calls(1, 3)
    other.go.set()
    step.wait()
    assert calls(1, 2) == 2
    other.go.clear()
    calls(-1, 13)
    assert step.being_made
    # Calls go the known way again: first every eighth is tried, then all, unless Python is faster by measure.
    assert calls(1, 60) >= 5
    assert step.being_made


@pytest.mark.parametrize(("share", "prevails"), [(0.1, False), (0.5, True), (0.9, True)])
def test_how_many_calls_may_be_made_twice_goes_by_what_graphs_save(share: float, prevails: bool) -> None:
    event_log = EventLog("step")
    pending_graphs = PendingGraphs(event_log)

    def making() -> None:
        raise lowering_cache.Pending(100)

    assert pending_graphs.begin(making) is None
    pending_graphs.remote = SimpleNamespace(over=False)  # type: ignore[assignment]
    for _ in range(6):
        pending_graphs.record_wasted_run()
    event_log.counts.speculated += 4
    assert pending_graphs.wastes_runs
    assert pending_graphs.wastes_more_than_it_saves(share) is prevails


def test_a_graph_that_is_there_is_taken_by_a_call_that_another_one_could_not_make(other: Other) -> None:
    step = torchjanus.speculate(by_sign, executor="auto")
    w = torch.ones(4, 2, requires_grad=True)
    other.go.set()
    for sign in [1] * 6 + [-1] * 6:
        step(w, sign * torch.rand(3, 4))
        step._learning.pending_graphs.remote.wait()  # made, but nobody has taken it
    assert step.statistics().entries == 2
    assert step.statistics().speculated >= 5


def test_graphs_whose_calls_have_to_be_repeated_rest_while_another_is_made(other: Other) -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sum() if random.random() < 0.5 else (x + 1).mean()

    seeds = [next(n for n in range(100) if (random.Random(n).random() < 0.5) is low) for low in (True, False)]
    ours = torchjanus.speculate(step, executor="auto")

    def calls(*variants: int) -> None:
        for variant in variants:
            x = torch.rand(3, 4)
            random.seed(seeds[variant])
            expected, after = step(x), random.random()
            random.seed(seeds[variant])
            assert torch.equal(ours(x), expected)
            assert random.random() == after

    calls(0, 0, 0)
    other.go.set()
    ours.wait()
    calls(0, 0)
    assert ours.statistics().speculated == 2
    other.go.clear()
    calls(1, 1, 1)
    assert ours.being_made
    tried = ours.statistics().missed
    calls(*[1] * 10)
    assert ours.statistics().missed - tried <= 4  # each was made twice: the graph had drawn already
    other.go.set()
    ours.wait()
    calls(1, 0, 1, 0, 0)
    assert ours.statistics().speculated == 7


def in_step(made: Any, calls: int, settle: Callable[[], None] = lambda: None) -> Any:
    """The program, speculated: each call does what eager does."""
    eager, ours = made(), made()
    step = torchjanus.speculate(ours.step, executor="auto")
    for number in range(calls):
        given = ours.given(number)
        torch.testing.assert_close(step(given), eager.step(given), rtol=1e-5, atol=1e-6)
        for one, other in zip(ours.parameters, eager.parameters, strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-5, atol=1e-6)
        settle()
        step.wait()
    assert "fault" not in [event.kind for event in step.events]
    return step


@pytest.mark.parametrize("made", [Trees, Choosing])
def test_recursion_and_iterations_in_which_tensors_decide_are_lowered_elsewhere(
    made: Any, other: Other, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering_cache, "lower_whole", None)  # not here
    monkeypatch.setattr(lowering_cache, "MANY", 1000)  # they go there whatever their size
    step = in_step(made, 14, other.go.set)
    assert other.asked and step.statistics().speculated >= 5


@pytest.mark.slow
@pytest.mark.parametrize("made", [Trees, Choosing])
def test_another_process_lowers_recursion_and_iterations_in_which_tensors_decide(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lowering_cache, "lower_whole", None)
    assert in_step(made, 12).statistics().speculated >= 5


def test_calls_that_cannot_be_run_many_at_a_time_are_unrolled_when_that_is_known(other: Other) -> None:
    other.failure = NotBatched(Refusal("recursion-body", "a cell is odd"))
    step = in_step(Trees, 8, other.go.set)
    assert any(event.kind == "unrolled" and "a cell is odd" in event.text for event in step.events)
