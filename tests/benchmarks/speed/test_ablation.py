"""The stages of the ablation are what they say: which loops are nodes, what runs the graph, on how many threads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.speed import ablation
from benchmarks.speed.papers.contest import Outcome, contest, rows_of
from torchjanus.graph.loops.roll import roll
from torchjanus.graph.lowering import lower


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    """Put back what a stage switches: each has a process of its own elsewhere."""
    before = roll.WORTH, lower.roll, torch.get_num_threads()
    yield
    roll.WORTH, lower.roll = before[:2]
    torch.set_num_threads(before[2])


def losses(kind: str) -> tuple[ablation.Staged, list[float]]:
    contender = ablation.Staged("lstm", kind, small=True)
    return contender, contender.run(12)["losses"]


def loops(contender: ablation.Staged) -> set[int]:
    """How many loop nodes each of the graphs has."""
    assert contender.janus is not None
    graphs = [entry.engine.lowered.graph.graph for entry in contender.janus.entries]
    return {sum("torchjanus.loop" in str(node.target) for node in graph.nodes) for graph in graphs}


@pytest.mark.slow
def test_stages_compute_what_eager_does() -> None:
    _, eager = losses("eager")
    base, ours = losses("base")
    assert ours == eager
    assert min(loops(base)) > 0
    unrolled, ours = losses("+unrolling")
    assert ours == eager
    assert loops(unrolled) == {0}
    for contender in (base, unrolled):
        assert contender.settled()
        assert contender.janus is not None
        assert contender.janus.executor == "replay"


def test_threads_are_the_stages() -> None:
    ablation.Staged("a3c", "eager, 2 threads", small=True)
    assert torch.get_num_threads() == 2
    ablation.Staged("a3c", "base", small=True)
    assert torch.get_num_threads() == 1


def test_each_stage_adds_to_the_one_before() -> None:
    stages = ablation.STAGES
    assert [stages[kind].executor for kind in ("base", "+unrolling", "+specialisation", "+parallel")] == [
        "replay", "replay", "inductor", "inductor",
    ]  # fmt: skip
    assert stages["+parallel"].threads == stages["eager, 2 threads"].threads == 2


def test_records_become_a_plot(tmp_path: Path) -> None:
    reported = {"peak_mib": 1.0}
    outcomes = [
        Outcome(kind, [1.0] * 4, times=[seconds] * 4, blocks=[2 * seconds] * 2, losses=[1.0], reported=reported)
        for kind, seconds in (("eager", 0.2), ("base", 0.1))
    ]
    file = tmp_path / "ablation.json"
    for name in ("lenet", "lm"):
        ablation.keep(name, rows_of(name, outcomes), file)
    content = json.loads(file.read_text())["programs"]
    assert content["lm"]["rows"]["base"]["times_eager"] == pytest.approx(2.0)
    assert ablation.plot(file).read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_contest_of_stages() -> None:
    kinds = ("eager", "base", "+unrolling")
    outcomes = contest("a3c", 2, 120, 120, kinds, True, "benchmarks.speed.ablation", ("base", "+unrolling"))
    for row in rows_of("a3c", outcomes):
        assert row.difference == 0.0, row.note
