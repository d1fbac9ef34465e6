"""The public way in: what may be speculated on, what bad input is answered, and that a call is always completed
once."""

from __future__ import annotations

import copy
import gc
import importlib.util
import linecache
import logging
import pickle
import sys
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchjanus
from torchjanus import Unsupported
from torchjanus.execute.replay import Replay
from torchjanus.rewrite import source
from torchjanus.runtime import keep_speculated, speculated
from torchjanus.runtime.entries import entry as entry_module
from torchjanus.runtime.entries import entry_making
from torchjanus.runtime.learning import learning
from torchjanus.runtime.runs import lowering_cache, registry
from torchjanus.semantics.record.accumulators import Accumulators
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.watch.objects.finalization import Finalization


def speculate(fn: Any, **options: Any) -> Any:
    return torchjanus.speculate(fn, **{"executor": "replay", **options})


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled = torchjanus.speculate(double, executor="replay")


@torchjanus.speculate(executor="replay")
def shadowed(x: torch.Tensor) -> torch.Tensor:
    return x * 2


class Training:
    """A step with tensor state, a counter, a list and a random number, so that doing it twice or by half shows."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Linear(2, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)
        self.count = 0
        self.losses: list[float] = []
        self.limit = 1e9

    def step(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        self.optimizer.zero_grad()
        loss = (self.net(x) + torch.rand(1)).pow(2).mean()
        if loss > self.limit:
            loss = loss * 0.5
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        return loss.detach()

    def state(self) -> tuple[Any, ...]:
        momentum = [s["momentum_buffer"].tolist() for s in self.optimizer.state.values()]
        grads = [p.grad.tolist() for p in self.net.parameters() if p.grad is not None]
        random = torch.get_rng_state().tolist()
        return self.net.weight.tolist(), momentum, grads, self.count, list(self.losses), random


def inputs(at: int) -> torch.Tensor:
    return torch.full((3, 2), 1.0 + at / 10)


def eager_state(calls: int, before: dict[int, Callable[[Training], None]] | None = None) -> tuple[Any, ...]:
    training = Training()
    for at in range(calls):
        (before or {}).get(at, lambda _: None)(training)
        training.step(inputs(at))
    return training.state()


# -- bad input ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [3, "x", [double], object()])
def test_what_cannot_be_called_is_named(value: Any) -> None:
    with pytest.raises(Unsupported, match=rf"not {type(value).__name__}\. Put the work of one step into a function"):
        torchjanus.speculate(value)


@pytest.mark.parametrize("watch", [0, -1, True, 2.0, "3", None])
def test_watch_is_a_positive_integer(watch: Any) -> None:
    with pytest.raises(Unsupported, match="integer of at least 1"):
        torchjanus.speculate(double, watch=watch)
    with pytest.raises(Unsupported, match="integer of at least 1"):
        torchjanus.speculate(watch=watch)  # at once, and not when the decorator meets its function


def test_unknown_executors_are_refused_with_those_that_exist() -> None:
    with pytest.raises(Unsupported, match="executor='nope': torchjanus has 'auto', 'replay', 'inductor'"):
        torchjanus.speculate(double, executor="nope")
    with pytest.raises(Unsupported, match="'nope'"):
        torchjanus.speculate(executor="nope")


@pytest.mark.parametrize("thing", [double, 3, None])
def test_explaining_what_is_not_speculated(thing: Any) -> None:
    with pytest.raises(Unsupported, match=f"not {type(thing).__name__}: pass what torchjanus.speculate returned"):
        torchjanus.explain(thing)


# -- what may be speculated on ------------------------------------------------------------------------------------


class Callable_:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    @classmethod
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    @staticmethod
    def static(x: torch.Tensor) -> torch.Tensor:
        return x * 2.0


class Doubling(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def closure(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return inner


KINDS = {
    "function": double,
    "lambda": lambda x: x * 2,
    "closure": closure(2.0),
    "method": Callable_(2.0).method,
    "classmethod": Callable_.of_class,
    "staticmethod": Callable_.static,
    "callable object": Callable_(2.0),
    "module": Doubling(),
    "module's forward": Doubling().forward,
}


@pytest.mark.parametrize("fn", KINDS.values(), ids=KINDS)
def test_every_kind_of_callable(fn: Any) -> None:
    step = speculate(fn)
    for at in range(6):
        assert step(inputs(at)).equal(inputs(at) * 2)
    assert step.statistics().speculated == 3


def test_decorator_forms() -> None:
    @torchjanus.speculate
    def plain(x: torch.Tensor) -> torch.Tensor:
        """Its words."""
        return x

    @torchjanus.speculate(watch=2, executor="replay")
    def with_options(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert isinstance(plain, torchjanus.Speculated)
    assert (plain.__name__, plain.__doc__, plain.watch) == ("plain", "Its words.", 3)
    assert plain.__wrapped__ is plain.fn
    for at in range(4):
        assert with_options(inputs(at)).equal(inputs(at) + 1)
    assert (with_options.statistics().watched, with_options.statistics().speculated) == (2, 2)


def test_decorated_methods_bind() -> None:
    class Model:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @torchjanus.speculate(executor="replay")
        def step(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.factor

    one, two = Model(2.0), Model(3.0)
    for at in range(6):
        assert one.step(inputs(at)).equal(inputs(at) * 2)
    for at in range(6):
        assert two.step(inputs(at)).equal(inputs(at) * 3)
    assert one.step(inputs(0)).equal(inputs(0) * 2)
    assert isinstance(Model.step, torchjanus.Speculated)
    assert Model.step.statistics().speculated >= 4


def test_watch_once() -> None:
    step = speculate(double, watch=1)
    for at in range(3):
        assert step(inputs(at)).equal(inputs(at) * 2)
    assert (step.statistics().watched, step.statistics().speculated) == (1, 2)


def test_attributes_of_the_wrapped_object_show() -> None:
    step = speculate(Callable_(2.0))
    assert step.factor == 2.0
    with pytest.raises(AttributeError):
        step.nothing_of_this_name
    assert repr(step).startswith("<speculated <")


def test_a_native_callable_runs_as_it_is() -> None:
    step = speculate(torch.neg)
    assert step(torch.ones(2)).equal(-torch.ones(2))
    assert step(torch.ones(2)).equal(-torch.ones(2))
    counts = step.statistics()
    assert (counts.calls, counts.imperative, counts.watched) == (2, 2, 0)
    assert "is not written in Python" in str(torchjanus.explain(step, detail=True))


# -- source -------------------------------------------------------------------------------------------------------


def test_a_function_without_source_runs_as_it_is() -> None:
    scope: dict[str, Any] = {}
    exec("def step(x):\n    return x * 2\n", scope)
    step = speculate(scope["step"])
    for at in range(5):
        assert step(inputs(at)).equal(inputs(at) * 2)
    counts = step.statistics()
    assert (counts.imperative, counts.watched, counts.speculated) == (5, 0, 0)
    assert "source" in step.given_up
    assert "cannot be rewritten" in str(torchjanus.explain(step, detail=True))


SOURCE = "def step(x):\n    y = x * 2\n    return y\n"


@pytest.fixture
def imported(tmp_path: Path) -> Iterator[tuple[types.ModuleType, Path]]:
    path = tmp_path / "user_code_of_a_test.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    yield module, path
    del sys.modules[path.stem]
    linecache.clearcache()


def test_source_deleted_after_import(imported: tuple[types.ModuleType, Path]) -> None:
    module, path = imported
    path.unlink()
    linecache.clearcache()
    step = speculate(module.step)
    for at in range(5):
        assert step(inputs(at)).equal(inputs(at) * 2)
    assert step.statistics().imperative == 5
    assert str(path) in step.given_up


def test_source_edited_after_import(imported: tuple[types.ModuleType, Path]) -> None:
    """What runs is what was imported, whatever the file says now."""
    module, path = imported
    path.write_text(SOURCE.replace("* 2", "* 3"))
    linecache.clearcache()
    step = speculate(module.step)
    for at in range(5):
        assert step(inputs(at)).equal(inputs(at) * 2)
    assert step.statistics().imperative == 5
    assert str(path) in step.given_up


# -- the user's exceptions ----------------------------------------------------------------------------------------


class Mine(Exception):
    pass


def frames_of(error: BaseException) -> list[str]:
    return [frame.filename for frame in traceback.extract_tb(error.__traceback__)]


def test_a_step_that_raises_on_its_first_call() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        raise Mine("words")

    step = speculate(lambda x: inner(x))
    with pytest.raises(Mine, match=r"^words$") as raised:
        step(torch.ones(2))
    assert frames_of(raised.value) == [__file__, __file__, __file__]
    assert raised.value.__context__ is None
    counts = step.statistics()
    assert (counts.calls, counts.watched, counts.speculated, counts.entries) == (1, 1, 0, 0)


def test_an_exception_of_an_imperative_call_has_a_clean_traceback() -> None:
    scope: dict[str, Any] = {"Mine": Mine}
    exec("def step(x):\n    raise Mine('words')\n", scope)
    step = speculate(scope["step"])
    for _ in range(2):
        with pytest.raises(Mine) as raised:
            step(1)
        assert frames_of(raised.value) == [__file__, "<string>"]
        assert raised.value.__context__ is None


def test_an_exception_that_the_graph_would_raise_too() -> None:
    """Eager's own exception comes through, with nothing of the graph's in its context."""

    def step(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, at)

    fast = speculate(step)
    for _ in range(5):
        fast(torch.ones(3), torch.tensor([1]))
    assert fast.statistics().speculated == 2
    with pytest.raises(IndexError) as raised:
        fast(torch.ones(3), torch.tensor([7]))
    assert frames_of(raised.value) == [__file__, __file__]
    assert raised.value.__context__ is None
    assert fast(torch.ones(3), torch.tensor([1])).equal(torch.ones(1))
    assert fast.statistics().entries == 1


def test_base_exceptions_pass() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        speculate(step)(torch.ones(1))


def test_what_raises_at_commit_is_not_done_twice() -> None:
    """print() to a pipe that has gone, after the parameters were updated."""

    class Pipe:
        broken = False

        def __init__(self) -> None:
            self.texts: list[str] = []

        def write(self, text: str) -> None:
            if self.broken:
                raise BrokenPipeError("gone")
            self.texts.append(text)

    pipes = Pipe(), Pipe()
    trainings = Training(), Training()
    results = []
    for training, pipe, wrap in zip(trainings, pipes, (lambda f: f, speculate), strict=True):

        def printing(x: torch.Tensor, training: Training = training, pipe: Pipe = pipe) -> torch.Tensor:
            loss = training.step(x)
            print("loss", loss.item(), file=pipe)
            return loss

        step = wrap(printing)
        torch.manual_seed(3)
        for at in range(8):
            pipe.broken = at == 6
            if at == 6:
                with pytest.raises(BrokenPipeError, match="gone") as raised:
                    step(inputs(at))
                assert raised.value.__context__ is None
            else:
                step(inputs(at))
        results.append((training.state(), pipe.texts))
    assert step.statistics().speculated >= 3
    assert results[0] == results[1]


# -- statistics and words -----------------------------------------------------------------------------------------


def test_statistics_add_up() -> None:
    training = Training()
    step = speculate(training.step)
    for at in range(8):
        step(inputs(at))
    training.limit = 0.0  # the other branch: a violation, or a miss
    for at in range(3):
        step(inputs(at))
    step(torch.ones(5, 2))
    counts = step.statistics()
    assert counts.calls == 12 == counts.watched + counts.speculated + counts.imperative
    assert counts.entries == len(step.entries)
    assert counts.compiles >= max(1, counts.entries)
    assert counts.missed + counts.violated >= 2
    assert counts.missed + counts.violated <= counts.watched + counts.imperative + counts.compiles
    fields = "calls watched speculated missed violated refused imperative compiles entries".split()
    assert all(type(getattr(counts, name)) is int and getattr(counts, name) >= 0 for name in fields)
    with pytest.raises(AttributeError):
        counts.calls = 0
    assert step.wait() is None
    assert step.statistics() == counts


def test_profile_makes_calls_that_count() -> None:
    training = Training()
    step = speculate(training.step)
    torch.manual_seed(5)
    assert step.profile(inputs(0)) is None
    for at in range(1, 8):
        profile = step.profile(inputs(at))
    assert profile is not None
    assert profile.calls == 5
    assert profile.run > 0 and profile.guards > 0 and profile.commit > 0
    assert 0 < profile.share < 1
    assert (step.statistics().calls, step.statistics().speculated) == (8, 5)
    after = training.state()
    plain = Training()
    torch.manual_seed(5)
    for at in range(8):
        plain.step(inputs(at))
    assert after == plain.state()


def test_every_event_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def step(x: torch.Tensor) -> Any:
        return x.data_ptr()

    with caplog.at_level(logging.INFO, logger="torchjanus"):
        fast = speculate(step)
        for at in range(6):
            fast(inputs(at))
    words = [record.getMessage() for record in caplog.records]
    assert len(words) == len(set(words))
    assert any(f"{__file__}:" in text and "data_ptr" in text for text in words)


# -- calls within calls, and beside each other --------------------------------------------------------------------


def test_recursive_calls() -> None:
    @torchjanus.speculate(executor="replay")
    def power(x: torch.Tensor, n: int) -> torch.Tensor:
        return x if n == 0 else power(x, n - 1) * x

    for at in range(6):
        assert power(inputs(at), 3).equal(((inputs(at) * inputs(at)) * inputs(at)) * inputs(at))
    counts = power.statistics()
    assert counts.calls == counts.watched + counts.speculated + counts.imperative
    assert counts.speculated == 3


def test_reentrant_calls_from_code_that_is_not_watched() -> None:
    """sorted() calls the step while it is being watched."""
    seen = []

    @torchjanus.speculate(executor="replay")
    def step(x: torch.Tensor, deep: bool) -> torch.Tensor:
        if deep:
            sorted([2, 1], key=lambda _: seen.append(step(x, False).sum().item()) or 0)
        return x * 2

    for at in range(5):
        assert step(inputs(at), True).equal(inputs(at) * 2)
    assert seen == [s for at in range(5) for s in [(inputs(at) * 2).sum().item()] * 2]
    counts = step.statistics()
    assert counts.calls == counts.watched + counts.speculated + counts.imperative


def test_two_threads_call_one_step() -> None:
    step = speculate(lambda x: (x * 2).relu() + 1)
    barrier = threading.Barrier(2, timeout=600)
    wrong: list[Any] = []

    def work(number: int) -> None:
        barrier.wait()
        for at in range(40):
            x = inputs(at + 100 * number)
            try:
                if not step(x).equal((x * 2).relu() + 1):
                    wrong.append((number, at))
            except BaseException as error:
                wrong.append(error)
                raise

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert wrong == []
    counts = step.statistics()
    assert counts.calls == 80 == counts.watched + counts.speculated + counts.imperative
    assert counts.speculated > 0


def test_grad_mode_of_another_thread_is_its_own() -> None:
    step = speculate(double)
    for at in range(5):
        step(inputs(at))
    modes: list[bool] = []

    def work() -> None:
        with torch.no_grad():
            step(inputs(0))
        modes.append(torch.is_grad_enabled())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(600)
    assert modes == [True]


# -- pickle, copy, registry ---------------------------------------------------------------------------------------


def test_pickling_begins_anew() -> None:
    for at in range(5):
        doubled(inputs(at))
    again = pickle.loads(pickle.dumps(doubled))
    assert isinstance(again, torchjanus.Speculated)
    assert again.fn is double
    assert (again.watch, again.executor) == (doubled.watch, doubled.executor)
    assert again.statistics().calls == 0
    for at in range(5):
        assert again(inputs(at)).equal(inputs(at) * 2)
    assert again.statistics().speculated == 2


def test_deepcopy_begins_anew_and_leaves_the_original_alone() -> None:
    module = Doubling()
    step = speculate(module)
    for at in range(5):
        step(inputs(at))
    other = copy.deepcopy(step)
    assert other.fn is not module
    other.fn.factor.fill_(5.0)
    for at in range(5):
        assert other(inputs(at)).equal(inputs(at) * 5)
    assert step(inputs(0)).equal(inputs(0) * 2)
    assert (other.statistics().calls, step.statistics().calls) == (5, 6)


def test_the_registry_is_weak() -> None:
    step = speculate(lambda x: x)
    assert step in speculated()
    numbers = [s.number for s in speculated()]
    assert numbers == sorted(numbers)
    gone = weakref.ref(step)
    del step
    gc.collect()
    assert gone() is None


def test_keep_speculated_holds_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_kept", None)
    keep_speculated()
    step = speculate(lambda x: x)
    kept = weakref.ref(step)
    del step
    gc.collect()
    assert kept() is not None
    assert kept() in speculated()


# -- faults of our own --------------------------------------------------------------------------------------------


def broken(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("a fault of our own")


FAULTS: dict[str, tuple[Any, str]] = {
    "generalise": (entry_making, "generalise"),
    "lower": (lowering_cache, "lower_whole"),
    "build_launch": (entry_module, "build_launch"),
    "Engine": (entry_module, "Engine"),
    "learn": (learning.Learning, "learn"),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_while_making_an_entry(
    fault: tuple[Any, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(*fault, broken)
    training = Training()
    step = speculate(training.step)
    for at in range(8):
        step(inputs(at))
    assert training.state() == eager_state(8)
    assert (step.statistics().speculated, step.statistics().calls) == (0, 8)
    assert "torchjanus failed repeatedly" in step.given_up
    report = str(torchjanus.explain(step, detail=True))
    assert "torchjanus itself failed: RuntimeError: a fault of our own at broken:" in report
    assert "Please report this" in report
    assert "internal fault in torchjanus" in caplog.text


AFTERWARDS: dict[str, tuple[Any, str]] = {
    "what leaves the step": (Finalization, "settle"),
    "the step was over": (Recording, "finish"),
    "what recursive calls have counted": (Accumulators, "settled"),
}


@pytest.mark.parametrize(("when", "fault"), AFTERWARDS.items(), ids=AFTERWARDS)
def test_a_fault_when_the_program_has_run_costs_nothing_but_the_trace(
    when: str, fault: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*fault, broken)
    training = Training()
    step = speculate(training.step)
    for at in range(8):
        step(inputs(at))
    assert training.state() == eager_state(8)
    assert (step.statistics().speculated, step.statistics().calls) == (0, 8)
    reported = [str(refusal) for refusal in step.refusals]
    assert any(f"{when}: RuntimeError: a fault of our own" in text for text in reported), reported


def test_a_graph_that_raises_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    step = speculate(training.step)
    for at in range(5):
        step(inputs(at))
    assert step.statistics().speculated == 2

    def raising(flags: torch.Tensor) -> Any:
        torch.rand(1)  # random numbers are drawn before it breaks
        raise RuntimeError("a fault of our own")

    monkeypatch.setattr("torchjanus.execute.replay.failed", raising)
    for at in range(5, 8):
        step(inputs(at))
    assert training.state() == eager_state(8)
    assert [event.kind for event in step.events][:2] == ["fault", "dropped"]
    assert "its graph raised RuntimeError where eager does not" in str(torchjanus.explain(step, detail=True))
    assert step.statistics().entries == 0


def test_a_fault_of_the_commit_is_not_mended_by_a_second_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """By then the parameters are updated: the call cannot be made again, and must not look as if it had not been."""
    training = Training()
    step = speculate(training.step)
    real = Replay.run

    def short(self: Replay, *given: Any) -> Any:
        real(self, *given)
        return []  # no values: the commit does not find them

    monkeypatch.setattr(Replay, "run", short)
    for at in range(8):
        if at == 3:
            with pytest.raises(IndexError) as raised:
                step(inputs(at))
            assert raised.value.__notes__ == [
                "torchjanus: raised when the results of a graph were committed; its tensors are updated."
            ]
            assert set(frames_of(raised.value)) == {__file__}
        else:
            step(inputs(at))
    assert training.state()[0] == eager_state(8)[0]
    assert [event.kind for event in step.events][:1] == ["dropped"]


# -- violations, and giving up ------------------------------------------------------------------------------------


def test_a_violation_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training()
    step = speculate(training.step)
    for at in range(6):
        step(inputs(at))
    assert step.statistics().speculated == 3
    huge = torch.full((3, 2), 1e6)
    before = training.state()
    monkeypatch.setattr(step._calls, "fn", lambda x: "eager")
    assert step(huge) == "eager"
    assert training.state() == before  # parameters, momentum, gradients, counter, list and generator
    assert step.statistics().violated == 1
    monkeypatch.undo()
    step(huge)
    plain = Training()
    for at in range(6):
        plain.step(inputs(at))
    plain.step(huge)
    assert training.state() == plain.state()
    report = str(torchjanus.explain(step, detail=True))
    assert "violation: a condition on tensors stopped being False" in report
    assert f"test_speculate.py:{Training.step.__code__.co_firstlineno + 4}" in report


def test_an_entry_whose_assertions_keep_failing_is_given_up() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x.detach().clone().set_(x)  # this variant is refused

    fast = speculate(step)
    for _ in range(4):
        assert fast(torch.ones(2)).equal(torch.full((2,), 2.0))
    for _ in range(9):
        assert fast(-torch.ones(2)).equal(-torch.ones(2))
    counts = fast.statistics()
    assert counts.violated == 6
    assert "a tensor decides which path is taken" in str(torchjanus.explain(fast, detail=True))
    assert fast(torch.ones(2)).equal(torch.full((2,), 2.0))


def test_a_step_that_is_refused_is_given_up_with_the_reason() -> None:
    def step(x: torch.Tensor) -> Any:
        return x.data_ptr() % 4

    fast = speculate(step)
    for at in range(6):
        assert fast(inputs(at)) == 0
    counts = fast.statistics()
    assert (counts.watched, counts.imperative, counts.refused) == (3, 3, 3)
    assert "data_ptr" in fast.given_up
    (first, *_) = fast.refusals
    assert (first.place.file, first.place.line) == (__file__, step.__code__.co_firstlineno + 1)


def test_trees_of_sources_go_when_a_graph_has_been_made() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x + x

    step = speculate(lambda x: twice(x) * 3, executor="replay")
    for _ in range(2):
        step(torch.ones(3))
    assert source._files
    for _ in range(3):
        step(torch.ones(3))
    assert step.statistics().speculated and not source._files
