"""The no-storm table: what torchjanus reaches is pinned, and the counts of both systems are what they say."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch

from benchmarks import record
from benchmarks.programs import changing_steps
from benchmarks.robustness import recompilation
from benchmarks.robustness.recompilation import Run, compared, main, run

# How many graphs are made, and how many of 30 calls are served, where change is not paid for.
REACHED = {
    "learning_rate_of_12_values": (1, 27),
    "module_counter": (1, 27),
    "list_that_grows": (1, 27),
    "print_in_a_loop": (1, 27),
    "optional_arguments": (2, 25),
    "two_model_classes": (2, 24),
}


@pytest.mark.parametrize("name", REACHED)
def test_change_is_not_paid_for(name: str) -> None:
    (make,) = (make for make in recompilation.PROGRAMS if make.__name__ == name)
    eager, other = run(make, "eager", 30), run(make, "torchjanus replay", 30)
    row = compared(name, "torchjanus replay", eager, other)
    assert row.exact
    assert (row.compiles, row.served) == REACHED[name]


def test_every_program_runs() -> None:
    for make in recompilation.PROGRAMS:
        one, two = run(make, "eager", 2), run(make, "eager", 2)
        assert compared(make.__name__, "eager", one, two).exact


def test_what_differs_is_found() -> None:
    weight = torch.ones(2)
    eager = Run([1.0, 2.0], "text", [weight], compiles=1, served=2)
    row = compared("p", "s", eager, eager)
    assert row.exact
    assert row.reached
    near = Run([1.0, 2.00001], "text", [weight], served=2)
    assert compared("p", "s", eager, near).right
    assert not compared("p", "s", eager, near).exact
    for other in (
        Run([1.0, 2.1], "text", [weight]),
        Run([1.0, 2.0], "other", [weight]),
        Run([1.0, 2.0], "text", [weight * 2]),
        Run([1.0, float("nan")], "text", [weight]),
    ):
        assert not compared("p", "s", eager, other).right
    assert not compared("p", "s", eager, Run([1.0, 2.0], "text", [weight], compiles=4, served=2)).reached
    assert not compared("p", "s", eager, Run([1.0, 2.0], "text", [weight], served=1)).reached


def test_compilations_of_torch_compile_are_counted() -> None:
    with warnings.catch_warnings(action="ignore"):  # torch.compile's own
        other = run(changing_steps.learning_rate_of_12_values, "torch.compile eager", 4)
    assert other.compiles > 0
    assert other.served == 4
    assert other.graphs >= 4


def test_the_command_leaves_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(
        recompilation,
        "write",
        lambda name, given, device, content: record.write(name, given, device, content, tmp_path),
    )
    monkeypatch.setattr(recompilation, "RESULTS", tmp_path)
    assert main(["--only", "learning_rate", "--alone", "--calls", "40", "--record"]) == 0
    assert main(["--only", "module_counter", "--alone", "--calls", "40", "--record"]) == 0
    content = json.loads((tmp_path / "recompilation.json").read_text())
    assert [row["program"] for row in content["rows"]] == ["learning_rate_of_12_values", "module_counter"]
    (tmp_path / "recompilation.json").unlink()
    assert main(["--only", "module_counter", "--backend", "eager", "--calls", "40", "--record"]) == 0
    content = json.loads((tmp_path / "recompilation.json").read_text())
    assert content["programs"] == 1
    assert content["reached"]["torchjanus replay"] == 1
    assert [row["system"] for row in content["rows"]] == ["torchjanus replay", "torch.compile eager"]
    assert "module_counter" in capsys.readouterr().out
