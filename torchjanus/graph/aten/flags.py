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
    """All flags as one tensor; of several devices on the processor, and each device is waited for once. ``call``
    makes an operation: of tensors, or of nodes that stand for them."""
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
    """The flags that a node stacks; None where something else has made it."""
    if node.target is not aten.stack.default:
        return None
    flags: Any = node.args[0]
    return [*flags]
