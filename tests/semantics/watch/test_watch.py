"""A watched run is a real run: eager's results, plain numbers, and a trace of what was read, written and decided."""

from __future__ import annotations

import collections
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import ContainerMutation, Extern, HeapWrite, Op
from torchjanus.trace.events import Decision, Event, FunctionEntry, Trace
from torchjanus.trace.facts import HeapRead, KeyLookup, NumberPredicate
from torchjanus.trace.values import Traced


def watched(fn: Any, *args: Any, **kwargs: Any) -> tuple[Any, Trace]:
    return watch_call(fn, (), args, kwargs)


def kinds(trace: Trace, cls: Any) -> list[Any]:
    return [event for event in trace.events if isinstance(event, cls)]


def texts(trace: Trace, *cls: type) -> list[str]:
    return [str(event) for event in trace.events if isinstance(event, cls)]


def plain_throughout(value: Any) -> bool:
    if isinstance(value, Traced):
        return False
    if isinstance(value, dict):
        return all(plain_throughout(v) for pair in value.items() for v in pair)
    if isinstance(value, list | tuple | set | collections.deque):
        return all(map(plain_throughout, value))
    return plain_throughout(vars(value)) if isinstance(value, SimpleNamespace) else True


def test_results_and_writes_are_real_and_plain() -> None:
    state = SimpleNamespace(n=1, rate=0.5, seen=[], table={"k": (1, 2.0)}, pair=None)

    def step(x: torch.Tensor) -> Any:
        state.n += 1
        state.rate = state.rate * state.n
        state.seen.append((state.n, {"loss": x.sum().item()}))
        state.table["k"] = (state.n, [state.rate])
        state.pair = state.n, state.rate
        return {"n": state.n, "list": [state.rate, (state.n,)], "y": x * state.n}

    result, _ = watched(step, torch.ones(3))
    assert result["n"] == 2 and result["list"] == [1.0, (2,)]
    assert result["y"].equal(torch.full((3,), 2.0))
    assert vars(state) == {
        "n": 2,
        "rate": 1.0,
        "seen": [(2, {"loss": 3.0})],
        "table": {"k": (2, [1.0])},
        "pair": (2, 1.0),
    }
    assert plain_throughout(result) and plain_throughout(state)


def test_the_trace_shows_reads_operations_and_writes_in_order() -> None:
    state = SimpleNamespace(scale=3)

    def step(x: torch.Tensor) -> torch.Tensor:
        y = x * state.scale
        state.last = state.scale + 1
        return y

    _, trace = watched(step, torch.ones(2))
    shown = [str(e) for e in trace.events if isinstance(e, Op | HeapWrite) or "scale" in str(e)]
    assert shown == [
        "read   state.scale -> 3",
        "op     %1 = Tensor.mul(%0, state.scale)",
        "write  state.__dict__['last'] = (state.scale + 1)",
    ]
    (op,) = kinds(trace, Op)
    assert (op.place.file, op.place.line) == (__file__, step.__code__.co_firstlineno + 1)
    assert f"{__file__}:{op.place.line}" in str(trace)
    assert trace.refusals == []


def test_a_read_after_a_write_of_the_same_run_is_not_a_read_of_the_heap() -> None:
    state = SimpleNamespace(n=1)

    def step() -> int:
        state.n = 5
        return state.n + state.n

    result, trace = watched(step)
    assert result == 10
    assert [e for e in kinds(trace, HeapRead) if str(e.access_path) == "state.n"] == []


def test_decisions_on_numbers_are_held() -> None:
    def step(n: int) -> str:
        return "few" if n < 3 else "many"

    result, trace = watched(step, 2)
    assert result == "few"
    assert texts(trace, NumberPredicate) == ["assume (n < 3) is True"]
    assert [e.outcome for e in kinds(trace, Decision)] == [True]


def test_calls_absences_and_mutations() -> None:
    losses: list[float] = []
    table: dict[str, int] = {}

    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def step(x: torch.Tensor) -> Any:
        losses.append(x.sum().item())
        print("done", losses[-1] if False else 1)
        return inner(x), table.get("k", 7)

    result, trace = watched(step, torch.ones(2))
    assert result[1] == 7 and losses == [2.0] and plain_throughout(losses)
    assert [e.name.rpartition(".")[2] for e in kinds(trace, FunctionEntry)] == ["inner"]
    absent = [(str(e.base), e.key, e.present) for e in kinds(trace, KeyLookup)]
    assert absent == [("globals", "print", False), ("table", "k", False)]  # no global hides the builtin
    assert [(str(e.base), e.method) for e in kinds(trace, ContainerMutation)] == [("losses", "append")]
    assert texts(trace, Extern) == ["extern print('done', 1)"]


def test_the_users_exception_comes_through() -> None:
    state = SimpleNamespace(n=0)

    def step() -> None:
        state.n = 1
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        watched(step)
    assert state.n == 1


def test_two_like_runs_have_equal_tokens_and_unlike_ones_do_not() -> None:
    def step(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * n if n > 2 else x + n

    tokens = [watched(step, torch.randn(2), n)[1].tokens() for n in (3, 4, 1)]
    assert tokens[0] == tokens[1] != tokens[2]
    # Sizes are not part of the path, how many there are is.
    for size in (0, 1, 3):
        assert watched(step, torch.randn(size), 3)[1].tokens() == tokens[0]
    for other in (torch.randn(2, 2), torch.randn(()), torch.randn(2).double()):
        assert watched(step, other, 3)[1].tokens() != tokens[0]


def test_names_of_events_are_exhaustive() -> None:
    """Each kind prints itself with a word that says what it is."""
    expected = {"HeapRead", "Op", "HeapWrite", "Decision", "LoopEnd", "FunctionExit"}
    assert {cls.__name__ for cls in Event.__args__} >= expected


def test_a_mode_left_changed_is_refused() -> None:
    def step() -> None:
        torch.set_grad_enabled(False)

    try:
        _, trace = watched(step)
    finally:
        torch.set_grad_enabled(True)
    assert any("leaves a torch mode changed" in r.what for r in trace.refusals)
