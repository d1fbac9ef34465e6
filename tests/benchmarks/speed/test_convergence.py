"""The trainings are speculated with eager's results after every step; what is reported of their runs is what they
did."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchjanus
from benchmarks.speed.convergence import PROGRAMS
from benchmarks.speed.convergence.__main__ import main, train
from benchmarks.speed.convergence.base import Recipe
from benchmarks.speed.convergence.contender import nudge, run
from benchmarks.speed.convergence.pictures import distance
from benchmarks.speed.convergence.report import faults, keep, plot, rows_of, table
from tests.forked import run_forked
from tests.programs import harness

STEPS = 24
# Reading the syntax trees of the library takes some seconds.
EACH = [pytest.param(name, marks=pytest.mark.slow if name in ("treelstm", "gan", "ppo") else ()) for name in PROGRAMS]


def observed(name: str, jit: Callable[[Callable[..., Any]], Callable[..., Any]]) -> harness.Run:
    """All that can be seen of a training after each step, and how good it is at the end."""
    random.seed(3)
    np.random.seed(3)
    training = PROGRAMS[name].make(jit, 3, small=True)
    seen: list[dict[str, Any]] = []
    for _ in range(STEPS):
        loss = next(training.losses)
        generators = (torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state()))
        seen.append({"loss": ("float", repr(loss)), "random": generators, "state": harness.snapshot(training.state)})
    seen.append({"metric": ("float", repr(training.metric()))})
    return harness.Run(seen, [])


@pytest.mark.parametrize("name", EACH)
def test_every_step_is_eagers(name: str) -> None:
    made: list[torchjanus.Speculated[..., Any]] = []

    def jit(step: Callable[..., Any]) -> Callable[..., Any]:
        made.append(torchjanus.speculate(step, executor="replay"))
        return made[-1]

    eager, other = observed(name, lambda step: step), observed(name, jit)
    assert harness.compare(eager, other, PROGRAMS[name].close) == []
    for step in made:
        assert [event.text for event in step.events if event.kind == "fault"] == []
        assert step.refusals == []
    assert made[-1].statistics().speculated >= STEPS // 2, torchjanus.explain(made[-1], detail=True)


@pytest.mark.parametrize("name", EACH)
def test_measuring_leaves_everything_as_it_was(name: str) -> None:
    measured, left = (PROGRAMS[name].make(lambda step: step, 0, small=True) for _ in range(2))
    torch.manual_seed(1)
    first = [(next(measured.losses), measured.metric())[0] for _ in range(3)]
    torch.manual_seed(1)
    assert first == [next(left.losses) for _ in range(3)]
    assert harness.snapshot(measured.state) == harness.snapshot(left.state)


def test_a_nudge_is_one_bit_of_one_weight() -> None:
    one, other = (PROGRAMS["gan"].make(lambda step: step, 0, small=True).state for _ in range(2))
    nudge(other)
    (changed,) = (
        (a.detach() != b.detach()).sum().item()
        for a, b in zip(one[0].parameters(), other[0].parameters(), strict=True)
        if not torch.equal(a, b)
    )
    assert changed == 1


def test_the_distance_is_frechets() -> None:
    chance = np.random.default_rng(0)
    points = chance.normal(size=(500, 3))
    assert distance(points, points) == pytest.approx(0, abs=1e-9)
    assert distance(points + 2, points) == pytest.approx(3 * 2**2)
    # Equal means, covariances of 1 and 4 times the same: the trace of (1 + 4 - 2 * 2) times it.
    points -= points.mean(0)
    assert distance(points, 2 * points) == pytest.approx(np.trace(np.cov(points, rowvar=False)))


def reported(losses: list[float], clock: list[float], metrics: list[tuple[int, float]], **more: Any) -> dict[str, Any]:
    return {"losses": losses, "clock": clock, "metrics": metrics, "served": None, "entries": None, "notes": [], **more}


def outcome() -> tuple[Recipe, dict[str, list[dict[str, Any]]]]:
    recipe = PROGRAMS["convnet"]
    good = [(0, 0.1), (2, 0.5), (4, recipe.target)]
    runs = {
        "eager": [
            reported([4.0, 2.0, 1.0, 1.0], seconds, good) for seconds in ([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0])
        ],
        "replay": [reported([4.0, 2.0, 1.0, 1.0], [1.0, 2.0, 2.5, 3.0], good, served=0.5)],
        "torchjanus": [reported([4.0, 2.0, 1.0, 1.4], [1.0, 1.5, 1.6, 1.7], [(0, 0.1), (2, recipe.target), (4, 0.2)])],
        "compile": [{"failure": "RuntimeError: no"}],
    }
    return recipe, runs


def test_figures_are_what_they_say() -> None:
    recipe, runs = outcome()
    eager, replay, janus, broken = rows_of(recipe, runs)
    assert (eager.total, eager.target_step, eager.target_time, eager.times_eager) == (6.0, 4, 6.0, 1.0)
    assert eager.late == pytest.approx(1500.0)
    assert (replay.bitwise, replay.difference, replay.within, replay.times_eager) == (True, 0.0, None, 2.0)
    assert (janus.bitwise, janus.within, janus.target_step, janus.times_eager) == (False, 3, 2, 4.0)
    assert janus.difference == pytest.approx(0.1)
    assert janus.final == 0.2
    assert (broken.note, broken.total) == ("RuntimeError: no", None)
    assert table(recipe, [eager, replay, janus, broken]).row_count == 4
    assert faults(recipe, [eager, replay, janus, broken], runs) == []
    runs["replay"][0]["losses"][2] += 1e-9
    assert faults(recipe, rows_of(recipe, runs), runs) == ["convnet: the losses of replay are not bitwise eager's"]
    runs["replay"][0]["losses"][2] += 1e-3
    runs["eager"][1]["losses"][3] = 0.0
    assert len(faults(recipe, rows_of(recipe, runs), runs)) == 2


def test_records_become_a_plot(tmp_path: Path) -> None:
    recipe, runs = outcome()
    file = tmp_path / "convergence.json"
    for name in ("convnet", "ppo"):
        keep(PROGRAMS[name], rows_of(recipe, runs), runs, file)
    content = json.loads(file.read_text())["programs"]
    assert list(content) == ["convnet", "ppo"]
    assert content["ppo"]["curves"]["eager"] == [[0, 0.0, 0.1, None], [2, 2.0, 0.5, 3.0], [4, 4.0, recipe.target, 1.0]]
    assert content["ppo"]["curves"]["compile"] == []
    assert plot(file).read_bytes().startswith(b"\x89PNG")


def test_a_run_ends_with_its_time() -> None:
    made = run("ppo", "eager", 1000, 4, 0.0, small=True)
    assert len(made["losses"]) == len(made["clock"]) == 1


def test_a_contender_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", run_forked)
    reported = train(PROGRAMS["ppo"], "no such", 2, 1, 60, small=True)
    assert "Error" in reported["failure"]


@pytest.mark.slow
def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--only", "ppo", "--contenders", "eager", "replay", "nudged"]) == 0
    out = capsys.readouterr().out
    assert "replay" in out
    assert "bitwise" in out
