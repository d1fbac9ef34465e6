"""The device on which tensors are made, and other modes that see torch's calls."""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchjanus.core.default_device import default_device, foreign_modes, is_own, named, without_function_modes

CPU = torch.device("cpu")


class Seeing(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_the_device_in_force() -> None:
    assert default_device() is None
    with CPU:
        assert default_device() == CPU
        with Seeing():
            assert default_device() == CPU
    with Seeing():
        assert default_device() is None


def test_the_device_is_named_where_a_tensor_is_made() -> None:
    assert named(torch.zeros, {}) == {}
    with torch.device("meta"):
        assert named(torch.zeros, {}) == {"device": torch.device("meta")}
        assert named(torch.zeros, {"device": CPU}) == {"device": CPU}
        assert named(torch.zeros, {"device": None})["device"] == torch.device("meta")
        assert named(torch.zeros_like, {}) == {}


def test_foreign_modes_are_named() -> None:
    assert foreign_modes() == ""
    with CPU:
        assert foreign_modes() == ""
        with Seeing() as mode:
            assert foreign_modes() == "a TorchFunctionMode (Seeing)"
            assert not is_own(mode)


def test_no_mode_sees_what_is_done_without() -> None:
    with torch.device("meta"), Seeing():
        with without_function_modes():
            assert torch._C._len_torch_function_stack() == 0
            assert torch.zeros(2).device == CPU
        assert torch._C._len_torch_function_stack() == 2
        assert torch.zeros(2).device == torch.device("meta")
