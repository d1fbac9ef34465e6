"""Starts the ranks of a job in processes that are forked by one that has imported what they need.

Two ranks that import torch and torchjanus take ten seconds of processor time before their first call. The process that
forks them is multiprocessing's; it is started with the first job and ends with the tests.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch

from tests.forked import IMPORTED

__all__ = ["CONTEXT", "together"]

_METHOD = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
CONTEXT = torch.multiprocessing.get_context(_METHOD)
_OF_RANKS = (
    "tests.semantics.two_processes",
    "tests.semantics.ranks_with_faults",
    "tests.runtime.entries.ranks_compiling",
)
if _METHOD == "forkserver":
    multiprocessing.set_forkserver_preload([*IMPORTED, "torch.distributed", *_OF_RANKS])


def together(run: Callable[..., None], given: tuple[Any, ...], ranks: int) -> None:
    """Call ``run(rank, *given)`` in so many processes. Raises what torch raises where one of them fails."""
    torch.multiprocessing.start_processes(run, given, nprocs=ranks, join=True, start_method=_METHOD)
