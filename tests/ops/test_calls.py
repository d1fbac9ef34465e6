"""The tables of torch's functions by name name functions that exist, and do not contradict each other."""

from __future__ import annotations

import pytest
import torch

from torchjanus.ops import calls

HOMES = (torch, torch.Tensor, torch.nn.functional, torch._C._nn, type(torch.Tensor.grad))  # properties have __get__
OWN = {"written"}  # of torchjanus


@pytest.mark.parametrize("table", [name for name in calls.__all__])
def test_each_name_is_of_a_function_of_torch(table: str) -> None:
    for name in getattr(calls, table) - OWN:
        spellings = (name, f"__{name}__", name.removesuffix("_"))
        assert any(hasattr(home, spelling) for home in HOMES for spelling in spellings), name


def test_no_result_both_is_fresh_and_a_view() -> None:
    assert calls.FRESH.isdisjoint(calls.VIEWS)


def test_numbers_in_arithmetic_are_data() -> None:
    assert {name.strip("_") for name in calls.ARITHMETIC | calls.IN_PLACE_ARITHMETIC} <= calls.NUMERIC


@pytest.mark.parametrize("name", sorted(calls.FOREACH))
def test_lists_of_tensors_have_a_function_for_each(name: str) -> None:
    assert hasattr(torch, f"_foreach_{name}")


@pytest.mark.parametrize("name", sorted(calls.FRESH - OWN - {"stack", "cat"}))
def test_a_fresh_result_shares_no_memory(name: str) -> None:
    given = torch.ones(3)
    assert getattr(torch, name)(given).untyped_storage().data_ptr() != given.untyped_storage().data_ptr()


@pytest.mark.parametrize(
    "name", ["detach", "t", "squeeze", "view_as", "expand_as", "reshape_as", "contiguous", "flatten"]
)
def test_a_view_may_share_memory(name: str) -> None:
    given = torch.ones(3)
    args = (given,) if name.endswith("_as") else ()
    assert name in calls.VIEWS
    assert getattr(given, name)(*args).untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
