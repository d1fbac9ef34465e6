"""The command: its parts run, print their tables and leave records that say what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.speed import training_steps
from benchmarks.speed.overhead import MODULES, ManyModules, bare
from benchmarks.speed.timing import interleaved


def test_contenders_take_turns_on_the_same_batches() -> None:
    seen: list[tuple[str, int]] = []
    steps = {name: (lambda batch, name=name: seen.append((name, batch))) for name in "ab"}
    times = interleaved(steps, [(number,) for number in range(5)], repetitions=3, device="cpu", block=2)
    assert seen == [
        ("a", 0), ("a", 1), ("b", 0), ("b", 1),
        ("b", 2), ("b", 3), ("a", 2), ("a", 3),
        ("a", 4), ("a", 0), ("b", 4), ("b", 0),
    ]  # fmt: skip
    assert {name: len(taken) for name, taken in times.items()} == {"a": 6, "b": 6}
    assert all(second >= 0 for taken in times.values() for second in taken)


def test_many_modules_do_only_the_bare_arithmetic() -> None:
    model = ManyModules()
    x = torch.randn(4, 4)
    assert len(model.blocks) == MODULES == 300
    assert torch.equal(model(x), bare(x))


def test_equality_leaves_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    torch.set_num_threads(1)  # as the command is meant to be run
    # Only replay: Inductor compiles for seconds.
    arguments = ["equality", "--executors", "replay", "--programs", "mlp", "--results", str(tmp_path)]
    assert training_steps.main(arguments) == 0
    assert torch.get_num_threads() == 1
    content = json.loads((tmp_path / "training_steps_equality.json").read_text())
    assert content["command"][-len(arguments) :] == [*arguments[:-1], tmp_path.name]  # not where that lies
    assert content["machine"]["threads"] == 1
    assert content["machine"]["versions"]["torch"] == torch.__version__
    assert [(row["program"], row["optimizer"]) for row in content["rows"]] == [
        ("mlp", "sgd"), ("mlp", "adam"), ("mlp", "adamw"),
    ]  # fmt: skip
    assert all(row["bitwise"] and row["random_equal"] and not row["faults"] for row in content["rows"])
    out = capsys.readouterr().out
    assert "relative differences from eager" in out
    assert "recorded in" in out


def test_an_unknown_part_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        training_steps.main(["equlity"])
    assert caught.value.code == 2
    assert "there is no part 'equlity': choose from equality, speed, overhead" in capsys.readouterr().err


@pytest.mark.slow
# torch.compile, the contender, looks at .grad of a tensor that is no leaf while it resumes after a graph break.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
@pytest.mark.parametrize("part", ["speed", "overhead"])
def test_timings_leave_a_record(part: str, tmp_path: Path) -> None:
    assert training_steps.main([part, "--quick", "--results", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / f"training_steps_{part}_quick.json").read_text())["rows"]
    assert {"eager", "torch.compile", "torchjanus"} <= {row["contender"] for row in rows}
