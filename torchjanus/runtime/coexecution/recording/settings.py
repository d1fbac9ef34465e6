"""Settings of torch that decide what an operation computes: which are in force, and who sets them.

A path holds under the settings of its recorded calls. A call that sets one in the middle is not co-executed: its
operations run later than the program makes them.
"""

from __future__ import annotations

import types
import warnings
from typing import Any

import torch

from torchjanus.trace.modes import attention_switched_off

__all__ = ["NAMES", "is_setting", "settings"]

# What is asked for at each event (autocast), is an event itself, belongs to one tensor, or changes no result.
_OTHERS = (
    "set_autocast_", "_set_grad_enabled", "_set_conj", "_set_neg", "_set_creation_meta", "_set_tensor_metadata",
    "_set_multithreading_enabled", "_set_torch_function_state", "_set_skip_next_torch_function", "_set_thread_name",
)  # fmt: skip
_MODULES = frozenset({"torch", "torch._C"})
# Names in a program's code by which it may set one.
NAMES = frozenset(
    """set_default_dtype set_default_tensor_type use_deterministic_algorithms set_deterministic_debug_mode
    fill_uninitialized_memory set_flush_denormal set_num_threads set_float32_matmul_precision set_warn_always
    sdpa_kernel sdp_kernel enable_flash_sdp enable_mem_efficient_sdp enable_math_sdp backends set_fastpath_enabled
    set_flags detect_anomaly set_detect_anomaly""".split()
)


def settings() -> tuple[Any, ...]:
    """Return the settings that are in force, and which warnings are shown: an operation that warns is not served.
    Settings that only native kernels ask for are not among them: replay runs the same kernels."""
    return (
        torch.get_default_dtype(),
        torch._C._get_deterministic_algorithms(),
        torch._C._get_mkldnn_enabled(),
        torch._C._get_nnpack_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
        attention_switched_off(),
        tuple(warnings.filters),
    )


def is_setting(func: Any) -> bool:
    """Whether a native function sets one."""
    if type(func) is not types.BuiltinFunctionType or func.__module__ not in _MODULES:
        return False
    name = func.__name__
    return name.startswith(("set_", "_set_")) and not name.startswith(_OTHERS)
