"""What was compiled for one path makes calls until the tree that has replaced it is compiled; calls are eager's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.host.journal import Journal
from torchjanus.runtime.entries import engine
from torchjanus.runtime.entries.path_tree import PathTree
from torchjanus.runtime.entries.standby import LEAST, TRIED, Standby
from torchjanus.runtime.launch.outcomes import MISS


class Old:
    """Serves numbers below ten."""

    engines: Any = (SimpleNamespace(compiled=object()),)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], journal: Journal | None) -> Any:
        return args[0] + 1 if args[0] < 10 else MISS


def test_it_is_over_when_all_of_the_tree_is_compiled() -> None:
    parts: list[Any] = [SimpleNamespace(is_ready=True), SimpleNamespace(is_ready=False)]
    standby = Standby(Old(), parts)
    assert not standby.over
    assert standby.call((3,), {}, None) == 4
    assert standby.call((30,), {}, None) is MISS
    parts[1].is_ready = True
    assert standby.over
    assert not standby.of([SimpleNamespace(is_ready=False)]).over  # type: ignore[list-item]


@pytest.mark.parametrize(("every", "over"), [(LEAST - 1, False), (2 * LEAST, True)])
def test_it_is_over_when_hardly_a_call_goes_the_old_way(every: int, over: bool) -> None:
    standby = Standby(Old(), [SimpleNamespace(is_ready=False)])  # type: ignore[list-item]
    for number in range(4 * TRIED):
        standby.call((3 if number % every == 0 else 30,), {}, None)
    assert standby.over is over


def test_it_pays_only_if_all_there_was_is_compiled() -> None:
    old = Old()
    assert Standby.pays(old)
    old.engines = (*Old.engines, SimpleNamespace(compiled=None))
    assert not Standby.pays(old)


class Training:
    """Steps that a tensor decides, with randomness and a print in them."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.w = torch.ones(4, 2, requires_grad=True)
        self.reported: list[float] = []

    def step(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.nn.functional.dropout(x @ self.w, 0.5)
        loss = h.sum() if h.sum() > 0 else h.square().sum() * 0.5
        self.w.grad = None
        loss.backward()
        with torch.no_grad():
            assert self.w.grad is not None
            self.w -= 0.01 * self.w.grad
        self.reported.append(loss.item())
        return loss.detach()


@pytest.mark.slow
def test_calls_that_go_the_compiled_way_stay_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled_wins(one: Any, best: Any, candidate: Any, times: Any) -> Any:
        one._settle(candidate)
        return candidate.run

    monkeypatch.setattr(engine, "Race", compiled_wins)
    eager, ours = Training(), Training()
    fast = torchjanus.speculate(ours.step, executor="auto")

    def calls(*signs: int) -> None:
        for sign in signs:
            x = sign * torch.rand(3, 4)
            seed = torch.random.get_rng_state()
            expected = eager.step(x)
            after = torch.random.get_rng_state()
            torch.random.set_rng_state(seed)
            torch.testing.assert_close(fast(x), expected, rtol=1e-5, atol=1e-6)
            assert torch.equal(torch.random.get_rng_state(), after)
        torch.testing.assert_close(ours.w, eager.w, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.reported, eager.reported, rtol=1e-5, atol=1e-6)

    calls(*[1] * 4)
    while fast.entries[0].engine.compiled is None:
        fast.entries[0].engine.wait()
        calls(1)
    calls(-1, -1, -1, -1)
    fast.wait()
    calls(-1, 1, -1, 1)
    (tree,) = fast._learning.routes
    assert isinstance(tree, PathTree)
    assert tree.standby is not None
    before = tree.standby._served
    calls(*[1, -1] * 4)
    assert tree.standby._served > before  # of some calls it is measured how long Python takes
    while tree.standby is not None:
        for one in tree.engines:
            one.wait()
        calls(1, -1)
    calls(*[1, -1] * 4)
