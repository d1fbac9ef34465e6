"""What a user says to speculated functions from outside: the stance, marks, reset, settings, topics of the log."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import torchjanus
from tests.forked import python
from tests.runtime.report import programs
from torchjanus.core import logs, settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def stance_afterwards() -> Any:
    yield
    torchjanus.stance("default")


def by_mode(x: torch.Tensor, mode: str) -> torch.Tensor:
    return x * 2 if mode == "double" else x + 1


def warm(mode: str = "double", **options: Any) -> Any:
    step = torchjanus.speculate(by_mode, executor="replay", **options)
    for _ in range(5):
        step(torch.ones(2), mode)
    assert step.statistics().speculated == 2
    return step


# ---- the stance ----


def test_force_eager_leaves_calls_to_python_and_keeps_graphs() -> None:
    step = warm()
    with torchjanus.stance("force_eager"):
        assert torch.equal(step(torch.ones(2), "double"), torch.full((2,), 2.0))
        assert torch.equal(step(torch.ones(2), "plus"), torch.full((2,), 2.0))
    counts = step.statistics()
    assert (counts.calls, counts.speculated, counts.watched, counts.imperative) == (7, 2, 3, 2)
    step(torch.ones(2), "double")
    assert step.statistics().speculated == 3


def test_force_eager_runs_no_graph_of_parts_either() -> None:
    step = torchjanus.speculate(programs.in_parts, executor="replay")
    for _ in range(20):
        step(torch.ones(4))
    before = step.statistics()
    assert before.partly
    with torchjanus.stance("force_eager"):
        step(torch.ones(4))
    assert step.statistics().partly == before.partly


def test_fail_on_new_graph_raises_before_anything_has_run() -> None:
    seen: list[str] = []

    def noting(x: torch.Tensor, mode: str) -> torch.Tensor:
        seen.append(mode)
        return by_mode(x, mode)

    step = torchjanus.speculate(noting, executor="replay")
    for _ in range(5):
        step(torch.ones(2), "double")
    with torchjanus.stance("fail_on_new_graph"):
        step(torch.ones(2), "double")
        with pytest.raises(torchjanus.NewGraph, match=r"mode == 'double', but now it is 'plus'.*fail_on_new_graph"):
            step(torch.ones(2), "plus")
        step(torch.ones(2), "double")
    assert seen == ["double"] * 7
    counts = step.statistics()
    assert (counts.calls, counts.speculated, counts.watched, counts.imperative, counts.missed) == (7, 4, 3, 0, 0)
    step(torch.ones(2), "plus")  # learnt from, as ever
    assert step.statistics().watched == 4


def test_fail_on_new_graph_raises_where_there_is_no_graph_yet() -> None:
    step = torchjanus.speculate(by_mode, executor="replay")
    torchjanus.stance("fail_on_new_graph")
    with pytest.raises(torchjanus.NewGraph, match="no graph has been made yet"):
        step(torch.ones(2), "double")


def decided(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.sum() > 0 else x - 1


def test_fail_on_new_graph_raises_where_a_tensor_decides_otherwise() -> None:
    step = torchjanus.speculate(decided, executor="replay")
    for _ in range(5):
        step(torch.ones(2))
    with torchjanus.stance("fail_on_new_graph"), pytest.raises(torchjanus.NewGraph, match="a tensor decides otherwise"):
        step(-torch.ones(2))
    with torchjanus.stance("eager_on_new_graph"):
        assert torch.equal(step(-torch.ones(2)), -2 * torch.ones(2))
    counts = step.statistics()
    assert (counts.watched, counts.imperative, counts.compiles) == (3, 1, 1)


def test_eager_on_new_graph_learns_nothing() -> None:
    step = warm()
    with torchjanus.stance("eager_on_new_graph"):
        for _ in range(5):
            assert torch.equal(step(torch.ones(2), "plus"), torch.full((2,), 2.0))
        step(torch.ones(2), "double")
    counts = step.statistics()
    assert (counts.speculated, counts.watched, counts.imperative, counts.compiles) == (3, 3, 5, 1)


def test_an_extern_call_of_a_graph_is_made_once_under_any_stance(capsys: Any) -> None:
    def printing(x: torch.Tensor) -> torch.Tensor:
        print("looked", x.sum().item())
        return decided(x)

    step = torchjanus.speculate(printing, executor="replay")
    for _ in range(5):
        step(torch.ones(2))
    with torchjanus.stance("eager_on_new_graph"):
        step(-torch.ones(2))
    assert capsys.readouterr().out.splitlines() == ["looked 2.0"] * 5 + ["looked -2.0"]


def test_a_stance_in_a_with_statement_ends_with_it_even_by_an_error() -> None:
    step = warm()
    torchjanus.stance("eager_on_new_graph")
    with pytest.raises(ZeroDivisionError), torchjanus.stance("force_eager"):
        raise ZeroDivisionError
    step(torch.ones(2), "plus")
    assert step.statistics().imperative == 1
    step(torch.ones(2), "double")
    assert step.statistics().speculated == 3


def test_a_stance_that_the_step_itself_takes_holds_as_in_eager() -> None:
    inner = torchjanus.speculate(by_mode, executor="replay")

    def outer(x: torch.Tensor) -> torch.Tensor:
        with torchjanus.stance("force_eager"):
            y = inner(x, "double")
        return y + 1

    step = torchjanus.speculate(outer, executor="replay")
    for _ in range(6):
        assert torch.equal(step(torch.ones(2)), torch.full((2,), 3.0))
    inner(torch.ones(2), "double")
    assert inner.statistics().watched == 1  # the stance is the default again


def test_an_unknown_stance_is_refused() -> None:
    with pytest.raises(torchjanus.Unsupported, match=r"'eager'.*'force_eager'"):
        torchjanus.stance("eager")  # type: ignore[arg-type]


# ---- marks ----


def scaled(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


def test_marked_numbers_and_sizes_are_inputs_of_the_first_graph() -> None:
    step = torchjanus.vary("x.shape[0]", "factor")(torchjanus.speculate(scaled, executor="replay"))
    for size in (4, 4, 4, 5, 6, 17):
        x = torch.randn(size, 3)
        assert torch.equal(step(x, 0.5 * size), scaled(x, 0.5 * size))
    counts = step.statistics()
    assert (counts.speculated, counts.missed, counts.compiles) == (3, 0, 1)


def test_without_marks_the_same_calls_miss() -> None:
    step = torchjanus.speculate(scaled, executor="replay")
    for size in (4, 4, 4, 5):
        step(torch.randn(size, 3), 2.0)
    assert step.statistics().missed == 1


def trained(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def losses(step: Any) -> list[float]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for number in range(12):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 if number < 5 else 0.1 / number
        size = 32 if number < 6 else 30 - number
        found.append(step(model, optimizer, torch.randn(size, 8), torch.randint(3, (size,))).item())
    return found


def test_a_training_step_with_a_marked_learning_rate_and_batch_is_one_graph_from_the_first_on() -> None:
    step = torchjanus.speculate(trained, executor="replay")
    step = torchjanus.vary("x.shape[0]", "y.shape[0]", "optimizer.param_groups[*]['lr']")(step)
    assert losses(step) == losses(trained)
    counts = step.statistics()
    assert counts.missed == 0
    assert counts.compiles == 1
    assert counts.speculated >= 8
    unmarked = torchjanus.speculate(trained, executor="replay")
    losses(unmarked)
    assert unmarked.statistics().missed > 0


def by_size(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.shape[0] < 6 else x + 1


def test_a_marked_size_that_decides_stays_constant_and_the_report_says_so() -> None:
    step = torchjanus.vary("x.shape[0]")(torchjanus.speculate(by_size, executor="replay"))
    for size in (4, 4, 4, 4, 9, 9, 9):
        x = torch.randn(size)
        assert torch.equal(step(x), by_size(x))
    assert any("marked to vary stay constant" in event.text for event in step.events)


def test_vary_takes_names_and_marks_speculated_functions_only() -> None:
    with pytest.raises(torchjanus.Unsupported, match="as the report does"):
        torchjanus.vary(torch.ones(2))  # type: ignore[arg-type]
    with pytest.raises(torchjanus.Unsupported, match="stands above speculate"):
        torchjanus.vary("x.shape[0]")(scaled)  # type: ignore[type-var]


# ---- reset ----


def test_reset_forgets_graphs_counts_and_events() -> None:
    step = warm()
    step(torch.ones(2), "plus")
    step.reset()
    assert step.statistics() == torchjanus.speculate(by_mode, executor="replay").statistics()
    assert (step.entries, step.events, step.refusals) == ([], [], [])
    for _ in range(5):
        assert torch.equal(step(torch.ones(2), "double"), torch.full((2,), 2.0))
    assert step.statistics().speculated == 2


def test_reset_gives_a_refused_function_another_chance() -> None:
    class Holder:
        refuses = True

    def refused(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + (x.data_ptr() * 0 if Holder.refuses else 0)

    step = torchjanus.speculate(refused, executor="replay")
    for _ in range(6):
        step(torch.ones(2))
    assert step.given_up
    Holder.refuses = False
    step.reset()
    assert not step.given_up
    for _ in range(5):
        step(torch.ones(2))
    assert step.statistics().speculated == 2


# ---- settings and the log ----


def test_the_page_has_all_settings_and_topics() -> None:
    page = (ROOT / "docs" / "reference" / "settings.md").read_text()
    rows = dict(re.findall(r"^\| `(TORCHJANUS_\w+)` \| (.*?) \|$", page, re.MULTILINE))
    assert rows == {one.name: f"{one.values} | {one.meaning}" for one in settings.SETTINGS}
    topics = dict(re.findall(r"^\| `torchjanus\.(\w+)` \| (.*?) \|$", page, re.MULTILINE))
    assert topics == {name: about for name, (about, _) in logs.TOPICS.items()}


def test_no_module_reads_a_setting_that_is_not_in_the_table() -> None:
    for path in (ROOT / "torchjanus").rglob("*.py"):
        if path.name != "settings.py":
            assert not re.search(r"environ[^\n]*TORCHJANUS|[\"']TORCHJANUS_", path.read_text()), path


def test_each_event_goes_to_the_logger_of_its_topic(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="torchjanus.calls"):
        step = warm()
        step(torch.ones(2), "plus")
    assert {record.name for record in caplog.records} == {"torchjanus.calls"}
    assert "mode == 'double', but now it is 'plus'" in caplog.text


def test_a_program_that_logs_prints_only_its_own_messages() -> None:
    program = (
        "import logging, sys, torch\n"
        "from tests.runtime.test_controls import warm\n"
        "logging.basicConfig(level=logging.DEBUG, stream=sys.stdout, format='%(name)s %(message)s')\n"
        "step = warm()\n"
        "step(torch.ones(2), 'plus')\n"
        "logging.info('done')\n"
        "logging.getLogger('torchjanus').setLevel(logging.INFO)\n"
        "step(torch.ones(3), 'plus')\n"
    )
    done = run(program)
    own, _, asked = done.stdout.partition("root done\n")
    assert "torchjanus" not in own, done.stdout + done.stderr
    assert "torchjanus.calls" in asked, done.stdout


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHJANUS_CACHE": "", **environment}
    return python(["-c", program], ROOT, given, imported="torch")


def test_the_environment_names_the_stance_and_the_executor() -> None:
    program = (
        "import torch, torchjanus\n"
        "from torchjanus.runtime import default_executor\n"
        "step = torchjanus.speculate(abs)\n"
        "step(torch.ones(1))\n"
        "print(default_executor(), step.statistics().imperative, step.refusals)\n"
    )
    done = run(program, TORCHJANUS_STANCE="force_eager", TORCHJANUS_EXECUTOR="replay")
    assert done.stdout == "replay 1 []\n", done.stderr
    assert "TORCHJANUS_STANCE='eagr'" in run(program, TORCHJANUS_STANCE="eagr").stderr
    assert "executor='fast'" in run(program, TORCHJANUS_EXECUTOR="fast").stderr


def test_the_environment_names_topics_to_print() -> None:
    program = (
        "import torch, torchjanus\n"
        "def step(x):\n"
        "    return x.data_ptr()\n"
    )  # fmt: skip
    assert "there is no topic 'guard'" in run(program, TORCHJANUS_LOGS="guard").stderr
    assert run(program, TORCHJANUS_LOGS="+calls, graphs").stderr == ""


def test_topics_are_printed_with_their_logger() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests/runtime')\n"
        "import torch, torchjanus\n"
        "from tests.runtime.test_controls import by_mode\n"
        "step = torchjanus.speculate(by_mode, executor='replay')\n"
        "for mode in ('double',) * 4 + ('plus',):\n"
        "    step(torch.ones(2), mode)\n"
    )
    said = run(program, TORCHJANUS_LOGS="calls").stderr
    assert re.search(r"^torchjanus\.calls: .*mode == 'double', but now it is 'plus'", said, re.MULTILINE)
    assert "torchjanus.learning" not in said
