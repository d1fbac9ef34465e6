"""``torchjanus run`` under torchrun: one report on all ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torchjanus.cli.ranks import with_other_ranks
from torchjanus.cli.summary import Summary, print_report

SCRIPT = """
import torch, torch.distributed as dist, torchjanus
dist.init_process_group("gloo")
net = torch.nn.Linear(3, 2)
dist.broadcast(net.weight.data, 0), dist.broadcast(net.bias.data, 0)
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

@torchjanus.speculate
def step(x):
    optimizer.zero_grad()
    model(x).square().sum().backward()
    optimizer.step()

for _ in range(12):
    step(torch.randn(4, 3))
step.wait()
for _ in range(4):
    step(torch.randn(4, 3))
dist.destroy_process_group()
"""
COUNTS = {"speculated": 3, "calls": 9, "watched": 4, "missed": 1, "violated": 1, "imperative": 2}


def test_a_report_has_a_line_on_each_rank(capsys: pytest.CaptureFixture[str]) -> None:
    other = {
        "functions": [{"name": "step", "statistics": COUNTS}],
        "communicated": {"collectives": 7, "bytes": 2_000_000, "seconds": 0.5},
    }
    spent = {"collectives": 0, "bytes": 0, "seconds": 0.0}
    print_report(Summary("a.py", (), 0, 1.0, (), communicated=spent, ranks=(other, None)), False)
    lines = capsys.readouterr().err.splitlines()[-5:]
    assert lines == [
        "ranks: above is rank 0 of 3",
        "  rank 0  0 collectives by graphs, 0.0 MB, 0.00 s in them",
        "  rank 1  step: 3 of 9 served, 4 watched, 1 missed, 1 violated, 2 imperative",
        "  rank 1  7 collectives by graphs, 2.0 MB, 0.50 s in them",
        "  rank 2  has sent no report",
    ]


def test_one_process_reports_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    summary = Summary("a.py", (), 0, 1.0, ())
    assert with_other_ranks(summary) is summary


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")
def test_two_ranks_print_one_report(tmp_path: Path) -> None:
    script, data = tmp_path / "train.py", tmp_path / "report.json"
    script.write_text(SCRIPT)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "torchjanus", "run"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, "--json", str(data), str(script)],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stderr.count("torchjanus: report on") == 1
    (other,) = json.loads(data.read_text())["ranks"]
    assert other["functions"][0]["statistics"]["speculated"] >= 4
    assert "  rank 1  step: " in done.stderr
    assert "each rank would choose for itself" in other["functions"][0]["explanation"]
