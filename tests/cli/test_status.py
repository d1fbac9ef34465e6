"""The lines that tell a person at a terminal what becomes of a step."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator

import pytest
import torch
from tqdm import tqdm

import torchjanus
from tests.runtime.report import programs
from torchjanus.cli.status import show_status
from torchjanus.runtime.runs.records import LISTENERS


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def listeners(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TORCHJANUS_STATUS", raising=False)
    before = [*LISTENERS]
    yield
    LISTENERS[:] = before


def test_a_refusal_is_printed_once_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    assert show_status() and show_status()
    programs.refused()
    lines = terminal.getvalue().splitlines()
    (refused,) = [line for line in lines if "left to Python" in line]
    assert refused.startswith("torchjanus: looks: programs.py:")
    assert "Name the variables instead." in refused
    assert any("the function runs as it is" in line for line in lines)


def test_nothing_is_printed_where_standard_error_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    assert not show_status()
    programs.refused()
    assert file.getvalue() == ""


@pytest.mark.parametrize(("given", "terminal", "shown"), [("1", False, True), ("0", True, False)])
def test_the_environment_decides(monkeypatch: pytest.MonkeyPatch, given: str, terminal: bool, shown: bool) -> None:
    monkeypatch.setenv("TORCHJANUS_STATUS", given)
    monkeypatch.setattr(sys, "stderr", Terminal() if terminal else io.StringIO())
    assert show_status() is shown


def test_a_progress_bar_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    show_status()
    step = torchjanus.speculate(programs.looks, executor="replay")
    for _ in tqdm(range(6), file=terminal, mininterval=0, ascii=True):
        step(torch.ones(3))
    # Each line of ours begins at the margin, behind a bar that was wiped, and ends before the next bar.
    ours = [part for part in terminal.getvalue().replace("\r", "\n").split("\n") if "torchjanus:" in part]
    assert ours and all(part.startswith("torchjanus: looks") and "it/s" not in part for part in ours)
