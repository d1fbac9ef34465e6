"""Runs compilations beside the training, one at a time from a queue, and cancels them when they are not wanted any
more.

A thread waits for the compiler's process and loads the result, so a call only checks whether that is done. Lowering,
which is short, has a queue of its own: it does not wait for a compiler that takes minutes. This module does not know
what is compiled.
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

from torchjanus.execute.compiled import server
from torchjanus.execute.compiled.child import Child
from torchjanus.execute.compiled.duty_cycle import DUTY, Pausable

__all__ = ["MOST_SECONDS", "Pending", "Ticket", "busy", "prepare", "submit"]

MOST_SECONDS = 900.0  # for one compilation; a loop of 500 iterations, unrolled, was seen to take 260
# What the processes get of the program's time where it leaves no core (see DutyCycle). A graph of 1,500 operations is
# lowered in five seconds, and compiled in a minute; both are begun only once they are expected to pay.
LOWERING_SHARE, COMPILING_SHARE = 0.4, 0.15
_LOOK = 0.1  # seconds between two looks whether the program leaves a core
_JOINED = 10.0  # seconds that the end of the program waits for an artifact that is being loaded


class Pending(Protocol):
    """A compilation in another process."""

    @property
    def child(self) -> Child | None:
        """That process; None if there is nothing left to compute."""
        ...

    def result(self, timeout: float | None = None) -> Any:
        """Wait for it and load it. Raises TimeoutExpired, or the reason for which there is no result."""
        ...

    def kill(self) -> None:
        """Stop it; ``result`` raises then. May be called from any thread."""
        ...

    def cancel(self) -> None:
        """Stop it, and remove its files."""
        ...


class Ticket:
    """One compilation: in the queue, in progress, or over. When it is over there is a ``candidate``, or a
    ``failure``."""

    def __init__(self, start: Callable[[], Pending], doing: str, share: float) -> None:
        self._start = start
        self._doing = doing
        self._share = share
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
        """Return when it is over, or after ``timeout`` seconds: whether it is over."""
        with DUTY.waiting():
            return self._done.wait(timeout)

    def cancel(self) -> None:
        """Cancel it, and return at once."""
        with self._lock:
            self.given_up = True
            if self._pending is not None:
                self._pending.kill()

    def run(self) -> None:
        """Compile, and wait for the result, in this thread. Raises nothing."""
        self._begun = time.monotonic()
        try:
            with self._lock:
                if self.given_up:
                    return
                self._in_progress = True
                self._pending = self._start()
            child = self._pending.child
            _share_with(None if child is None else child.stoppable, self._share)
            _share_with(server.importing(), self._share)
            self.candidate = _result(self._pending)
        except subprocess.TimeoutExpired:
            self.failure = TimeoutError(f"it took longer than {MOST_SECONDS:.0f} s")
        except BaseException as error:  # the training continues without it
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
        """Give up in a fork: the compilation continues in the parent."""
        self._lock, self._done = threading.Lock(), threading.Event()
        self._pending = None
        if not self.over:
            self.failure = RuntimeError("the process was forked, and the compilation goes on in the other one")
            self.over = True
        self._done.set()


def _result(pending: Pending) -> Any:
    """Return the result. Raises TimeoutExpired after MOST_SECONDS in which the child was not stopped."""
    begun, stopped = time.monotonic(), DUTY.stopped
    while True:
        try:
            return pending.result(_LOOK)
        except subprocess.TimeoutExpired:
            if time.monotonic() - begun - (DUTY.stopped - stopped) > MOST_SECONDS:
                raise
        DUTY.look()


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
        """Cancel all, and wait for the thread: it must not be in native code when the interpreter ends."""
        with self._lock:
            tickets = [*self._waiting, *(() if self._current is None else (self._current,))]
            thread = self._thread
        for ticket in tickets:
            ticket.cancel()
        if thread is not None:
            thread.join(_JOINED)

    def forget(self) -> None:
        """Reset after a fork, which has neither the thread nor the compiler's process."""
        self._begin()
        for ticket in self._live:
            ticket.lost()


_queue, _short = _Queue(), _Queue()
for _one in (_queue, _short):
    atexit.register(_one.close)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_one.forget)


def prepare(*, compiles: bool = True) -> None:
    """Let the server of children import what they need; with a thread on each core, or without ``compiles``, what
    compilers need only once something is compiled."""
    server.start(compiles=compiles and not DUTY.is_full())
    _share_with(server.importing(), LOWERING_SHARE)


def _share_with(child: Pausable | None, share: float) -> None:
    """Give a child a share of the program's time, if it can be stopped."""
    if child is not None:
        DUTY.add(child, share)


def submit(start: Callable[[], Pending], *, short: bool = False) -> Ticket:
    """Queue a compilation, whose ``start`` is called in another thread. ``short``: it is a lowering, which takes
    seconds and has its own queue."""
    ticket = Ticket(start, "is being made", LOWERING_SHARE) if short else Ticket(start, "is compiling", COMPILING_SHARE)
    (_short if short else _queue).submit(ticket)
    return ticket


def busy() -> bool:
    """Whether something is being compiled now: it occupies a core, which disturbs measurements."""
    return _queue.serving or _short.serving
