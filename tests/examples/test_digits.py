"""The digits example: it learns, it repeats itself bitwise from one seed, and speculation changes nothing."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchjanus import runtime

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
}


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import digits

    return digits


@pytest.fixture
def compare(digits):
    import compare

    return compare


@pytest.fixture
def default_executor():
    before = runtime.default_executor()
    yield runtime.default_executor
    runtime.default_executor(before)


def losses(digits, folder: Path, *arguments: str) -> list[float]:
    target = folder / "losses.json"
    digits.main([*arguments, "--losses", str(target)])
    return json.loads(target.read_text())


def test_eager_learns_and_repeats_itself(digits, tmp_path: Path, capsys) -> None:
    first = losses(digits, tmp_path, "--eager", "--epochs", "2")
    steps_per_epoch = math.ceil(1437 / digits.BATCH)
    assert len(first) == 2 * steps_per_epoch
    assert 1437 % digits.BATCH != 0, "the last batch of an epoch is meant to be partial"
    assert sum(first[-5:]) < 0.95 * sum(first[:5])  # the rate has only begun to rise
    assert f"after {len(first)} steps" in capsys.readouterr().out
    assert losses(digits, tmp_path, "--eager", "--epochs", "2") == first
    assert losses(digits, tmp_path, "--eager", "--epochs", "2", "--seed", "1") != first


def test_the_step_updates_and_counts(digits) -> None:
    torch.manual_seed(0)
    model, optimizer, _ = digits.build(10)
    before = [parameter.clone() for parameter in model.parameters()]
    images, labels = next(iter(digits.load(0)[0]))
    loss, right = digits.train_step(model, optimizer, images, labels)
    assert not loss.requires_grad
    assert 0 <= int(right) <= len(labels)
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_speculated_losses_are_eagers(digits, tmp_path: Path, default_executor) -> None:
    default_executor("replay")
    eager = losses(digits, tmp_path, "--eager", "--epochs", "2")
    assert losses(digits, tmp_path, "--epochs", "2") == eager


def test_compare_finds_equal_curves(compare, capsys) -> None:
    assert compare.main(["--steps", "60", "--warm", "20", "--executor", "replay"]) == 0
    out = capsys.readouterr().out
    assert "The losses agree: 0.0e+00 of the largest at most over 60 steps" in out
    assert "of 60" in out


def test_compare_finds_a_difference(compare, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    real = compare.largest_difference
    monkeypatch.setattr(compare, "largest_difference", lambda a, b: real(a, [*b[:-1], b[-1] + 0.01 * max(a)]))
    assert compare.main(["--steps", "30", "--warm", "10", "--executor", "replay"]) == 1
    assert "The losses DIFFER: 1.0e-02 of the largest" in capsys.readouterr().out


def test_largest_difference(compare) -> None:
    assert compare.largest_difference([1.0, 2.0], [1.0, 2.0]) == 0.0
    assert compare.largest_difference([1.0, 2.0], [1.0, 2.5]) == 0.25


def test_plot_marks_where_the_curves_part(compare) -> None:
    same = [1.0 / (1 + step) for step in range(100)]
    drawn = compare.plot(same, same)
    # Below the title, which explains the marks.
    assert "e" not in drawn.partition("\n")[2].replace("step", "")
    assert "*" in drawn
    apart = compare.plot(same, [0.8] * 100)
    assert apart.count("s") > 10
    assert max(map(len, drawn.splitlines())) <= 80


@pytest.mark.slow
@pytest.mark.parametrize("how", ["eager", "speculated"])
def test_the_full_run_reaches_97_percent(how: str, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    command = [sys.executable, "-m", "torchjanus", "run", "--json", str(target), str(ROOT / "examples" / "digits.py")]
    command += ["--eager"] if how == "eager" else []
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("test accuracy")]
    assert float(line.split()[2].rstrip("%")) >= 97.0
    functions = json.loads(target.read_text())["functions"]
    assert [function["name"] for function in functions] == ([] if how == "eager" else ["train_step"])
    if how == "speculated":
        # How many calls Python makes until the graph is there depends on the machine; what is missed then does not.
        counts = functions[0]["statistics"]
        lost = counts["missed"] + counts["violated"] + counts["refused"]
        assert counts["speculated"] > 20 * lost and counts["watched"] < 10
