"""When a step that was found is watched: once that costs little beside all of its calls. What later runs then know."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from torchjanus.cli.discovery import Selection, Step, compiled
from torchjanus.runtime.runs import horizon, payback
from torchjanus.runtime.runs.experience import MOST, Experience

SCRIPT = """
import torch

def fit(model, optimizer, data, epochs, last):
    losses = []
    for epoch in range(epochs):
        for number, (x, y) in enumerate(data):
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            if len(losses) == last:
                return losses
    return losses

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = [(x, x.sum(1, keepdim=True)) for x in torch.randn(10, 8, 4)]
losses = fit(model, optimizer, data, epochs, last)
"""


@pytest.fixture(autouse=True)
def _kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHJANUS_CACHE", str(tmp_path))
    monkeypatch.setattr("torchjanus.runtime.entries.engine.order_of", None)  # replay only


@pytest.fixture
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning is expected to cost next to nothing."""
    monkeypatch.setattr(horizon, "BEGINNING", 0.0)
    monkeypatch.setattr(horizon, "LEARNED", 0.0)
    monkeypatch.setattr(horizon, "WATCHED", 0.0)
    monkeypatch.setattr(payback, "LEARNED", 0.0)
    monkeypatch.setattr(payback, "LOWERED", 0.0)


def run(epochs: int, last: int) -> tuple[Selection, Step, list[float]]:
    """Run the script, and keep what was seen, as at the end of a program."""
    selection = Selection()
    module = compiled(SCRIPT, "/nowhere/script.py", selection)
    variables: dict[str, Any] = {"__name__": "script", "epochs": epochs, "last": last}
    module.bind(variables)
    exec(module.code, variables)
    selection.remember()
    (step,) = selection.taken
    return selection, step, variables["losses"]


def by_python(epochs: int, last: int) -> list[float]:
    variables: dict[str, Any] = {"__name__": "script", "epochs": epochs, "last": last}
    exec(SCRIPT, variables)
    found: list[float] = variables["losses"]
    return found


def test_a_short_script_is_pythons_and_says_what_learning_would_take() -> None:
    selection, step, losses = run(2, 100)
    assert step.speculated is None and losses == by_python(2, 100)
    (line,) = selection.unwatched()
    assert "its 20 calls took" in line and "graphs pay from" in line and "--after" in line
    kept = Experience.of(step.code)
    assert (kept.calls, kept.expected, kept.made, kept.price) == (20, 20, False, 0.0)


@pytest.mark.usefixtures("cheap")
def test_loops_that_are_long_enough_pay_for_learning_and_a_second_run_watches_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, first, losses = run(10**9, 60)
    assert losses == by_python(10**9, 60)
    assert first.speculated is not None
    before = first.speculated.statistics()
    assert before.watched > 1 and before.speculated > 30
    kept = Experience.of(first.code)
    assert kept.made and kept.calls == 60 and kept.price > 0.0 and len(kept.graphs) == 1
    assert run(10**9, 60)[1].speculated is None  # it is known that it ends soon
    monkeypatch.setattr(sys, "argv", ["script.py", "--longer"])
    _, second, again = run(10**9, 60)
    assert again == losses
    assert second.speculated is not None
    after = second.speculated.statistics()
    assert (after.watched, after.missed) == (2, 1)  # the first one, and the last one, which returns
    assert after.speculated > 40


def test_other_arguments_of_the_program_say_nothing_of_the_number_of_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    _, step, _ = run(1, 100)
    assert Experience.of(step.code).expected == 10
    monkeypatch.setattr(sys, "argv", ["script.py", "--epochs", "7"])
    assert (Experience.of(step.code).calls, Experience.of(step.code).expected) == (10, 0)


@pytest.mark.parametrize("damage", [b"", b"[]", b'{"made": 1}', b"\xff", b'{"made": true, "calls": "many"}'])
def test_what_is_damaged_counts_as_nothing(tmp_path: Path, damage: bytes) -> None:
    _, step, losses = run(1, 100)
    (file,) = tmp_path.glob("steps-*/*.json")
    file.write_bytes(damage)
    assert Experience.of(step.code) == Experience(Experience.of(step.code).key)
    assert run(1, 100)[2] == losses
    assert Experience.of(step.code).calls == 10


def test_only_a_folder_that_is_the_users_own_is_written_to_and_old_files_go(tmp_path: Path) -> None:
    folder = tmp_path / "steps-1"
    folder.mkdir(mode=0o700)
    for number in range(MOST + 1):
        (folder / f"{number}.json").touch()
    _, step, _ = run(1, 100)
    assert len([*folder.iterdir()]) <= MOST // 2 + 2
    assert Experience.of(step.code).calls == 10
    folder.chmod(0o777)
    _, step, _ = run(2, 100)
    assert Experience.of(step.code).calls == 10


def test_a_step_called_often_is_timed_now_and_then_and_all_of_its_calls_are_counted() -> None:
    step = run(2, 100)[1]
    step.bind({"__name__": "script"})
    made: list[int] = []
    step._fn = made.append
    for number in range(1000):
        step(number)
    step.remember()
    assert made == [*range(1000)]
    assert Experience.of(step.code).calls == 1000
