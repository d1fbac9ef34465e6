"""Children get slices of the program's time where it fills all cores, and all the time where it leaves one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from torchjanus.execute.compiled import server
from torchjanus.execute.compiled.duty_cycle import AGAIN, LONGEST, OBSERVED, DutyCycle, cores

LONG = 600.0  # seconds: far more than anything here takes


class Machine:
    """Some cores, of which the program uses ``used``; its clocks, and how long it has slept."""

    def __init__(self, used: float, cores: float = 2.0) -> None:
        self.used, self.cores = used, cores
        self.wall = self.processor = self.slept = 0.0
        self.threads = 2
        self.duty = DutyCycle(
            lambda: self.wall, lambda: self.processor, lambda: self.cores, self.sleep, lambda: self.threads
        )

    def sleep(self, seconds: float) -> None:
        self.wall += seconds
        self.slept += seconds

    def call(self, seconds: float) -> float:
        self.wall += seconds
        self.processor += self.used * seconds
        return self.duty.called(seconds)


class Child:
    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._since: float | None = machine.wall
        self.worked = 0.0
        self.code: int | None = None

    def pause(self) -> None:
        if self._since is not None:
            self.worked += self._machine.wall - self._since
        self._since = None

    def resume(self) -> None:
        if self._since is None:
            self._since = self._machine.wall

    def poll(self) -> int | None:
        return self.code

    @property
    def works(self) -> bool:
        return self._since is not None


@pytest.mark.parametrize("seconds", [0.0001, 0.01, 2.0])
def test_a_child_gets_its_share_where_the_program_fills_all_cores(seconds: float) -> None:
    machine = Machine(used=2.0)
    child = Child(machine)
    machine.duty.add(child, 0.25)
    stalls = [machine.call(seconds) for _ in range(round(20 / seconds))]
    assert child.worked == pytest.approx(machine.slept) == pytest.approx(sum(stalls))
    assert machine.slept == pytest.approx(0.25 * (machine.wall - machine.slept), rel=0.1)
    assert max(stalls) <= max(LONGEST, seconds)
    assert not child.works
    assert machine.duty.stopped == pytest.approx(machine.wall - machine.slept)


def test_a_child_works_all_the_time_where_the_program_leaves_a_core() -> None:
    machine = Machine(used=1.0)
    child = Child(machine)
    machine.duty.add(child, 0.25)
    assert not child.works  # nothing is known yet
    while not child.works:
        assert machine.call(0.01) == 0.0
    assert machine.wall <= 2 * OBSERVED
    machine.used = 2.0  # another phase of the program
    for _ in range(round(2 * AGAIN / 0.01)):
        machine.call(0.01)
    assert machine.slept and not child.works
    machine.used = 0.0  # it makes no calls, and waits for something else
    machine.wall += 1.0
    machine.duty.look()
    assert child.works


@pytest.mark.parametrize(
    ("threads", "used", "free"), [(8, 3.0, False), (8, 1.0, True), (4, 3.0, True), (4, 7.5, False)]
)
def test_threads_that_compute_now_and_then_need_their_cores(threads: int, used: float, free: bool) -> None:
    machine = Machine(used, cores=8.0)
    machine.threads = threads
    child = Child(machine)
    machine.duty.add(child, 0.25)
    for _ in range(20):
        machine.call(0.01)
    assert (machine.slept == 0.0) is free
    assert child.works is free


def test_nobody_sleeps_for_a_child_that_has_ended_or_that_is_waited_for() -> None:
    machine = Machine(used=2.0)
    first, second = Child(machine), Child(machine)
    machine.duty.add(first, 0.5)
    machine.duty.add(second, 0.1)
    with machine.duty.waiting():
        assert first.works and second.works
        assert machine.call(10.0) == 0.0
    assert not first.works and not second.works
    first.code = 0
    for _ in range(1000):
        machine.call(0.01)
    assert machine.slept == pytest.approx(0.1 * 10.0, rel=0.1)  # the share of the other one
    second.code = 1
    slept = machine.slept
    for _ in range(1000):
        machine.call(0.01)
    assert machine.slept == slept and not machine.duty.working


def test_there_are_cores() -> None:
    assert 0.0 < cores() <= (os.cpu_count() or 1)


def state(process: int) -> str:
    """The state of a process as the system tells it; "" if there is none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2][:1]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def wait_for(process: int, states: str) -> None:
    until = time.monotonic() + LONG
    while (found := state(process)) not in states or bool(found) != bool(states):
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.skipif(not server.STOPS, reason="children are stopped on Linux only")
def test_a_stopped_child_goes_on_and_is_killed_like_any_other(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "program")  # it waits for ever when it reads that
    child = server.fork(server.PRELOADED[0], str(tmp_path), {})
    assert child is not None
    number = process_of(tmp_path)
    child.pause()
    wait_for(number, "T")
    child.resume()
    wait_for(number, "SR")
    child.pause()
    wait_for(number, "T")
    child.kill()
    assert child.wait(LONG) == -signal.SIGKILL


def process_of(folder: Path) -> int:
    """The process that has opened the log in ``folder``."""
    until = time.monotonic() + LONG
    while time.monotonic() < until:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if any(os.readlink(link) == str(folder / "log") for link in (entry / "fd").iterdir()):
                    return int(entry.name)
            except OSError:
                continue
        time.sleep(0.05)
    raise AssertionError("no process has opened it")


@pytest.mark.skipif(not server.STOPS, reason="children are stopped on Linux only")
def test_a_stopped_child_does_not_outlive_a_program_that_is_killed(tmp_path: Path) -> None:
    script = f"""
        import os, time
        from torchjanus.execute.compiled import server, serving
        serving._LOWERERS = ()  # it serves at once
        server.start(forks=True, lowers=False, compiles=False)
        os.mkfifo({str(tmp_path / "program")!r})
        child = server.fork(server.PRELOADED[0], {str(tmp_path)!r}, {{}})
        while not os.path.exists({str(tmp_path / "log")!r}):
            time.sleep(0.01)
        child.pause()
        print("stopped", flush=True)
        time.sleep({LONG})
    """
    program = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None and program.stdout.readline() == "stopped\n"
    number = process_of(tmp_path)
    wait_for(number, "T")
    program.kill()
    program.wait()
    wait_for(number, "")
    program.stdout.close()
