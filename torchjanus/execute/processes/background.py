"""Compilations beside the training: one at a time, the others in a queue, and none outlives whoever wants it.

A thread waits for the compiler's process and loads what that has made (most of which is waiting, too), so a call has
only to look whether it is over. Lowering, which is short, has a queue of its own: it does not wait for a compiler that
takes minutes. Knows nothing of what is compiled.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

__all__ = ["MOST_SECONDS", "Pending", "Ticket", "busy", "submit"]

MOST_SECONDS = 900.0  # that one compilation may take; a loop of 500 iterations, unrolled, was seen to take 260
_JOINED = 10.0  # seconds that the end of the program waits for an artifact that is being loaded


class Pending(Protocol):
    """A compilation in another process."""

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it and load it. Raises TimeoutExpired, or why there is none."""
        ...

    def kill(self) -> None:
        """Give it up; ``result`` raises then. From any thread."""
        ...

    def cancel(self) -> None:
        """Give it up, and leave nothing behind."""
        ...


class Ticket:
    """One compilation: in the queue, under way, or over. Then there is a ``candidate``, or a ``failure``."""

    def __init__(self, start: Callable[[], Pending], doing: str) -> None:
        self._start = start
        self._doing = doing
        self._pending: Pending | None = None
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._asked = self._begun = time.monotonic()
        self._in_progress = False
        self.given_up = False
        self.over = False
        self.candidate: Any = None
        self.failure: BaseException | None = None
        self.seconds = 0.0

    def __str__(self) -> str:
        if self._in_progress:
            return f"{self._doing} (for {time.monotonic() - self._begun:.1f} s)"
        return f"waits for its turn (for {time.monotonic() - self._asked:.1f} s)"

    def wait(self, timeout: float | None = None) -> bool:
        """Return when it is over, or after ``timeout`` seconds. Whether it is."""
        return self._done.wait(timeout)

    def cancel(self) -> None:
        """Nobody wants it any more. Returns at once."""
        with self._lock:
            self.given_up = True
            if self._pending is not None:
                self._pending.kill()

    def run(self) -> None:
        """Compile, and wait for it, in this thread. Raises nothing."""
        self._begun = time.monotonic()
        try:
            with self._lock:
                if self.given_up:
                    return
                self._in_progress = True
                self._pending = self._start()
            self.candidate = self._pending.result(MOST_SECONDS)
        except subprocess.TimeoutExpired:
            self.failure = TimeoutError(f"it took longer than {MOST_SECONDS:.0f} s")
        except BaseException as error:  # the training goes on without it
            self.failure = error
        finally:
            self.seconds = time.monotonic() - self._begun
            with self._lock:
                pending, self._pending = self._pending, None
                self._start = _nothing
            if pending is not None:
                pending.cancel()
            self.over = True
            self._done.set()

    def lost(self) -> None:
        """This process is a fork of the one in which it goes on."""
        self._lock, self._done = threading.Lock(), threading.Event()
        self._pending = None
        if not self.over:
            self.failure = RuntimeError("the process was forked, and the compilation goes on in the other one")
            self.over = True
        self._done.set()


def _nothing() -> Pending:
    raise RuntimeError("the compilation is over")


class _Queue:
    """Tickets in order, and the thread that serves them as long as there are any."""

    def __init__(self) -> None:
        self._live: WeakSet[Ticket] = WeakSet()
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._current: Ticket | None = None
        self._thread: threading.Thread | None = None

    @property
    def serving(self) -> bool:
        return self._thread is not None

    def submit(self, ticket: Ticket) -> None:
        with self._lock:
            self._live.add(ticket)
            self._waiting.append(ticket)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="torchjanus compilation", daemon=True)
                self._thread.start()

    def _serve(self) -> None:
        while True:
            with self._lock:
                self._current = self._waiting.popleft() if self._waiting else None
                if self._current is None:
                    self._thread = None
                    return
            self._current.run()

    def close(self) -> None:
        """Give everything up. A thread must not be in native code when the interpreter goes: wait for it."""
        with self._lock:
            tickets = [*self._waiting, *(() if self._current is None else (self._current,))]
            thread = self._thread
        for ticket in tickets:
            ticket.cancel()
        if thread is not None:
            thread.join(_JOINED)

    def forget(self) -> None:
        """After a fork: neither the thread nor the compiler's process is this process's."""
        self._begin()
        for ticket in self._live:
            ticket.lost()


_queue, _short = _Queue(), _Queue()
for _one in (_queue, _short):
    atexit.register(_one.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_one.forget)


def submit(start: Callable[[], Pending], *, short: bool = False) -> Ticket:
    """Have something made when its turn comes; ``start`` is called in another thread. ``short``: it is lowered, which
    takes seconds, and has its own queue."""
    ticket = Ticket(start, "is being made" if short else "is compiling")
    (_short if short else _queue).submit(ticket)
    return ticket


def busy() -> bool:
    """Whether something is being made now: it takes a core, and what is measured meanwhile tells little."""
    return _queue.serving or _short.serving
