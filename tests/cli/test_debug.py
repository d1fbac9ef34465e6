"""``torchjanus debug``: the stages of a script's steps are printed, and what is wrong is said."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.forked import python
from torchjanus import cli
from torchjanus.graph.passes import passes_table

STEP = """\
import sys
import torch
import torchjanus

@torchjanus.speculate
def double(x):
    return x * 2

@torchjanus.speculate
def replaces(x):
    x.set_(torch.ones(2))
    return x

@torchjanus.speculate
def never(x):
    return x

if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    for n in range(5):
        double(torch.zeros(2))
        if "refuse" in sys.argv:
            replaces(torch.zeros(2))
"""


def debugged(folder: Path, *arguments: str, text: str = STEP) -> subprocess.CompletedProcess[str]:
    (folder / "step.py").write_text(text)
    return python(["-m", "torchjanus", "debug", "step.py", *arguments], folder)


def test_every_stage_is_printed(tmp_path: Path) -> None:
    done = debugged(tmp_path, "--function", "double", "--", "refuse")
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.startswith("arguments ['refuse']\n==== double (")
    assert "replaces" not in done.stdout
    at = [done.stdout.index(text) for text in ("source\n", "rewritten_source\n", "watched_run\n", "generalize\n")]
    assert at == sorted(at)
    for text in (
        "return x * 2",
        "hook.",
        "step.py:7  return x * 2",
        "aten.mul.Tensor",
        "x is float32[2]",
        "return  %",
    ):
        assert text in done.stdout
    assert "drop_dead_stores: unchanged since watched_run" in done.stdout


def test_one_pass_is_printed_and_a_refusal_is_reported(tmp_path: Path) -> None:
    done = debugged(tmp_path, "--pass", "trace_graph", "--", "refuse")
    assert done.returncode == 0  # there is a graph of one of them
    assert "trace_graph" in done.stdout
    assert "watched_run" not in done.stdout
    assert done.stderr.startswith("torchjanus: no graph was made of replaces: ")
    assert "step.py:11" in done.stderr


def test_a_step_that_is_not_compiled_says_why(tmp_path: Path) -> None:
    done = debugged(tmp_path, "--function", "replaces", "--", "refuse")
    assert done.returncode == 1
    assert "watched_run" in done.stdout
    assert "torchjanus: no graph was made of replaces: " in done.stderr


def test_a_script_that_calls_no_step(tmp_path: Path) -> None:
    done = debugged(tmp_path, text="import torchjanus\nstep = torchjanus.speculate(lambda x: x)\n")
    assert done.returncode == 1
    assert done.stderr.startswith("torchjanus: step.py calls no speculated function. It makes <lambda>")


def test_a_function_that_is_not_there(tmp_path: Path) -> None:
    done = debugged(tmp_path, "--function", "triple")
    assert done.returncode == 1
    assert done.stderr == (
        "torchjanus: step.py calls no speculated function triple: there are double, replaces, never\n"
    )


def test_what_is_asked_for_wrongly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["debug", str(tmp_path / "gone.py")]) == 2
    assert "there is no file" in capsys.readouterr().err
    assert cli.main(["debug", "step.py", "--pass", "polish"]) == 2
    assert "there is no pass polish: there are source, " in capsys.readouterr().err
    assert cli.main(["debug"]) == 2
    assert "name a script" in capsys.readouterr().err


def test_passes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["debug", "--list-passes"]) == 0
    assert capsys.readouterr().out == passes_table()
