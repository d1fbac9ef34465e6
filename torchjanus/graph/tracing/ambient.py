"""Restores the ambient state of torch (gradient mode, default dtype, autocast, kernels of attention) around each node
of a program."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import Self

import torch

from torchjanus.trace.modes import ATTENTION, Modes, attention_switched_off

__all__ = ["Ambient"]


class Ambient:
    """Keeps the modes of the current node in force; changes only what differs from the previous node.

    Autocast's weight cache decides whether two uses of a parameter share one cast, and so how their gradients are
    added. It is emptied at the nodes where the program emptied it, and nowhere else.

    Transforms of torch.func that nodes have entered, and not left when a node raised, are left at the end."""

    def __init__(self) -> None:
        self._autocast = ExitStack()
        self._regions: tuple[tuple[str, torch.dtype, bool], ...] = ()

    def __enter__(self) -> Self:
        self._outside = ExitStack()
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                self._outside.enter_context(torch.autocast(device, enabled=False))
        # While this nesting is open, leaving a region does not empty the cache.
        torch.autocast_increment_nesting()
        self._depth = torch._C._functorch.get_dynamic_layer_stack_depth()
        self._grad = torch.is_grad_enabled()
        self._dtype = torch.get_default_dtype()
        self._without = attention_switched_off()
        _switch_attention(())
        return self

    def switch(self, modes: Modes) -> None:
        """Put ``modes`` in force. Inference mode counts as no-grad: they differ only in later use of the results."""
        torch.set_grad_enabled(modes.grad and not modes.inference)
        if torch.get_default_dtype() != modes.default_dtype:
            torch._C._set_default_dtype(modes.default_dtype)
        _switch_attention(modes.without)
        if modes.autocast != self._regions:
            self._autocast.close()
            for device, dtype, cached in modes.autocast:
                self._autocast.enter_context(torch.autocast(device, dtype=dtype, cache_enabled=cached))
            self._regions = modes.autocast

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if torch._C._functorch.get_dynamic_layer_stack_depth() > self._depth:
            torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(self._depth)
        self._autocast.close()
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        self._outside.close()
        _switch_attention(self._without)
        torch._C._set_default_dtype(self._dtype)
        torch.set_grad_enabled(self._grad)


def _switch_attention(off: tuple[str, ...]) -> None:
    """Switch these kernels of ``scaled_dot_product_attention`` off, and the others on."""
    if attention_switched_off() != off:
        for name, _ in ATTENTION:
            getattr(torch._C, f"_set_sdp_use_{name}")(name not in off)
