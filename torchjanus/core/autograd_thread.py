"""The thread in which autograd computes. Knows nothing of graphs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

__all__ = ["one_thread"]


def one_thread() -> AbstractContextManager[Any]:
    """Autograd computes all in the thread that asks for it, as it does for a processor: for other devices it has
    threads of its own, in which nobody listens."""
    if torch.cuda.is_initialized():
        return torch.autograd.set_multithreading_enabled(False)
    return nullcontext()
