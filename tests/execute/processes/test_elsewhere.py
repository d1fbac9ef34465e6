"""What another process is compiling is awaited; one that has ended leaves its work to others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchjanus.execute.compiled.store import Store
from torchjanus.execute.processes import elsewhere
from torchjanus.execute.processes.elsewhere import Awaited, Lease


@pytest.fixture
def store(tmp_path: Path) -> Store:
    folder = tmp_path / "store"
    folder.mkdir(mode=0o700)
    return Store(folder)


def test_one_process_has_a_lease(store: Store) -> None:
    first, second = Lease(store, "graph"), Lease(store, "graph")
    assert first.taken and not second.taken
    second.end()
    assert not Lease(store, "graph").taken
    first.end()
    assert Lease(store, "graph").taken
    assert Lease(store, "another graph").taken


def test_the_lease_of_a_process_that_has_ended_is_inherited(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: ended.pid)
        assert Lease(store, "graph").taken
    if hasattr(os, "geteuid"):
        assert Lease(store, "graph").taken


def test_nobody_knows_of_processes_of_other_machines(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(elsewhere.socket, "gethostname", lambda: "another")
        assert Lease(store, "graph").taken
    assert not Lease(store, "graph").taken


class Made:
    def __init__(self) -> None:
        self.cancelled = False

    def result(self, timeout: float | None = None) -> str:
        return "made"

    def kill(self) -> None:
        self.cancelled = True

    cancel = kill


def test_what_is_awaited_is_made_here_in_the_end() -> None:
    made, looks = Made(), 0

    def start() -> Any:
        nonlocal looks
        looks += 1
        return made if looks > 2 else None

    awaited = Awaited(start)
    with pytest.raises(subprocess.TimeoutExpired):
        awaited.result(0.0)
    assert awaited.result(10.0) == "made" and looks == 3
    awaited.cancel()
    assert made.cancelled


def test_waiting_ends_when_it_is_not_wanted_any_more() -> None:
    awaited = Awaited(lambda: None)
    awaited.kill()
    with pytest.raises(RuntimeError, match="not wanted"):
        awaited.result()
