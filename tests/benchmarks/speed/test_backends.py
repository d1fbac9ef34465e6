"""The benchmark of back ends: all of them make the step, and agree with eager, on small models."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.speed import backends


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_all_back_ends_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "write", lambda *given: record.write(*given, folder=tmp_path))
    assert backends.main(["--short", "--record"]) == 0
    rows = json.loads((tmp_path / "backends.json").read_text())["rows"]
    assert len(rows) == 11
    assert all(row["difference"] <= backends.TOLERANCE for row in rows)
    wholes = [row["served"] for row in rows if row["served"] is not None]
    assert len(wholes) == 6
    assert min(wholes) > backends.WARM - 5  # and so each of them ran as a graph
