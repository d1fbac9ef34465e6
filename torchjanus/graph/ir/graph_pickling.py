"""Graphs as bytes, for other processes. Knows nothing of what they compute."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from torchjanus.core.lazy import deferred

__all__ = ["graph_bytes"]

pickling = deferred("torch.fx._graph_pickler")


def graph_bytes(graph: Any) -> bytes:
    """Return the bytes of which torch's GraphPickler can make the graph, or what holds graphs, again."""
    return bytes(_pickler().dumps(graph, pickling.Options(ops_filter=None)))


@cache
def _pickler() -> Any:
    class Pickler(pickling.GraphPickler):  # type: ignore[misc,name-defined]
        def reducer_override(self, value: Any) -> Any:
            # pickle would look for a memory format in all modules, and find it in the program's main module.
            if isinstance(value, torch.memory_format | torch.layout):
                return _of_torch, (str(value).removeprefix("torch."),)
            return super().reducer_override(value)

    return Pickler


def _of_torch(name: str) -> Any:
    return getattr(torch, name)
