"""The record of the identity corpus keeps what was not measured anew."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.robustness.identity import completed, kept


def entry(python: str, *ways: str) -> dict[str, Any]:
    return {"python": python, "ways": list(ways), "rows": [{"way": way} for way in ways]}


def test_other_ways_and_interpreters_stay(tmp_path: Path) -> None:
    assert kept([entry("3.11", "watched")], tmp_path) == []
    old = [entry("3.11", "in place"), entry("3.12", "in place"), entry("3.11", "watched")]
    (tmp_path / "identity.json").write_text(json.dumps({"interpreters": old}))
    assert kept([entry("3.11", "watched")], tmp_path) == old[:2]
    assert kept([entry("3.11", "twins", "in place")], tmp_path) == old[1:]


def test_a_run_in_pieces_is_one_record(tmp_path: Path) -> None:
    def row(module: str, equal: int) -> dict[str, Any]:
        reported = {"faults": {}, "differences": [], "unexplained": "", "listed, but agree": []}
        return {
            "module": module,
            "way": "watched",
            "tests": 3,
            "equal": equal,
            "not done in time": ["late"],
            **reported,
        }

    def piece(*rows: dict[str, Any]) -> dict[str, Any]:
        return {"python": "3.11", "ways": ["watched"], "rows": list(rows)}

    old = [entry("3.11", "in place"), piece(row("test_with", 1), row("test_abc", 3))]
    (tmp_path / "identity.json").write_text(json.dumps({"interpreters": old}))
    whole = completed(piece(row("test_iter", 2), row("test_with", 2)), tmp_path)
    assert [each["module"] for each in whole["rows"]] == ["test_abc", "test_iter", "test_with"]
    assert (whole["modules"], whole["tests"], whole["equal"], whole["not done in time"]) == (3, 9, 7, 3)
