"""Hides the mode of co-execution from torch's own Python code, so that torch takes the ways that it takes in eager.

That code asks whether calls of torch are overridden (the fast paths of attention and transformers do): the mode of
co-execution does not count.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._foreach_utils import _foreach_supported_types as _listed

from torchjanus.runtime.coexecution.recording import composites
from torchjanus.runtime.coexecution.recording.placeholders import Placeholder

__all__ = ["ACTIVE", "Unnoticed"]


class _Active(threading.local):
    """``calls``: whether a call of this thread is being co-executed, or recorded for that: calls within are part of
    it."""

    calls = 0


ACTIVE = _Active()
_overrides: Any = torch.overrides
_original: Any = _overrides.has_torch_function
_lock = threading.Lock()
_listed.append(Placeholder)  # the exact classes for which torch takes its operators on lists
_inside = 0


def _has_torch_function(relevant: Iterable[Any]) -> bool:
    if not ACTIVE.calls or torch._C._len_torch_function_stack() != 1:
        return bool(_original(relevant))
    if sys._getframe(1).f_code.co_filename == torch._ops.__file__:  # a higher-order operator: calls of it are events
        return bool(_original(relevant))
    kinds = {type(one) for one in relevant} - {torch.Tensor, torch.nn.Parameter, Placeholder}
    return any(
        getattr(kind, "__torch_function__", None) not in (None, torch._C._disabled_torch_function_impl)
        for kind in kinds
    )


class Unnoticed:
    """While a call of this thread is co-executed."""

    def __enter__(self) -> None:
        global _inside
        ACTIVE.calls = 1
        with _lock:
            _inside += 1
            if _inside == 1:
                _overrides.has_torch_function = _has_torch_function
                composites.installed()

    def __exit__(self, *_: object) -> None:
        global _inside
        ACTIVE.calls = 0
        with _lock:
            _inside -= 1
            if not _inside:
                _overrides.has_torch_function = _original
                composites.uninstalled()
