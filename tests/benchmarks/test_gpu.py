"""The script for a GPU does all its work on a CPU, too, and says where there is no CUDA."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.contenders import CONTENDERS, idle_share
from benchmarks.gpu.programs import PROGRAMS, Maker


def here(seconds: float = 600.0) -> Namespace:
    return Namespace(device="cpu", short=True, out=None, seconds=seconds, begun=0.0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_cuda_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu"])
    assert gpu.main() == 2
    assert len(capsys.readouterr().out.splitlines()) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_made_alike(name: str) -> None:
    one, other = (PROGRAMS[name](Maker("cpu", short=True)) for _ in range(2))
    state = torch.get_rng_state()
    made = [job.step(*job.batches[0]) for job in (one,)]
    torch.set_rng_state(state)
    made += [job.step(*job.batches[0]) for job in (other,)]
    assert torch.equal(*made)
    assert torch.isfinite(made[0])


def test_an_item_compares_with_eager() -> None:
    found = gpu.item("equal lenet", here())
    assert found["bitwise"]
    assert found["runs"] == ["cudagraph"]
    assert not gpu.differs({"item": "equal lenet", **found})
    assert gpu.differs({"item": "", **found, "bitwise": False, "largest_difference": 1.0})


@pytest.mark.slow
def test_the_record_is_written_after_each_item(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def run_item(name: str, options: Any, seconds: float) -> dict[str, Any]:
        written.append((tmp_path / "gpu.json").exists())
        return {"item": name, "took_s": 1.0, **gpu.item(name, Namespace(**{**vars(options), "seconds": seconds}))}

    monkeypatch.setattr(gpu, "run_item", run_item)
    command = ["gpu", "--device", "cpu", "--short", "--budget", "900", "--out", str(tmp_path), "equal lenet", "lenet"]
    monkeypatch.setattr(sys, "argv", command)
    assert gpu.main() == 0
    assert written == [False, True]
    record = json.loads((tmp_path / "gpu.json").read_text())
    lenet = record["items"][1]
    assert {*CONTENDERS} <= {*lenet}
    assert lenet["torchjanus cudagraph"]["times_eager"] > 0
    assert lenet["by hand"] == {"skipped": "without CUDA"}
    assert lenet["equality"]["bitwise"]


def test_idle_time_is_what_no_work_covers() -> None:
    assert idle_share([]) is None
    assert idle_share([(0, 4), (2, 6), (8, 10)]) == pytest.approx(0.2)
