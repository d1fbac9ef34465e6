"""Time in which the thread waits for a core is not counted; without the system's help it is elapsed time."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from torchjanus.core import clock
from torchjanus.core.clock import undelayed

COUNTS = os.path.exists(clock._STATISTICS) and sys.platform == "linux"


@pytest.fixture
def statistics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file in place of the system's, for threads that begin from now on."""
    file = tmp_path / "schedstat"
    monkeypatch.setattr(clock, "_STATISTICS", str(file))
    monkeypatch.setattr(clock, "_THREAD", clock._Thread())
    return file


def seconds(action: object = None) -> float:
    """Return how much longer than ``time.perf_counter`` says a while takes."""
    before, elapsed = undelayed(), time.perf_counter()
    if callable(action):
        action()
    return (undelayed() - before) - (time.perf_counter() - elapsed)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts")
def test_what_the_system_counts_is_subtracted(statistics: Path) -> None:
    statistics.write_text("100 2000000000 7")
    assert -0.5 < seconds() < 0.5
    assert -5.5 < seconds(lambda: statistics.write_text("100 7000000000 9")) < -4.5


@pytest.mark.parametrize("text", ["", "1", "a b c"])
def test_a_file_that_says_something_else_is_not_used(statistics: Path, text: str) -> None:
    statistics.write_text(text)
    assert -0.5 < seconds() < 0.5


def test_without_a_file_it_is_elapsed_time(statistics: Path) -> None:
    assert -0.5 < seconds() < 0.5


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts")
def test_a_program_that_closes_all_files_goes_on(statistics: Path) -> None:
    statistics.write_text("100 2000000000 7")
    undelayed()
    file = clock._THREAD.file
    assert file is not None
    assert file.number >= clock._NUMBER
    os.close(file.number)
    assert -0.5 < seconds() < 0.5  # and no jump by the two seconds that are known


@pytest.mark.skipif(not COUNTS, reason="the system does not count")
def test_each_thread_has_a_file_until_it_ends() -> None:
    numbers: list[int] = []

    def read() -> None:
        undelayed()
        assert clock._THREAD.file is not None
        numbers.append(clock._THREAD.file.number)

    undelayed()
    mine = clock._THREAD.file
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    assert mine is not None
    assert numbers[0] != mine.number
    assert not os.path.exists(f"/proc/self/fd/{numbers[0]}")


@pytest.mark.skipif(not COUNTS or not hasattr(os, "fork"), reason="the system does not count, or cannot fork")
def test_a_fork_reads_of_itself() -> None:
    undelayed()
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        closed = clock._THREAD.file is None
        undelayed()
        file = clock._THREAD.file
        own = file is not None and int(os.pread(file.number, 96, 0).split()[2]) < 1000
        os.write(writing, b"1" if closed and own else b"0")
        os._exit(0)
    os.close(writing)
    assert os.read(reading, 1) == b"1"
    os.close(reading)
    os.waitpid(process, 0)


@pytest.mark.skipif(not COUNTS, reason="the system does not count")
def test_sleeping_counts() -> None:
    before = undelayed()
    time.sleep(0.05)
    assert undelayed() - before > 0.04  # only what comes after it may be subtracted
