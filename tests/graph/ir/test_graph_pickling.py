"""Graphs become bytes that another process can read, whatever modules there are."""

from __future__ import annotations

import sys
import types

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler

from torchjanus.graph.ir.graph_pickling import graph_bytes


def test_memory_formats_are_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """pickle finds them in the main module of a program that multiprocessing has started."""
    main = types.ModuleType("__mp_main__")
    main.torch = torch  # type: ignore[attr-defined]
    monkeypatch.setattr(sys, "modules", {"__mp_main__": main, **sys.modules})
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(torch.ops.aten.clone.default, (x,), {"memory_format": torch.preserve_format}))
    data = graph_bytes(torch.fx.GraphModule({}, graph))
    monkeypatch.undo()
    assert b"__mp_main__" not in data
    read = GraphPickler.loads(data, FakeTensorMode())
    assert isinstance(read, torch.fx.GraphModule)
    read.recompile()
    assert torch.equal(read(torch.ones(2)), torch.ones(2))
