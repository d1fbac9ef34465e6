"""The device on which torch makes tensors by default: what ``torch.set_default_device()`` and ``with torch.device():``
set, a mode that sees each call of torch.

A graph names the device of all that it makes, so such a mode has nothing to do when it is lowered or runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import _pop_mode, _push_mode
from torch.utils._device import DeviceContext, _device_constructors

__all__ = ["default_device", "foreign_modes", "is_own", "named", "sees_calls", "without_function_modes"]

_UNSEEING = (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)  # type: ignore[attr-defined]


def default_device() -> torch.device | None:
    """Return the default device of this thread; None where none is set."""
    if not torch._C._len_torch_function_stack():
        return None
    lowest: Any = torch._C._get_function_stack_at(0)  # it is below all others
    return lowest.device if type(lowest) is DeviceContext else None


def named(func: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of a call of torch, with the device on which it makes a tensor."""
    device = default_device()
    if device is None or kwargs.get("device") is not None or func not in _device_constructors():
        return kwargs
    return {**kwargs, "device": device}


def foreign_modes() -> str:
    """Return, in words, which other mode sees each call of torch; "" if there is none besides torchjanus' own."""
    for number in range(torch._C._len_torch_function_stack()):
        mode: Any = torch._C._get_function_stack_at(number)
        if type(mode) is not DeviceContext and not is_own(mode):
            return f"a TorchFunctionMode ({type(mode).__qualname__})"
    return ""


def sees_calls(value: Any) -> bool:
    """Whether it is a tensor of a class that sees each call of torch, by a ``__torch_function__`` of its own."""
    kind = type(value)
    if kind is torch.Tensor or not issubclass(kind, torch.Tensor):
        return False
    seen_by = kind.__torch_function__
    return getattr(seen_by, "__func__", seen_by) not in _UNSEEING


def is_own(mode: Any) -> bool:
    """Whether it is a mode of torchjanus."""
    return type(mode).__module__.startswith("torchjanus.")


@contextmanager
def without_function_modes() -> Iterator[None]:
    """Make calls of torch within invisible to function modes."""
    modes = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)
