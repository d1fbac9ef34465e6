"""Gives children only slices of the program's time where the program's own threads fill all cores.

OpenMP's threads wait for each other at the end of each kernel. On two cores, a program with two threads beside one busy
child was seen to run at a quarter of its speed, since at any time one of its threads waits for a core. So a child is
stopped while the program works; once the program has worked for a while, it sleeps for a share of that, and the child
works meanwhile. The sum of both times is what the work costs, and it is known, so it can be charged for.

How many cores are left is measured while children are stopped: the processor time of this process by time elapsed. With
a core to spare, and fewer threads than cores, children work all the time. This module does not know what they do.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import torch

__all__ = ["DUTY", "DutyCycle", "Pausable", "cores"]

SLICE = 0.04  # seconds that children get at once, at least: stopping and resuming them takes a millisecond or two
LONGEST = 0.05  # seconds of one slice, or as long as the call before it
SPARE = 0.9  # cores that the program must leave for children to work all the time
ALONE = 1.03  # cores that a program uses at most if it computes in one thread: more is a second one, now and then
OBSERVED = 0.02  # seconds over which that is measured
AGAIN = 2.0  # seconds after which it is measured again: a program has phases
_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of processor time, and of which period


class Pausable(Protocol):
    """A child."""

    def pause(self) -> None:
        """Stop it."""
        ...

    def resume(self) -> None:
        """Let it go on."""
        ...

    def poll(self) -> int | None:
        """Return its exit status, or None while it has not ended."""
        ...


@functools.cache
def cores() -> float:
    """Return the number of cores that this process may use, as it was when that was first asked: each call of a step
    asks."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        quota, period = map(int, _QUOTA.read_text().split())
        return min(float(found), quota / period)
    return float(found)


class DutyCycle:
    """The children of this process, and the time that they are given.

    ``wall``, ``processor``: clocks in seconds, of elapsed time and of the processor time of this process;
    ``available``: how many cores there are; ``threads``: how many threads torch computes with.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        processor: Callable[[], float] = time.process_time,
        available: Callable[[], float] = cores,
        sleep: Callable[[float], None] = time.sleep,
        threads: Callable[[], int] = torch.get_num_threads,
    ) -> None:
        self.working = False  # whether there are children
        self._wall, self._processor, self._available, self._sleep = wall, processor, available, sleep
        self._threads = threads
        self._lock = threading.RLock()
        self._children: list[tuple[Pausable, float]] = []
        self._paused = False
        self._waiting = 0  # threads that wait for children, which work all the time meanwhile
        self._since = (0.0, 0.0)  # both clocks when the children were stopped last
        self._resumed = 0.0  # the elapsed time when they were resumed last
        self._stopped = 0.0  # seconds for which they have been stopped so far

    def is_full(self) -> bool:
        """Whether torch computes with a thread for each core, so that what children do takes time of the program's."""
        return self._threads() >= self._available()

    @property
    def stopped(self) -> float:
        """Seconds for which children have been stopped so far."""
        with self._lock:
            return self._stopped + (self._wall() - self._since[0] if self._paused else 0.0)

    def add(self, child: Pausable, share: float) -> None:
        """Stop a child, until it is known whether there is a core for it. ``share``: seconds that it gets for each
        second of the program's work, if there is none."""
        with self._lock:
            if (child, share) not in self._children:
                self._children.append((child, share))
            self.working = True
            if not self._waiting:
                self._pause()

    def called(self, seconds: float) -> float:
        """Give children a slice if it is time for one, after a call of ``seconds``. Returns how long the program has
        slept for that."""
        if self._waiting or not self._lock.acquire(blocking=False):
            return 0.0
        try:
            self._children = [one for one in self._children if one[0].poll() is None]
            if not self._children:
                self._end()
                return 0.0
            now = self._wall()
            if not self._paused:
                if now - self._resumed >= AGAIN:
                    self._pause()
                return 0.0
            if self._is_core_left(now):
                self._resume()
                return 0.0
            # Lowering comes before compiling, as in the order of their priorities.
            share = max(share for _, share in self._children)
            given = min(share * (now - self._since[0]), max(LONGEST, seconds))
            if given < SLICE:
                return 0.0
            self._resume()
            self._sleep(given)
            self._pause()
            return self._wall() - now
        finally:
            self._lock.release()

    def look(self) -> None:
        """Let children go on if the program leaves a core: it may make no calls for long."""
        with self._lock:
            if self._paused and self._is_core_left(self._wall()):
                self._resume()

    def _is_core_left(self, now: float) -> bool:
        """Whether the program leaves a core, as far as that is known.

        Torch's threads are on all cores when they compute, even if that is only now and then."""
        elapsed = now - self._since[0]
        if elapsed < OBSERVED:
            return False
        used, available = (self._processor() - self._since[1]) / elapsed, self._available()
        return available - used >= SPARE and (self._threads() < available or used <= ALONE)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Let children work all the time, while this thread waits for one of them."""
        with self._lock:
            self._waiting += 1
            self._resume()
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1
                if not self._waiting and self._children:
                    self._pause()

    def forget(self) -> None:
        """In a fork of the program: the children are the parent's."""
        self._lock = threading.RLock()
        self._children, self.working, self._paused, self._waiting = [], False, False, 0

    def _end(self) -> None:
        self._resume()
        self._children, self.working = [], False

    def _pause(self) -> None:
        for child, _ in self._children:
            child.pause()
        if not self._paused:
            self._paused, self._since = True, (self._wall(), self._processor())

    def _resume(self) -> None:
        for child, _ in self._children:
            child.resume()
        self._resumed = self._wall()
        if self._paused:
            self._paused = False
            self._stopped += self._resumed - self._since[0]


DUTY = DutyCycle()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=DUTY.forget)
