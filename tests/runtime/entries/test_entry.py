"""Entries of one path: what they assume, which broken assumptions can be weakened, and when none is made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.core.errors import Refused
from torchjanus.graph.recursion.grouping.variants import VariantTable
from torchjanus.host.assumption import AmbientState, Arguments, ValueOf
from torchjanus.host.tensor_assumptions import Distinct, TensorKind
from torchjanus.runtime.entries.entry import Entry, alone
from torchjanus.runtime.entries.entry_making import make_entry
from torchjanus.runtime.launch.outcomes import MISS
from torchjanus.runtime.runs.paths import Group, Paths
from torchjanus.runtime.runs.records import Counts
from torchjanus.semantics.watch.run import watch_call


def grouped(step: Any, *calls: tuple[Any, ...]) -> Group:
    paths, group = Paths(Counts()), None
    for call in calls:
        trace = watch_call(step, (), call, {})[1]
        assert trace.refusals == []
        paths.take(trace, call, {})
        group = paths.group_of(trace, (len(call), ()))
    assert group is not None
    return group


def made(step: Any, *calls: tuple[Any, ...]) -> Entry:
    return make_entry(grouped(step, *calls), "replay", VariantTable())


def scaled(x: torch.Tensor, k: float) -> torch.Tensor:
    return x * k


def test_an_entry_assumes_what_all_runs_had_in_common() -> None:
    entry = made(scaled, (torch.ones(3), 0.5), (torch.zeros(3), 0.5))
    kinds = [type(assumption) for assumption in entry.assumptions]
    assert kinds[:2] == [Arguments, AmbientState] and TensorKind in kinds
    assert any(isinstance(one, ValueOf) and one.value == 0.5 for one in entry.assumptions)
    assert entry.lowered is entry.whole and entry.own == entry.assumptions and entry.live is None
    assert entry.entries == (entry,) and entry.engines == (entry.engine,) and not entry.journaled


def test_an_entry_makes_the_calls_for_which_it_holds() -> None:
    entry = made(scaled, (torch.ones(3), 0.5), (torch.zeros(3), 0.5))
    x = torch.randn(3)
    assert torch.equal(entry.call((x, 0.5), {}, None), x * 0.5)
    assert entry.broken((x, 0.5), {}) == []
    assert entry.choose((x, 0.5), {}, None) == (entry, ())


def test_broken_assumptions_are_named_and_may_be_relaxed() -> None:
    entry = made(scaled, (torch.ones(3), 0.5), (torch.zeros(3), 0.5))
    (broken,) = entry.broken((torch.ones(3), 0.7), {})
    assert isinstance(broken, ValueOf)
    assert entry.relaxable(broken) == [broken.access_path.token]
    (broken,) = entry.broken((torch.ones(3, dtype=torch.float64), 0.5), {})
    assert isinstance(broken, TensorKind) and entry.relaxable(broken) == []


def test_what_differed_is_an_input() -> None:
    entry = made(scaled, (torch.ones(3), 0.5), (torch.zeros(3), 0.7))
    assert torch.equal(entry.call((torch.ones(3), 0.25), {}, None), torch.full((3,), 0.25))
    (slot,) = entry.plan.slots
    assert slot.access_path.token in entry.varying()


def test_a_number_that_a_graph_cannot_take_is_held() -> None:
    entry = made(lambda x, n: x.unflatten(0, (n, -1)), (torch.ones(12), 3), (torch.ones(12), 4))
    assert entry.broken((torch.ones(12), 4), {}) == []
    assert entry.call((torch.ones(12), 4), {}, None).shape == (4, 3)


def test_tensors_that_change_and_new_ones_lie_apart() -> None:
    w = torch.zeros(3)

    def step(x: torch.Tensor) -> None:
        w.add_(x)

    entry = made(step, (torch.ones(3),), (torch.zeros(3),))
    assert any(isinstance(assumption, Distinct) for assumption in entry.assumptions)
    assert entry.broken((w,), {}) != []


def test_an_entry_outside_of_a_tree_is_alone() -> None:
    entry = made(scaled, (torch.ones(3), 0.5), (torch.zeros(3), 0.5))
    assert alone(entry, "replay") is entry and entry.path_to(entry) == []


def test_what_no_graph_does_is_refused() -> None:
    calls = ((torch.ones(3), torch.tensor(2)), (torch.zeros(3), torch.tensor(2)))
    with pytest.raises(Refused) as error:
        made(lambda x, end: x[:end] * 2, *calls)
    assert error.value.refusal.reason == "trace-failed"


def test_sizes_that_decide_have_a_graph_each() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        return x.view(2, 2) if x.size(0) == 4 else x.view(1, -1)

    paths = [grouped(step, (torch.ones(n),), (torch.zeros(n),)) for n in (4, 5)]
    entries = [make_entry(group, "replay", VariantTable()) for group in paths]
    assert [entry.broken((torch.ones(4),), {}) == [] for entry in entries] == [True, False]


def test_entries_in_use_are_those_that_were_made() -> None:
    step = torchjanus.speculate(scaled, executor="replay")
    for k in range(4):
        step(torch.ones(3) * k, 0.5)
    (entry,) = step.entries
    assert isinstance(entry, Entry) and entry.runs == 1 and entry.used == 4


def attended(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)


def asked(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if torch.backends.cuda.math_sdp_enabled() else x - 1


def by_operator(x: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.relu.default(x)


@pytest.mark.parametrize("step", [attended, asked, by_operator])
def test_the_choice_of_attention_kernels_is_guarded_where_it_may_matter(
    step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchjanus.trace.modes._attention_met", False)
    x = torch.randn(1, 2, 4, 8)
    plain, entry = made(scaled, (x, 0.5)), made(step, (x,))
    assert torch.equal(entry.call((x,), {}, None), step(x))
    torch.backends.cuda.enable_math_sdp(False)
    try:
        assert torch.equal(plain.call((x, 0.5), {}, None), x * 0.5) and plain.broken((x, 0.5), {}) == []
        assert entry.call((x,), {}, None) is MISS
        (broken,) = entry.broken((x,), {})
        assert isinstance(broken, AmbientState)
    finally:
        torch.backends.cuda.enable_math_sdp(True)
