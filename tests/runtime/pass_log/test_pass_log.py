"""What ``TORCHJANUS_DUMP`` writes, and that it changes nothing."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.runtime.pass_log import files
from torchjanus.runtime.pass_log.files import Folder, safe_name
from torchjanus.runtime.pass_log.pass_log import VARIABLE, PassLog
from torchjanus.tracegraph.text.parsing import parse_graph
from torchjanus.tracegraph.verify import verify


def training() -> tuple[Any, Callable[[], Any], list[float]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []

    def train_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        return loss

    step = torchjanus.speculate(train_step, executor="replay")
    return step, lambda: step(torch.randn(8, 4), torch.randint(0, 2, (8,))), losses


def test_a_training_step_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, call, expected = training()
    for _ in range(6):
        call()
    monkeypatch.setenv(VARIABLE, str(tmp_path / "passes"))
    step, call, losses = training()
    for _ in range(6):
        call()
    assert losses == expected
    assert dataclasses.asdict(step.statistics()) == dataclasses.asdict(plain.statistics())
    (folder,) = (tmp_path / "passes").iterdir()
    assert folder.name == "test_pass_log.training._locals_.train_step"
    names = sorted(path.name for path in folder.iterdir())
    assert [int(name[:2]) for name in names] == list(range(len(names)))
    texts = {path.stem[3:]: path.read_text() for path in folder.iterdir()}
    assert "loss = torch.nn.functional.cross_entropy(model(x), y)" in texts["source"]
    assert "hook." in texts["rewritten_source"]
    trace = texts["watched_run"]
    assert re.search(r"# test_pass_log\.py:\d+  loss\.backward\(\)", trace)
    assert re.search(r"%\d+: f32\[8, 2\] = F\.linear\(%\d+, %\d+, %\d+\)", trace)
    assert '(op "Tensor.backward"' in texts["tree"]
    verify(parse_graph(texts["tree"]))
    assert texts["drop_dead_stores"] == "unchanged since watched_run\n"
    program = texts["generalize"]
    assert re.search(r"%\d+: f32\[8, 4\]  x", program)
    assert re.search(r"# test_pass_log\.py:\d+  loss\.backward\(\)", program)
    assert "torch.Tensor.backward(%" in program
    assert 'f32[8, 2]" = torch.ops.aten.addmm.default(' in texts["graph"]
    assert "x is float32[8, 4]" in texts["guards"]
    commit = texts["commit"].splitlines()
    assert any(line.startswith("update  optimizer.param_groups[0]['params'][0] in place") for line in commit)
    assert any(re.fullmatch(r"write   losses\.append\(%\d+\.item\(\)\)", line) for line in commit)
    assert any(line.startswith("return  %") for line in commit)


def test_nothing_is_kept_unless_asked_for() -> None:
    step, _, _ = training()
    assert step.pass_log is None


def test_the_log_of_a_refused_step_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))

    def replaces(x: torch.Tensor) -> torch.Tensor:
        x.set_(torch.ones(2))
        return x

    step = torchjanus.speculate(replaces, executor="replay")
    for _ in range(2):
        step(torch.zeros(2))
    log = step.pass_log
    assert log is not None
    assert not log.complete
    assert log.refusals
    assert log.refusals[0] in log.records[-1].text


def test_names_are_safe_for_file_systems() -> None:
    assert safe_name("step.<lambda>") == "step._lambda"
    assert safe_name("../../etc/passwd") == "etc_passwd"
    assert safe_name("modèle/pas à pas") == "mod_le_pas_pas"
    assert safe_name("...") == "function"
    assert len(safe_name("x" * 500)) < 100


def test_two_functions_of_one_name_have_two_folders(tmp_path: Path) -> None:
    assert [Folder(tmp_path, "step").path.name for _ in range(2)] == ["step", "step-2"]


def test_files_of_an_earlier_run_give_way(tmp_path: Path) -> None:
    (tmp_path / "step").mkdir()
    for name in ("07-fold_loops.txt", "notes.txt"):
        (tmp_path / "step" / name).write_text("old")
    Folder(tmp_path, "step").write("00-source.txt", "new")
    assert sorted(path.name for path in (tmp_path / "step").iterdir()) == ["00-source.txt", "notes.txt"]


def test_a_folder_that_cannot_be_written_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "passes"))
    monkeypatch.setattr(files, "_reported", False)
    step, call, losses = training()
    with caplog.at_level(logging.WARNING, "torchjanus"):
        for _ in range(5):
            call()
    assert len(losses) == 5
    assert step.statistics().speculated == 2
    assert len([record for record in caplog.records if "passes cannot be written" in record.message]) == 1


def test_a_fault_of_a_printer_disturbs_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: PassLog, *args: Any) -> None:
        raise ValueError("no such text")

    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(PassLog, "_add", broken)
    step, call, _ = training()
    with caplog.at_level(logging.WARNING, "torchjanus"):
        for _ in range(5):
            call()
    assert step.statistics().speculated == 2
    assert [record.message for record in caplog.records] == [
        "training.<locals>.train_step: passes cannot be printed: ValueError: no such text"
    ]
