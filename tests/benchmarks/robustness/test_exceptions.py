"""The comparison of errors: torchjanus does what eager does, and a system that does not is found out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.robustness import exceptions
from benchmarks.robustness.exceptions import PROGRAMS, Run, compared, main, run


@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_torchjanus_is_as_eager(make) -> None:
    eager, other = run(make, "eager"), run(make, "torchjanus")
    assert compared(make.__name__, "torchjanus", eager, other).right
    assert len(eager.outcomes) == len(exceptions.GOOD)
    assert eager.handled or any(outcome[0] == "raised" for outcome in eager.outcomes)


def test_what_differs_is_found() -> None:
    eager = Run([("returned", 1.0), ("raised", "ValueError", 3)], [(1, 0), (2, 0)], [(2, 0)])
    assert compared("p", "s", eager, eager).right
    for other, what in [
        (Run(eager.outcomes, eager.states, []), "handlers"),
        (Run(eager.outcomes, eager.states, [(1, 0)]), "state_seen"),
        (Run(eager.outcomes, [(1, 0), (1, 0)], eager.handled), "state_after"),
        (Run([("returned", 2.0), eager.outcomes[1]], eager.states, eager.handled), "results"),
        (Run([eager.outcomes[0], ("raised", "ValueError", 2)], eager.states, eager.handled), "errors"),
        (Run([eager.outcomes[0], ("returned", 1.0)], eager.states, eager.handled), "errors"),
    ]:
        found = compared("p", "s", eager, other)
        assert not found.right
        same = compared("p", "s", eager, eager)
        assert getattr(found, what) != getattr(same, what)


def test_the_command_leaves_a_record(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr(
        exceptions, "write", lambda name, given, device, content: record.write(name, given, device, content, tmp_path)
    )
    assert main(["--only", "raise_that_is_caught", "--backend", "eager", "--record"]) == 0
    content = json.loads((tmp_path / "exceptions.json").read_text())
    assert content["programs"] == 1
    assert content["right"]["torchjanus"] == 1
    assert [row["system"] for row in content["rows"]] == ["torchjanus", "torch.compile eager"]
    assert "raise_that_is_caught" in capsys.readouterr().out
