"""A saved step: another process, user and folder begin with what was learnt and compiled."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import torchjanus
from tests.runtime.report import programs
from torchjanus.execute.compiled.store import VARIABLE
from torchjanus.runtime.runs import lowering_cache

ROOT = Path(__file__).resolve().parents[2]


def home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a store of its own in a folder."""
    folder.mkdir(mode=0o700, exist_ok=True)
    monkeypatch.setenv(VARIABLE, str(folder))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))


@pytest.fixture
def lowerings(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    made: list[object] = []
    real = lowering_cache.lower_whole
    monkeypatch.setattr(lowering_cache, "lower_whole", lambda program: made.append(program) or real(program))
    return made


def train(step: Any, calls: int = 8) -> list[float]:
    torch.manual_seed(0)
    model = programs.LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for number in range(calls):
        optimizer.param_groups[0]["lr"] = 0.1 / (number + 1)
        size = 8 if number < calls - 2 else 6
        found.append(step(model, optimizer, torch.randn(size, 1, 8, 8), torch.randint(10, (size,)), "plain").item())
    return found


def save_in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """Train a step with a store in the folder, and save it there. Returns the file and its digest."""
    home(folder, monkeypatch)
    step = torchjanus.speculate(programs.train_step, executor="replay")
    train(step)
    path = folder / "step.janus"
    return path, step.save(path)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A saved step in its folder, made once."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        return save_in(tmp_path_factory.mktemp("saved") / "one", monkeypatch)


@pytest.fixture
def saved(original: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, str]:
    """A copy of it with its store, which is the store in use."""
    path, digest = original
    shutil.copytree(path.parent, tmp_path / "one")
    home(tmp_path / "one", monkeypatch)
    return tmp_path / "one" / path.name, digest


def test_another_store_begins_where_this_one_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lowerings: list[object]
) -> None:
    path, _ = save_in(tmp_path / "one", monkeypatch)
    assert lowerings
    home(tmp_path / "other", monkeypatch)
    lowerings.clear()
    step = torchjanus.load(path, programs.train_step, executor="replay")
    assert train(step) == train(programs.train_step)
    counts = step.statistics()
    # The first call makes the optimizer's state, which is another path; the second is watched to check.
    assert (counts.watched, counts.speculated, counts.missed) == (2, 6, 0), str(step.events)
    assert lowerings == []


def test_another_program_learns_as_without_the_file(saved: tuple[Path, str], lowerings: list[object]) -> None:
    path, _ = saved
    lowerings.clear()
    step = torchjanus.load(path, programs.many, executor="replay")
    for _ in range(5):
        x = torch.randn(4)
        assert torch.equal(step(x), programs.many(x))
    assert (step.statistics().watched, len(lowerings)) == (3, 1)


def test_the_file_has_no_pickle_that_loading_runs(
    saved: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = saved
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
        names = archive.namelist()
    assert manifest["name"] == "train_step"
    assert {"images.shape[0]", "labels.shape[0]", "optimizer.param_groups[0]['lr']"} <= {*manifest["varying"]}
    assert {f"entries/{key}" for key in manifest["graphs"]} <= {*names}
    home(tmp_path / "other", monkeypatch)

    def forbidden(*_: Any) -> Any:
        raise AssertionError("unpickled while loading")

    monkeypatch.setattr(pickle, "loads", forbidden)
    torchjanus.load(path, programs.train_step)


def test_a_file_that_others_may_have_written_needs_its_digest(saved: tuple[Path, str]) -> None:
    path, digest = saved
    path.chmod(0o666)
    with pytest.raises(torchjanus.Unsupported, match=r"others may write to.*digest="):
        torchjanus.load(path, programs.train_step)
    torchjanus.load(path, programs.train_step, digest=digest)
    with pytest.raises(torchjanus.Unsupported, match="not the file that was saved"):
        torchjanus.load(path, programs.train_step, digest="0" * 64)


@pytest.mark.parametrize("at", [10, -100])
def test_a_file_that_was_changed_is_not_what_was_saved(saved: tuple[Path, str], at: int) -> None:
    path, digest = saved
    contents = bytearray(path.read_bytes())
    contents[at] ^= 1
    path.write_bytes(contents)
    with pytest.raises(torchjanus.Unsupported, match="not the file that was saved"):
        torchjanus.load(path, programs.train_step, digest=digest)


def test_what_is_no_saved_step_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home(tmp_path / "one", monkeypatch)
    path = tmp_path / "one" / "step"
    path.write_bytes(b"nothing")
    path.chmod(0o600)
    with pytest.raises(torchjanus.Unsupported, match="no saved step"):
        torchjanus.load(path, programs.train_step)
    with pytest.raises(FileNotFoundError):
        torchjanus.load(tmp_path / "missing", programs.train_step)


def test_what_differs_is_logged(
    saved: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = saved
    monkeypatch.setattr(torch, "__version__", "9.9")
    torchjanus.load(path, programs.train_step)
    assert "was saved with another PyTorch: graphs are made again" in caplog.text


def test_there_is_nothing_to_save_without_graphs_or_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home(tmp_path / "one", monkeypatch)
    step = torchjanus.speculate(programs.train_step, executor="replay")
    with pytest.raises(torchjanus.Unsupported, match="no graph of train_step yet"):
        step.save(tmp_path / "step")
    monkeypatch.setenv(VARIABLE, "")
    train(step)
    with pytest.raises(torchjanus.Unsupported, match="no store"):
        step.save(tmp_path / "step")


SCRIPT = """\
import sys, torch, torchjanus
import model_code
loading = len(sys.argv) > 2
if loading:
    step = torchjanus.load(sys.argv[1], model_code.step, digest=sys.argv[2])
else:
    step = torchjanus.speculate(model_code.step)
model, optimizer = model_code.made()
losses = []
for number in range(60):
    losses.append(step(model, optimizer, torch.full((4, 64), number / 60)).item())
    if number in (4, 10, 20):
        step.wait()
counts = step.statistics()
print("watched", counts.watched)
print("notes", *[note for entry in step.entries for note in entry.engine.notes], sep=" | ")
print("loss", losses[-1])
if not loading:
    print("digest", step.save(sys.argv[1]))
"""

CODE = """\
import torch

def made():
    torch.manual_seed(0)
    model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(3)])
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = torch.tanh(model(x)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
"""


@pytest.mark.slow
def test_another_home_folder_and_process_neither_lower_nor_compile(tmp_path: Path) -> None:
    def run(name: str, *arguments: str) -> dict[str, str]:
        folder = tmp_path / name
        (folder / "cache").mkdir(parents=True)
        for part in (folder, folder / "cache"):
            part.chmod(0o700)
        (folder / "model_code.py").write_text(CODE)
        (folder / "train.py").write_text(SCRIPT)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOME": str(folder),
            "OMP_NUM_THREADS": "1",
            VARIABLE: str(folder / "cache"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
        }
        done = subprocess.run(
            [sys.executable, "train.py", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return dict(re.findall(r"^(\w+) (.*)$", done.stdout, re.MULTILINE))

    first = run("one", "step.janus")
    assert "inductor compiled the graph" in first["notes"]
    (tmp_path / "moved").mkdir()
    moved = shutil.copy(tmp_path / "one" / "step.janus", tmp_path / "moved" / "step.janus")
    shutil.rmtree(tmp_path / "one")
    second = run("other", str(moved), first["digest"])
    assert "inductor loaded what an earlier run had compiled" in second["notes"]
    assert int(second["watched"]) <= 2 < int(first["watched"])
    assert abs(float(second["loss"]) - float(first["loss"])) < 1e-5
