"""Torch's ambient state: the modes of each framework call, and states under which no graph can be made.

Knows nothing of traces.
"""

from __future__ import annotations

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from torchjanus.core.default_device import foreign_modes
from torchjanus.host.checks import autocast_regions
from torchjanus.trace.modes import Modes, attention_switched_off

__all__ = ["TRANSFORM", "ambient_modes", "generator_state", "hindrance"]

TRANSFORM = "a torch.func transform"


def ambient_modes() -> Modes:
    """Return the state of torch under which the next framework call runs."""
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return Modes(grad, inference, autocast_regions(), torch.get_default_dtype(), attention_switched_off())


def hindrance() -> str:
    """Return what is active that a graph would not obey, in words, or ""."""
    if torch.is_anomaly_enabled():
        return "anomaly detection"
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        return "saved_tensors_hooks"
    if modes := foreign_modes():
        return modes
    if torch._C._functorch.peek_interpreter_stack() is not None:
        return TRANSFORM
    if forward_ad._current_level >= 0:
        return "forward-mode differentiation"
    return ""


def generator_state() -> bytes:
    """Return the states of torch's generators, whatever mode or transform is active. Modes do not see the query."""
    if torch._C._len_torch_dispatch_stack():
        with _disable_current_modes():
            return _states()
    return _states()


def _states() -> bytes:
    generators = (torch.default_generator, *(torch.cuda.default_generators if torch.cuda.is_initialized() else ()))
    with torch._C.DisableTorchFunction(), torch._C._DisableFuncTorch():
        return b"".join(generator.get_state().numpy().tobytes() for generator in generators)
