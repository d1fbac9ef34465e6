"""The flags of a graph's assertions, which it returns as one tensor. Knows nothing of what is asserted."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["flags_of", "stack_flags"]

aten = torch.ops.aten
_PROCESSOR = torch.device("cpu")


def _run(target: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return target(*args, **kwargs)


def stack_flags(flags: Sequence[Any], call: Callable[..., Any] = _run) -> Any:
    """Return all flags as one tensor; on the CPU if they are on several devices, with one transfer per device. ``call``
    makes an operation on tensors, or on nodes that represent them."""
    devices = [(flag.meta["val"] if isinstance(flag, torch.fx.Node) else flag).device for flag in flags]
    found = [*flags]
    for device in dict.fromkeys(devices) if len({*devices}) > 1 else ():
        if device != _PROCESSOR:
            places = [place for place, other in enumerate(devices) if other == device]
            there = call(aten.stack.default, [flags[place] for place in places])
            here = call(aten.unbind.int, call(aten._to_copy.default, there, device=_PROCESSOR))
            for number, place in enumerate(places):
                found[place] = call(operator.getitem, here, number)
    return call(aten.stack.default, found)


def flags_of(node: torch.fx.Node) -> list[torch.fx.Node] | None:
    """Return the flags that a node stacks; None if it is no stack."""
    if node.target is not aten.stack.default:
        return None
    flags: Any = node.args[0]
    return [*flags]
