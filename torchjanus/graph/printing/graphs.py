"""An ATen graph as text: the Python code that torch.fx writes for it, with types."""

from __future__ import annotations

import torch

__all__ = ["graph_text"]


def graph_text(graph: torch.fx.Graph | torch.fx.GraphModule) -> str:
    """Return the code of a graph, an operation a line, each with the type of its value."""
    graph = graph.graph if isinstance(graph, torch.fx.GraphModule) else graph
    operations = sum(node.op == "call_function" for node in graph.nodes)
    lines = graph.python_code("self", verbose=True).src.splitlines()
    shown = [line for line in lines if line.strip() and "No stacktrace found" not in line]
    return f"# {operations} operations\n" + "\n".join(shown) + "\n"
