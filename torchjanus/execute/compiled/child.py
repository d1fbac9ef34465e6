"""A child process that works beside the training: niced, bounded in memory, and ended with its parent.

It gets a folder of its own, writes nowhere else, and removes the folder if it outlives its parent. This module does not
know what the child does.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torchjanus.execute.compiled import serving
from torchjanus.execute.compiled.priority import PRIORITY
from torchjanus.execute.compiled.server import Forked, fork

try:
    import resource
except ImportError:  # not on Windows: there a child's memory has no bound
    resource = None  # type: ignore[assignment]

__all__ = ["Child", "begin", "bound"]

MEMORY = 8 << 30  # bytes, besides the example inputs; at most half of the machine's memory
# Where there is room (see `priority`). Of two processes that want one core, the one at niceness 5 gets a quarter of it
# (Linux). At 10 it gets a tenth: what is made for a program of a minute comes too late. Lowering comes before.
NICENESS = 5
_OBJECTS = 100_000  # new objects after which the collector looks for cycles: a child does not live long
_WATCH = 0.25  # seconds between two checks whether the parent is alive


class Child:
    """The process of ``python -m MODULE FOLDER PARENT``. See ``begin`` for its own side.

    ``fill`` writes the child's inputs into the folder, and returns changes to its environment.
    """

    def __init__(self, module: str, fill: Callable[[Path], Mapping[str, str]], *, forked: bool = True) -> None:
        """``forked``: whether the server may fork it. CUDA cannot be used in a fork of a process that has looked for
        it."""
        folder = tempfile.mkdtemp(prefix="torchjanus-")
        self._end: weakref.finalize[..., Any] = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.folder = Path(folder)
        environment = fill(self.folder)
        # The child must find the same torchjanus and torch that run here. Files that a killed C++ compiler leaves
        # behind are removed with the folder.
        self._log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | Forked = (
            fork(module, folder, environment) if forked else None
        ) or self._start(module, environment)
        self._end.detach()
        # At the latest when the object is collected, or at the end of the program.
        self._end = weakref.finalize(self, _end, self._process, folder, os.getpid())

    def _start(self, module: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process of its own, which imports all it needs first."""
        paths = os.pathsep.join(part for part in sys.path if part)
        with self._log.open("wb") as log:
            # A process group of its own: an interrupt of the training does not reach it, and all of it can be killed at
            # once. Not a session of its own: Linux shares cores evenly between sessions (autogroup), and niceness
            # counts only within one. On two cores a training with two threads then fell to 1 of 77 steps a second.
            return subprocess.Popen(
                [sys.executable, "-m", module, str(self.folder), str(os.getpid())], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, process_group=0,
                env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(self.folder), **environment},
            )  # fmt: skip

    @property
    def stoppable(self) -> Forked | None:
        """Its process, if it can be stopped for a while: one that the server has not forked might outlive its parent
        then."""
        return self._process if isinstance(self._process, Forked) and serving.STOPS else None

    def ready(self) -> bool:
        """Whether it has ended."""
        return self._process.poll() is not None

    def wait(self, timeout: float | None = None) -> str:
        """Wait for its end. Returns "", or why it failed. Raises TimeoutExpired."""
        code = self._process.wait(timeout)
        return "" if code == 0 else self._last_words(code)

    def _last_words(self, code: int) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines() if self._log.exists() else []
        said = lines[-1][:200] if lines else ""
        if code < 0:
            ended = f"its process was ended by {signal.Signals(-code).name}"
            return f"{ended}; the last that it said: {said}" if said else ended
        return said or f"exit status {code}"

    def kill(self) -> None:
        """Kill it: ``wait`` then returns the reason."""
        _kill(self._process)

    def cancel(self) -> None:
        """Kill it, and remove its folder."""
        self._end()


def _kill(process: subprocess.Popen[bytes] | Forked) -> None:
    if isinstance(process, Forked):
        process.kill()
    elif process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)  # a C++ compiler that it has started, too
        process.kill()


def _end(process: subprocess.Popen[bytes] | Forked, folder: str, parent: int) -> None:
    if os.getpid() != parent:
        return  # a fork of the parent does not own it
    _kill(process)
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


def begin(folder: Path, parent: int, lowest: int = NICENESS) -> None:
    """In the child: end when the parent does, and go to the niceness ``lowest``, counted from the program's, as soon as
    there is room for both."""
    PRIORITY.begin(lowest)
    threading.Thread(target=_watch, args=(parent, folder), daemon=True).start()
    gc.freeze()  # what is imported stays
    gc.set_threshold(_OBJECTS)


def bound(besides: int) -> None:
    """In the child: bound the memory of this process and of each that it starts. ``besides``: bytes of the inputs."""
    if resource is None or not hasattr(resource, "RLIMIT_DATA"):
        return
    limit = min(MEMORY, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2) + besides
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _watch(parent: int, folder: Path) -> None:
    """End with the parent, for whatever reason it ends, and let others go first meanwhile (``Priority``)."""
    while os.getppid() == parent:
        time.sleep(_WATCH)
        PRIORITY.look()
    if hasattr(os, "killpg") and os.getpgid(0) == os.getpid():
        # By a process outside of the group, after this one is dead: what still runs could write into the folder again.
        command = ["sh", "-c", 'kill -s KILL -- "-$0"; rm -rf -- "$1"', str(os.getpid()), str(folder)]
        with contextlib.suppress(OSError):  # there is no sh
            subprocess.Popen(command, process_group=0).wait()
        os.killpg(0, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)
