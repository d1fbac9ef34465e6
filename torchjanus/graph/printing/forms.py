"""What passes work on as text, whichever form it has."""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.ir.program import Program
from torchjanus.graph.printing.graphs import graph_text
from torchjanus.graph.printing.programs import program_text
from torchjanus.graph.printing.traces import trace_text
from torchjanus.trace.events import Trace

__all__ = ["form_text"]


def form_text(value: Any) -> tuple[str, str]:
    """Whether it is a trace, a program or a graph, and its text. Of several traces of one path it is the last."""
    if isinstance(value, list | tuple):
        value = value[-1]
    if isinstance(value, Trace):
        return "trace", trace_text(value)
    program = value if isinstance(value, Program) else getattr(value, "program", None)
    if isinstance(program, Program) and not isinstance(value, Lowered):
        return "program", program_text(program)
    graph = value if isinstance(value, torch.fx.Graph | torch.fx.GraphModule) else value.graph
    return "graph", graph_text(graph)
