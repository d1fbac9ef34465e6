"""The thread in which autograd computes. This module does not know graphs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["one_thread"]


def one_thread() -> AbstractContextManager[Any]:
    """Return a context in which autograd computes in the calling thread, as it always does for the CPU. For other
    devices it has threads of its own, in which no dispatch mode is active."""
    if torch.cuda.is_initialized():
        return torch.autograd.set_multithreading_enabled(False)
    return nullcontext()
