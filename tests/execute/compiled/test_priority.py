"""Work beside the program lets others go first once it has had a good share of a core, and not before."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from torchjanus.execute.compiled.priority import ENOUGH, Priority


class Clocks:
    """A process that gets ``share`` of a core."""

    def __init__(self) -> None:
        self.wall, self.processor = 100.0, 7.0
        self.increased: list[int] = []

    def go_on(self, seconds: float, share: float) -> None:
        self.wall += seconds
        self.processor += share * seconds

    def priority(self, lowest: int) -> Priority:
        return Priority(lowest, lambda: self.wall, lambda: self.processor, self.increased.append)


def test_with_a_core_to_itself_it_goes_to_the_lowest_at_once() -> None:
    clocks = Clocks()
    priority = clocks.priority(3)
    clocks.go_on(0.25, 1.0)
    priority.look()
    assert clocks.increased == [3]
    clocks.go_on(10, 1.0)
    priority.look()
    assert clocks.increased == [3]


def test_it_keeps_the_programs_niceness_while_cores_are_short() -> None:
    clocks = Clocks()
    priority = clocks.priority(3)
    for _ in range(40):
        clocks.go_on(0.25, ENOUGH / 2)
        priority.look()
    assert clocks.increased == []
    clocks.go_on(0.25, 1.0)  # what it got before does not count
    priority.look()
    assert clocks.increased == [3]


def test_a_look_too_soon_says_nothing() -> None:
    clocks = Clocks()
    priority = clocks.priority(3)
    clocks.go_on(0.01, 1.0)
    priority.look()
    assert clocks.increased == []


def test_a_fork_starts_from_the_niceness_that_it_has() -> None:
    clocks = Clocks()
    priority = clocks.priority(3)
    clocks.go_on(1, 1.0)
    priority.look()
    priority.begin(5)
    clocks.go_on(1, 1.0)
    priority.look()
    assert clocks.increased == [3, 2]
    assert priority.niceness == 5


@pytest.mark.skipif(not hasattr(os, "getpriority"), reason="there is niceness on POSIX only")
def test_a_look_by_another_thread_counts_for_what_the_main_thread_starts() -> None:
    program = """
import itertools, os, subprocess, sys, threading
from torchjanus.execute.compiled.priority import Priority

before = os.getpriority(os.PRIO_PROCESS, 0)
priority = Priority(2, wall=itertools.count().__next__, processor=itertools.count().__next__)
thread = threading.Thread(target=priority.look)
thread.start()
thread.join()
started = [sys.executable, "-c", "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"]
print(min(19, before + 2), os.getpriority(os.PRIO_PROCESS, 0), int(subprocess.check_output(started)))
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert len(set(said.split())) == 1, said
