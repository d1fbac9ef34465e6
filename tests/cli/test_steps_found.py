"""``torchjanus run`` finds the steps of scripts that mark none, and changes nothing that they do."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.forked import python

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import argparse, sys, time
import torch
from torch import nn
import helper

def train(model, loader, optimizer, epoch):
    total = 0.0
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        if number % 10 == 9:
            print(f"epoch {epoch} batch {number}: {loss.item():.9f}")
    return total / (number + 1), loss

def test(model, data):
    right = 0
    with torch.no_grad():
        for x, y in data:
            right += (model(x) - y).abs().lt(0.1).sum().item()
    return right

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    torch.manual_seed(0)
    data = [(x, x.sum(1, keepdim=True)) for x in torch.randn(40, 8, 4)]
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for epoch in range(options.epochs):
        mean, last = train(model, data, optimizer, epoch)
        print(f"{mean:.9f} {last.item():.9f} {test(model, data)}")
    print(helper.fit(model, data))
    print(train.__name__, train.__doc__, __name__, sys.argv)

if __name__ == "__main__":
    main()
"""
HELPER = """
import torch

class Fitter:
    def update(self, model, x, y):
        model.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

def fit(model, data):
    fitter = Fitter()
    fitter.optimizer = torch.optim.SGD(model.parameters(), 0.01)
    return [round(fitter.update(model, x, y), 9) for x, y in data]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A script and a module beside it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text(HELPER)
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the interpreter in the folder."""
    paths = os.pathsep.join([str(folder), str(ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))])
    return python(command, folder, {**os.environ, "PYTHONPATH": paths})


@pytest.mark.parametrize("named", [["script.py"], ["-m", "script"]], ids=["script", "module"])
def test_a_script_that_marks_nothing_is_speculated_and_prints_the_same(folder: Path, named: list[str]) -> None:
    plain = run(folder, *named, "--epochs", "3")
    command = [
        "-m",
        "torchjanus",
        "run",
        "--after",
        "0",
        "--executor",
        "replay",
        "--json",
        "report.json",
        *named,
        "--epochs",
        "3",
    ]
    done = run(folder, *command)
    assert done.returncode == plain.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    report = json.loads((folder / "report.json").read_text())
    served = {one["name"]: one["statistics"]["speculated"] for one in report["functions"]}
    assert served.keys() == {"train", "test", "Fitter.update"}
    assert served["train"] > 80 and served["test"] > 80 and served["Fitter.update"] > 30
    assert report["left"] == []


def test_a_dry_run_runs_nothing_and_says_what_would_be_taken(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT + "\ndef odd(data):\n for x in data:\n  x.backward(); x.step(); yield x\n")
    done = run(folder, "-m", "torchjanus", "run", "--dry-run", "--not", "test", "script.py")
    assert done.returncode == 0, done.stderr
    assert "would speculate on: training loop of train (line 9)" in done.stdout
    assert "left to Python" in done.stdout and "evaluation loop of test" in done.stdout
    assert "it is suspended in the middle (yield or await)" in done.stdout


def test_an_error_in_a_step_is_shown_at_its_line(folder: Path) -> None:
    (folder / "script.py").write_text(SCRIPT.replace("total += loss.item()", "total += loss.item() / (number - 5)"))
    plain = run(folder, "script.py")
    done = run(folder, "-m", "torchjanus", "run", "--no-report", "--after", "0", "--executor", "replay", "script.py")
    assert done.returncode == plain.returncode == 1
    assert done.stdout == plain.stdout
    assert done.stderr.splitlines()[-1] == plain.stderr.splitlines()[-1]
    assert "total += loss.item() / (number - 5)" in done.stderr
    assert "torchjanus/" not in done.stderr


def test_a_module_that_is_not_there(folder: Path) -> None:
    done = run(folder, "-m", "torchjanus", "run", "-m", "nowhere")
    assert done.returncode == 2
    assert done.stderr == "torchjanus: there is no module nowhere with a source file to run\n"
