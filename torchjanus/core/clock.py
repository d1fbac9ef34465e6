"""The clock that calls are timed with: elapsed time, less the time in which the thread is ready to run and has no core.

Where processes share cores, a call of six milliseconds takes thirty or sixty: the scheduler interrupts it once or
twice. A graph that takes half the time is interrupted once as well, so the medians of both are the same. Linux counts
for each thread how long it was ready and did not run (``/proc/thread-self/schedstat``, its run-queue delay): that is
subtracted. Whatever else a call waits for (a device, another process, a lock) is a part of it. Where the system does
not count, it is the elapsed time. This module does not know what is timed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time

if sys.platform == "linux":
    import fcntl

__all__ = ["undelayed"]

_STATISTICS = "/proc/thread-self/schedstat"
_NUMBER = 200  # of the file, at least: those that the program opens have the numbers that they have without torchjanus
_AT_ONCE = 5e-4  # seconds within which both clocks are read, else the thread was interrupted between them
_ATTEMPTS = 3


class _File:
    """A file that is closed with the thread that has opened it."""

    def __init__(self) -> None:
        self.number = -1
        if sys.platform != "linux":
            return
        with contextlib.suppress(OSError):  # the system has no such file, or no such number
            opened = os.open(_STATISTICS, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self.number = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _NUMBER)
            finally:
                os.close(opened)

    def __del__(self) -> None:
        if self.number >= 0:
            with contextlib.suppress(OSError):  # the program has closed all files
                os.close(self.number)


class _Thread(threading.local):
    """What is known of the current thread."""

    def __init__(self) -> None:
        self.file: _File | None = None  # not opened yet
        self.delay = 0.0  # seconds, when it was read last


_THREAD = _Thread()


def undelayed() -> float:
    """Return the time in seconds, as ``time.perf_counter`` does, less the run-queue delay of the current thread so far.

    Only differences between two readings in one thread mean anything."""
    thread = _THREAD
    file = thread.file
    if file is None:
        file = thread.file = _File()
    ended = 0.0
    for _ in range(_ATTEMPTS):
        begun = time.perf_counter()
        if file.number >= 0:
            try:
                thread.delay = int(os.pread(file.number, 96, 0).split()[1]) * 1e-9
            except (OSError, ValueError, IndexError):  # the program has closed it
                file.number = -1
        ended = time.perf_counter()
        if ended - begun < _AT_ONCE:
            break
    return ended - thread.delay


def _forget() -> None:
    """In a fork: the file is that of the parent's thread."""
    _THREAD.__init__()  # type: ignore[misc]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
