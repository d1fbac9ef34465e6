"""The benchmark of lowering makes the graph that it counts."""

from __future__ import annotations

import pytest

from benchmarks.cost import lowering


@pytest.mark.parametrize("name", ["mlp", "gru_cell"])
def test_a_graph_is_made_in_the_measured_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHJANUS_CACHE", "")
    monkeypatch.setattr(lowering, "LENGTH", 2)
    operations, milliseconds = lowering.lowered(lowering.PROGRAMS[name])
    assert operations > 50
    assert milliseconds > 0.0
