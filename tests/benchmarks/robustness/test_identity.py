"""The record of the identity corpus keeps what was not measured anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.robustness.identity import kept


def entry(python: str, *ways: str) -> dict[str, Any]:
    return {"python": python, "ways": list(ways), "rows": [{"way": way} for way in ways]}


def test_other_ways_and_interpreters_stay(tmp_path: Path) -> None:
    assert kept([entry("3.11", "watched")], tmp_path) == []
    old = [entry("3.11", "in place"), entry("3.12", "in place"), entry("3.11", "watched")]
    (tmp_path / "identity.json").write_text(json.dumps({"interpreters": old}))
    assert kept([entry("3.11", "watched")], tmp_path) == old[:2]
    assert kept([entry("3.11", "twins", "in place")], tmp_path) == old[1:]
