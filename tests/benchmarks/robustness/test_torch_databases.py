"""PyTorch's own databases as programs: a share of them here, all in the slow tests; what differs is seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.robustness.torch_databases import __main__ as command
from benchmarks.robustness.torch_databases import modules, ops, optimizers
from benchmarks.robustness.torch_databases.__main__ import DATABASES, counted, main, recorded
from benchmarks.robustness.torch_databases.playing import CALLS, WATCHED, Case, Looking, copy_of, difference, outcomes
from tests.forked import ROOT, python

# Strides that differ from formulas, forms in place, layouts, random numbers, decompositions.
OPERATORS = """add copysign div.floor_rounding logaddexp xlogy nn.functional.max_pool1d nn.functional.batch_norm
nn.functional.huber_loss polygamma.polygamma_n_1 clamp cumsum reshape transpose index_put sum matmul addmm
nn.functional.conv2d sort where max.reduction_no_dim narrow_copy""".split()


def _every(nth: int, names: list[str]) -> list[Any]:
    """One of so many is for each run; all of them are among the slow tests."""
    return [pytest.param(name, marks=pytest.mark.slow if number % nth else ()) for number, name in enumerate(names)]


@pytest.mark.parametrize("name", _every(3, OPERATORS))
def test_operators_do_what_they_do_in_eager(name: str) -> None:
    _check("ops", name, list(ops.cases(name, 1, "float32")))


# Formulas of gradients that look at values, operators that check them, rows by numbers, results without gradients.
RESULTS = """masked_fill prod lu_solve nn.functional.embedding _segment_reduce.lengths norm linalg.qr
nn.functional.group_norm gather max.reduction_no_dim nn.functional.ctc_loss std""".split()


@pytest.mark.parametrize("name", _every(3, RESULTS))
def test_gradients_that_a_caller_asks_for_are_eagers(name: str) -> None:
    rows = [outcome.as_data() for outcome in outcomes(list(ops.cases(name, 2, "float32 result")))]
    assert rows
    assert counted("ops", rows, [name], whole=False)["unexplained"] == []


@pytest.mark.parametrize("name", _every(3, ["nn.Conv2d", "nn.BatchNorm1d", "nn.TransformerEncoderLayer"]))
def test_modules_do_what_they_do_in_eager(name: str) -> None:
    _check("modules", name, list(modules.cases(name, 1, "float32")))


@pytest.mark.parametrize("name", _every(2, ["SGD", "RMSprop"]))
def test_optimizers_do_what_they_do_in_eager(name: str) -> None:
    _check("optimizers", name, list(optimizers.cases(name, 1, "for")))


PARTS = 20


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_what_the_record_says_holds(part: int) -> None:
    """All entries that have been gone through, as they were: the record only grows."""
    for database, record in recorded().items():
        names = record["names"][part::PARTS]
        how = ["--way", record["way"], *([] if record["limit"] is None else ["--limit", str(record["limit"])])]
        assert not names or main([database, "--only", *names, *how]) == 0


def _check(database: str, name: str, cases: list[Case]) -> None:
    rows = [outcome.as_data() for outcome in outcomes(cases)]
    assert any(row["served"] == CALLS - WATCHED for row in rows)
    assert counted(database, rows, [name], whole=False)["unexplained"] == []


def test_every_entry_is_named_once_in_a_shard() -> None:
    assert all(len(database.names()) > 10 for database in DATABASES.values())


def _wrong(a: torch.Tensor) -> Iterator[torch.Tensor]:
    yield a.clone()
    yield a.double()
    yield a.t().contiguous().t()
    yield a.clone().requires_grad_()
    yield a + 1


def test_what_differs_is_seen() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    reported = Looking().at(tensor)
    differ = [difference(Looking().at(other), reported) for other in _wrong(tensor)]
    assert differ[0] == ""
    assert all(differ[1:])
    half = tensor[0]
    assert difference(Looking().at([tensor, half]), Looking().at([tensor, half.clone()]))
    nan = torch.tensor([float("nan"), 0.0])
    assert not difference(Looking().at(nan), Looking().at(nan.clone()))
    assert difference(Looking().at(nan), Looking().at(torch.tensor([float("nan"), -0.0])))


def test_copies_lie_as_the_tensors_do() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    for one in (tensor.t(), tensor[:, ::2], tensor[0].expand(3, 4)):
        copied = copy_of((one, [one]))
        assert copied[0] is copied[1][0]
        assert copied[0].stride() == one.stride()
        assert torch.equal(copied[0], one)
        assert copied[0].data_ptr() != one.data_ptr()


def test_a_difference_is_reported_with_its_call() -> None:
    calls = []

    def part(call: list[int]) -> int:
        calls.append(0)
        return len(calls)

    (found,) = outcomes([Case("made up", "counting", 0, lambda: (part, ([1],), None))])
    assert (found.kind, found.reported) == ("not comparable", "eager does not repeat itself")


class Elsewhere:
    """Stands for the process that goes through entries: it is forked, and has ended."""

    def __init__(self, command: list[str], **_: Any) -> None:
        done = python(command[1:], ROOT)
        self.stdout, self.returncode = iter(done.stdout.splitlines()), done.returncode

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *_: object) -> None: ...

    def kill(self) -> None: ...


def test_the_command_tells_the_counts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "subprocess", SimpleNamespace(Popen=Elsewhere, PIPE=None))
    keep = tmp_path / "rows.jsonl"
    asked = ["ops", "--only", "neg", "t", "--limit", "1", "--way", "float32 forward", "--keep", str(keep)]
    assert main(asked) == 0
    assert "2 entries, 2 samples run, 2 equal, 2 served (4 of 4 calls)" in capsys.readouterr().out
    assert main(asked) == 0  # of what was kept
    assert "2 entries, 2 samples run" in capsys.readouterr().out


def test_what_is_not_listed_is_amiss() -> None:
    row = {
        "name": "made up",
        "way": "forward",
        "sample": 0,
        "kind": "differs",
        "reported": "x",
        "served": 2,
        "refused": "",
    }
    assert counted("ops", [row], ["made up"], whole=True)["unexplained"] == ["made up, forward, sample 0: differs: x"]
