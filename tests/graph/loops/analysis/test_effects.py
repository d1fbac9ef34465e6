"""What iterations write and collect, merged into one: the same for all trip counts, and not merged where iterations may
differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from torchjanus.graph.loops.rewrites.fold import fold_loops
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import ContainerMutation, Extern, HostLoop
from torchjanus.trace.events import Trace
from torchjanus.trace.recipes import CollectedItems, NewObject, RowOf

HISTORY: list[Any] = []
TABLE: dict[Any, Any] = {}


def cut(step: Any, *args: Any) -> Trace | None:
    found = fold_loops(watch_call(step, (), args, {})[1])
    return None if found is None else found.trace


def alike(step: Any, x: torch.Tensor, *counts: int) -> Trace:
    """The run cut down, which has to be the same for all these trip counts."""
    made = [cut(step, x, count) for count in counts]
    assert made[0] is not None
    for other in made[1:]:
        assert other is not None
        assert other.tokens() == made[0].tokens()
    return made[0]


def appends(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = torch.sin(x)
        HISTORY.append(x.sum().item())
    return x


def prints_in_between(x: torch.Tensor, n: int) -> torch.Tensor:
    print("before")
    for i in range(n):
        x = torch.sin(x)
        print(i, x.sum().item())
    print("after")
    return x


def collects(x: torch.Tensor, n: int) -> list[Any]:
    outs = [x]
    for _ in range(n):
        x = torch.sin(x)
        outs.append(x)
    outs.append("end")
    return outs


def writes_by_the_iteration(x: torch.Tensor, n: int) -> torch.Tensor:
    for i in range(n):
        x = torch.sin(x)
        TABLE[i] = x.sum().item()
    return x


def appends_a_view(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = torch.sin(x)
        HISTORY.append(x[1:])
    return x


def pops(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        x = torch.sin(x)
        HISTORY.pop()
    return x


def sums_by_the_first(x: torch.Tensor, n: int) -> torch.Tensor:
    outs: list[torch.Tensor] = []
    for _ in range(n):
        x = torch.sin(x)
        outs.append(x)
        HISTORY.append(outs[0].sum().item())
    return x


def test_appends_are_one_event() -> None:
    trace = alike(appends, torch.ones(3), 4, 7, 30)
    (each,) = (event for event in trace.events if isinstance(event, HostLoop))
    assert str(each.count) == "n"
    assert [event.method for event in each.events] == ["append"]  # type: ignore[union-attr]


def test_calls_keep_their_order_and_are_numbered_as_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    trace = alike(prints_in_between, torch.ones(3), 4, 9)
    order = [event for event in trace.events if isinstance(event, Extern | HostLoop)]
    assert [type(event) for event in order] == [Extern, HostLoop, Extern]
    # Those of the iterations count for none: whoever makes them adds what they are.
    assert [e.number for event in order for e in (event.events if isinstance(event, HostLoop) else (event,))] == [
        0,
        1,
        1,
    ]  # type: ignore[union-attr]
    assert capsys.readouterr().out.count("before") == 2


def test_a_list_grows_by_one_item_a_iteration() -> None:
    trace = alike(collects, torch.ones(3), 3, 4, 20)
    assert isinstance(trace.result, NewObject)
    first, iterations, last = trace.result.items
    assert isinstance(iterations, CollectedItems)
    assert isinstance(iterations.item, RowOf)
    assert first is not last


def test_keys_may_be_the_number_of_the_iteration() -> None:
    alike(writes_by_the_iteration, torch.ones(3), 4, 6)


def test_the_first_of_what_iterations_collect_is_the_same_for_all_others() -> None:
    HISTORY.clear()
    trace = alike(sums_by_the_first, torch.ones(3), 4, 6)
    assert (
        sum(isinstance(event, ContainerMutation) for event in trace.events) == 1
    )  # the first iteration is recorded separately
    (each,) = (event for event in trace.events if isinstance(event, HostLoop))
    assert str(each.count) == "(n - 1)"


@pytest.mark.parametrize("step", [appends_a_view, pops])
def test_what_other_iterations_would_do_has_to_be_known(step: Callable[..., Any]) -> None:
    HISTORY.extend(range(20))
    assert cut(step, torch.ones(3), 5) is None
