"""Starts children in milliseconds: a process that has imported what they need forks one for each order.

Importing torch, Inductor and torchjanus takes seconds, which a program of a minute cannot wait. The server is started
when a graph is going to be made, imports beside the program, and ends when it has had no order for a while or the
program has ended. ``torchjanus run`` may start it before the script, as a fork of itself, which has most of the
imports. Where the settings in the environment have changed since, another takes its place as soon as it has no
children. Until then, and where there is no ``fork``, each child is started as a process that imports all itself.
This module does not know what the children do.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torchjanus.core.unwarned import unwarned
from torchjanus.execute.compiled import serving
from torchjanus.execute.compiled.serving import (
    COMPILER,
    ENVIRONMENT,
    IMPORTED,
    LOWERING,
    READ_LATE,
    STARTED,
    STOPPABLE,
    STOPS,
    serve,
)

__all__ = ["PRELOADED", "STOPS", "Forked", "Importing", "close", "fork", "importing", "start"]

PRELOADED = (LOWERING, COMPILER)  # modules whose main() a child may run
# Libraries read what begins so when they are imported, except for READ_LATE.
_SETTINGS = ("TORCH", "OMP_", "MKL_", "KMP_", "CXX", "CC", "CUDA_", "PYTHONHASHSEED")


class Forked:
    """A child of the server, as this process sees it. It has the interface of ``Popen`` that is needed here."""

    def __init__(self, server: _Server, number: int) -> None:
        self._server = server
        self._number = number
        self._done = threading.Event()
        self._code: int | None = None

    def pause(self) -> None:
        """Stop it with all that it has started, until ``resume``."""
        self._server.send({"signal": signal.SIGSTOP, "child": self._number})

    def resume(self) -> None:
        """Let it go on."""
        self._server.send({"signal": signal.SIGCONT, "child": self._number})

    def ended(self, code: int) -> None:
        """Note its exit status, negative for a signal."""
        self._code = code
        self._done.set()

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises TimeoutExpired."""
        if not self._done.wait(timeout):
            raise subprocess.TimeoutExpired("a child of the server", timeout or 0.0)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        """Kill it with all that it has started. The server does it, which knows whether its number is still its own."""
        if self._code is None and not self._server.send({"signal": signal.SIGKILL, "child": self._number}):
            self.ended(-signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Importing:
    """A server while it imports. It may be stopped meanwhile, unless it has children, which it stops and resumes."""

    server: _Server

    def pause(self) -> None:
        """Stop it, until ``resume``."""
        if self.server.may_stop and not self.server.has_children:
            self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._send(signal.SIGCONT)

    def poll(self) -> int | None:
        """Return 0 once it has imported all, or has ended, else None."""
        return 0 if self.server.imported.is_set() else None

    def _send(self, number: int) -> None:
        # Until its end is noted, it has not been waited for, so the process id is still its own. Once it has imported
        # all, it is not stopped any more, but it may have been before.
        if self.server.alive and (number == signal.SIGCONT or not self.server.imported.is_set()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.server.process, number)


class _Fork:
    """A fork of this process that serves. It has the interface of ``Popen`` that is needed here."""

    def __init__(self) -> None:
        orders, answers, owner = os.pipe(), os.pipe(), os.getpid()
        with unwarned():  # of threads of NumPy's: they are idle, and ended in the fork
            self.pid = os.fork()
        if self.pid == 0:
            for end in (orders[1], answers[0]):
                os.close(end)
            serve(orders[0], answers[1], owner)
        for end in (orders[0], answers[1]):
            os.close(end)
        self.stdin, self.stdout = os.fdopen(orders[1], "wb"), os.fdopen(answers[0], "rb")

    def kill(self) -> None:
        """Kill it. Only ``wait`` gives its number back to the system."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Return when it has ended."""
        with contextlib.suppress(ChildProcessError):  # the program has waited for any child
            os.waitpid(self.pid, 0)
        self.pid = 0


def _process_of_its_own() -> subprocess.Popen[bytes]:
    paths = os.pathsep.join(part for part in sys.path if part)
    stoppable = [STOPPABLE] if threading.current_thread() is threading.main_thread() else []
    return subprocess.Popen(
        [sys.executable, "-m", serving.__name__, *stoppable], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths, **ENVIRONMENT}, process_group=0,
    )  # fmt: skip


class _Server:
    """The server as its owner sees it."""

    def __init__(self, begin: Callable[[], subprocess.Popen[bytes] | _Fork]) -> None:
        self.settings = _settings()
        self._process = begin()
        self._lock = threading.Lock()
        self._children: dict[int, Forked] = {}
        self._orders = 0
        # Whether the system will resume it when the program ends. Where it is started by another thread than the main
        # one, the system would look at the end of that thread.
        self.may_stop = False
        forked = isinstance(self._process, _Fork)
        self._prepared = set() if forked else {LOWERING}  # the modules for which it was asked to import what they need
        self.imported = threading.Event()  # it imports nothing now, or has ended
        if forked:
            self.imported.set()
        self.alive = True
        self._listener = threading.Thread(target=self._listen, name="torchjanus children", daemon=True)
        self._listener.start()

    @property
    def process(self) -> int:
        """The number of its process."""
        return self._process.pid

    @property
    def has_children(self) -> bool:
        """Whether it has been ordered a child that has not ended."""
        return bool(self._children)

    def prepare(self, module: str) -> None:
        """Let it import what this one of PRELOADED needs."""
        if module not in self._prepared:
            self._prepared |= {module, LOWERING}  # a compiler's imports include those of lowering
            self.imported.clear()
            self.send({"prepare": module})

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; whether the server could be reached."""
        assert self._process.stdin is not None
        line = json.dumps(message).encode() + b"\n"
        try:
            with self._lock:
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def fork(self, module: str, folder: str, environment: Mapping[str, str]) -> Forked | None:
        """Order a child that runs the ``main`` of ``module``; None if the server cannot be reached."""
        with self._lock:
            self._orders += 1
            number = self._orders
            child = self._children[number] = Forked(self, number)
        Importing(self).resume()  # from now on it has a child to stop and resume
        if module == COMPILER:
            self.prepare(COMPILER)
        order = {"order": number, "module": module, "folder": folder, "environment": dict(environment)}
        if self.send({**order, "path": [part for part in sys.path if part]}):
            return child
        self._children.pop(number, None)
        return None

    def _listen(self) -> None:
        """Note which children have ended, until the server has."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, code = map(int, line.split())
            if number == STARTED:
                self.may_stop = True
                continue
            if number == IMPORTED:
                self.imported.set()
                continue
            child = self._children.pop(number, None)
            if child is not None:
                child.ended(code)
        self.alive = False
        self.imported.set()
        self._process.wait()
        for child in [*self._children.values()]:
            child.ended(-signal.SIGKILL)
        self._children.clear()
        self._process.stdout.close()
        with contextlib.suppress(OSError):  # the last message did not reach it
            self._process.stdin.close()  # type: ignore[union-attr]

    def close(self) -> None:
        """End it; its children see that and end, too."""
        self._process.kill()
        self._listener.join()


_server: _Server | None = None
_starting = threading.Lock()


def start(*, forks: bool = False, lowers: bool = True, compiles: bool = True) -> None:
    """Start the server, if there is none with these settings and there can be one. ``forks``: as a fork, since no code
    of the program has run in this process, and torch has computed nothing; ``lowers``, ``compiles``: it imports what
    lowering, and what compilers need at once, not with the first order for one."""
    if not hasattr(os, "fork") or not hasattr(os, "killpg"):
        return
    with _starting:
        server = _started(_Fork if forks and threading.active_count() == 1 else _process_of_its_own)
        if compiles or lowers:
            server.prepare(COMPILER if compiles else LOWERING)


def _started(begin: Callable[[], subprocess.Popen[bytes] | _Fork]) -> _Server:
    """Return the server; one of other settings only while it has children."""
    global _server
    if _server is not None and _server.settings != _settings() and not _server.has_children:
        _server.close()
    if _server is None or not _server.alive:
        _server = _Server(begin)
    return _server


def importing() -> Importing | None:
    """Return the server, if it imports now and may be stopped: the system ends it with the program all the same."""
    server = _server
    if not STOPS or server is None or server.imported.is_set():
        return None
    return Importing(server)


def fork(module: str, folder: str, environment: Mapping[str, str]) -> Forked | None:
    """Return a child of the server that runs ``module.main(folder, parent)``; None if it is to be started otherwise."""
    if module not in PRELOADED or not hasattr(os, "fork") or not hasattr(os, "killpg"):
        return None
    with _starting:  # no other thread ends the server during this
        server = _started(_process_of_its_own)
        if server.settings != _settings():
            return None
        late = {name: value for name, value in os.environ.items() if name.startswith(READ_LATE)}
        return server.fork(module, folder, {**late, **environment})


def _settings() -> dict[str, str]:
    """Return the settings that libraries read when they are imported."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(_SETTINGS) and not name.startswith(READ_LATE)
    }


def close() -> None:
    """End the server, if there is one."""
    if _server is not None and _server.alive:
        _server.close()


def _forget() -> None:
    """In a fork of the program: the server is the parent's."""
    global _server, _starting
    _server, _starting = None, threading.Lock()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
