"""A prepared graph as bytes and back, to be compiled in another process. Knows nothing of processes."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler

from torchjanus.graph.for_inductor import Prepared

__all__ = ["pack", "unpack"]


def pack(prepared: Prepared) -> bytes:
    """The graph of ``prepared`` as bytes. Drops its metadata, which a compiler finds again from example inputs."""
    for node in prepared.graph.graph.nodes:
        node.meta.clear()
    return bytes(GraphPickler.dumps(prepared.graph))


def unpack(packed: bytes) -> torch.fx.GraphModule:
    """The graph that was packed."""
    graph = GraphPickler.loads(packed, FakeTensorMode())
    assert isinstance(graph, torch.fx.GraphModule)
    graph.recompile()
    return graph
