"""Starts children in milliseconds: a process that has imported what they need forks one for each order.

Importing torch, Inductor and torchjanus takes seconds, which a program of a minute cannot wait. The server is started
when a graph is going to be made, imports beside the program, and ends when it has had no order for a while or the
program has ended. ``torchjanus run`` starts it before the script, as a fork of itself, which has most of the imports.
Where there is no ``fork``, or the settings in the environment have changed since, children are started as before.
This module does not know what the children do.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

__all__ = ["PRELOADED", "STOPS", "Forked", "Importing", "close", "fork", "importing", "start"]

# Modules whose main() a child may run, and what the second of them imports when it is at work.
PRELOADED = ("torchjanus.execute.processes.lowering", "torchjanus.execute.compiled.worker")
_COMPILERS = (
    "torch._inductor.compile_fx", "torch._inductor.codegen.cpp", "torch._inductor.codegen.cpp_wrapper_cpu",
    "torch._inductor.standalone_compile", "torch._inductor.output_code", "torch._inductor.fx_passes.joint_graph",
    "torch._inductor.fx_passes.post_grad", "torch._functorch.aot_autograd", "torch._dynamo.utils",
    "torch.fx.experimental.symbolic_shapes", "torch._decomp.decompositions",
)  # fmt: skip
NICENESS = 3  # of the server, and so of its children at least
niceness = 0  # of this process, if the server has forked it
_STOPPABLE = "--stoppable"  # to the server: its parent's main thread has started it
_IMPORTED = 0  # in place of the number of a child that has ended: all is imported
_IDLE = 120.0  # seconds without an order and without a child, after which the server ends
_STEP = 0.02  # seconds between two looks at children that may have ended
_LOOK = 0.25  # seconds between two looks whether the program is alive
_ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # of the server
STOPS = sys.platform == "linux"  # whether a child may be stopped: it ends with its parent all the same
_PR_SET_PDEATHSIG = 1  # see prctl(2)
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
        if not self.server.has_children:
            self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._send(signal.SIGCONT)

    def poll(self) -> int | None:
        """Return 0 once it has imported all, or has ended, else None."""
        return 0 if self.server.imported.is_set() else None

    def _send(self, number: int) -> None:
        # Until its end is noted, nobody has waited for it: the number is its own. Once it has imported all, it is not
        # stopped any more, but it may have been before.
        if self.server.alive and (number == signal.SIGCONT or not self.server.imported.is_set()):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.server.process, number)


class _Fork:
    """A fork of this process that serves. It has the interface of ``Popen`` that is needed here."""

    def __init__(self) -> None:
        orders, answers = os.pipe(), os.pipe()
        with warnings.catch_warnings():  # threads of NumPy's: they are idle, and ended in the fork
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _serve(orders[0], answers[1])
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
    stoppable = [_STOPPABLE] if threading.current_thread() is threading.main_thread() else []
    return subprocess.Popen(
        [sys.executable, "-m", __name__, *stoppable], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": paths, **_ENVIRONMENT}, process_group=0,
    )  # fmt: skip


class _Server:
    """The server as its owner sees it."""

    def __init__(self, begin: Callable[[], subprocess.Popen[bytes] | _Fork]) -> None:
        self.settings = _settings()
        # What the system sees is the end of the thread that has started it: only the main thread lives as long as the
        # program.
        self.ends_with_parent = threading.current_thread() is threading.main_thread()
        self._process = begin()
        self._lock = threading.Lock()
        self._children: dict[int, Forked] = {}
        self._orders = 0
        self._compiles = False  # whether it was asked to import what compilers need
        self.imported = threading.Event()  # it imports nothing now, or has ended
        if isinstance(self._process, _Fork):
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

    def prepare(self) -> None:
        """Let it import what compilers need."""
        if not self._compiles:
            self._compiles = True
            self.imported.clear()
            self.send({"prepare": True})

    def send(self, message: dict[str, Any]) -> bool:
        """Send a message; whether the server could be reached."""
        assert self._process.stdin is not None
        try:
            with self._lock:
                self._process.stdin.write(json.dumps(message).encode() + b"\n")
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
        Importing(self).resume()  # see there
        if module == PRELOADED[1]:
            self.prepare()
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
            if number == _IMPORTED:
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


def start(*, forks: bool = False, compiles: bool = True) -> None:
    """Start the server, if there is none and there can be one. ``forks``: as a fork, since no code of the program has
    run in this process, and torch has computed nothing; ``compiles``: it imports what compilers need at once, not with
    the first order for one."""
    global _server
    if not hasattr(os, "fork") or not hasattr(os, "killpg"):
        return
    with _starting:
        if _server is None or not _server.alive:
            _server = _Server(_Fork if forks and threading.active_count() == 1 else _process_of_its_own)
        if compiles:
            _server.prepare()


def importing() -> Importing | None:
    """Return the server, if it imports now and may be stopped: the system ends it with the program all the same."""
    server = _server
    if not STOPS or server is None or not server.ends_with_parent or server.imported.is_set():
        return None
    return Importing(server)


def fork(module: str, folder: str, environment: Mapping[str, str]) -> Forked | None:
    """Return a child of the server that runs ``module.main(folder, parent)``; None if it is to be started otherwise."""
    if module not in PRELOADED or not hasattr(os, "fork"):
        return None
    start(compiles=False)
    server = _server
    if server is None or not server.alive or server.settings != _settings():
        return None
    return server.fork(module, folder, environment)


def _settings() -> dict[str, str]:
    """Return the settings that libraries read when they are imported."""
    return {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS)}


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


# ---- the server's own side ----


class _Serving:
    """The loop of the server: orders come by standard input, ends of children go by standard output."""

    def __init__(self, answers: int, imports: Sequence[str]) -> None:
        self._answers = answers
        self._imports = deque(imports)  # what compilers need and is left to import
        self._importing = False
        self._held: list[dict[str, Any]] = []  # for compilers, that came meanwhile: each would import the rest itself
        self._running: dict[int, tuple[int, str]] = {}  # by process: the order, and the folder
        self._text = b""

    def run(self) -> None:
        """Serve until the program ends, or there is nothing to do for long."""
        owner, idle = os.getppid(), time.monotonic()
        while os.getppid() == owner and time.monotonic() - idle < _IDLE:
            wait = 0.0 if self._importing else _STEP if self._running else _LOOK
            ready, _, _ = select.select([0], [], [], wait)
            if ready:
                read = os.read(0, 1 << 20)
                if not read:
                    break
                *lines, self._text = (self._text + read).split(b"\n")
                for line in lines:
                    self._take(json.loads(line))
            self._reap()
            if self._importing and not ready:
                self._import()
            if self._running or ready or self._importing:
                idle = time.monotonic()
        for process, (_, folder) in self._running.items():
            _signal(process, signal.SIGKILL)
            os.waitpid(process, 0)
            shutil.rmtree(folder, ignore_errors=True)
        for folder in (message["folder"] for message in self._held if "folder" in message):
            shutil.rmtree(folder, ignore_errors=True)

    def _import(self) -> None:
        """Import one module; behind the last one, begin what was ordered meanwhile."""
        if self._imports:
            with contextlib.suppress(ImportError):  # of another version of torch: imported when it is needed
                importlib.import_module(self._imports.popleft())
            return
        self._importing = False
        self.say_imported()
        held, self._held = self._held, []
        for message in held:
            self._take(message)

    def say_imported(self) -> None:
        """Tell the owner that nothing is imported now."""
        os.write(self._answers, f"{_IMPORTED} 0\n".encode())

    def _take(self, message: dict[str, Any]) -> None:
        if "prepare" in message:
            self._importing = True
            return
        held = {one["order"] for one in self._held if "order" in one}
        if self._importing and (message.get("module") == PRELOADED[1] or message.get("child") in held):
            self._held.append(message)
            return
        if "signal" in message:
            for process, (number, _) in self._running.items():
                if number == message["child"]:
                    _signal(process, message["signal"])
            return
        process = os.fork()
        if process == 0:
            _child(message)
        self._running[process] = message["order"], message["folder"]

    def _reap(self) -> None:
        for process in [*self._running]:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                number, _ = self._running.pop(process)
                os.write(self._answers, f"{number} {os.waitstatus_to_exitcode(status)}\n".encode())


def _signal(process: int, number: int) -> None:
    """Send a signal to a child, and to all that it has started."""
    for send in (os.killpg, os.kill):  # it may not have a group yet
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(process, number)


def _when_parent_ends(number: signal.Signals) -> None:
    """Let the system send this signal when the parent ends: a stopped process cannot look whether it is alive."""
    if STOPS:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def _child(order: dict[str, Any]) -> None:
    """In the child: do what is ordered, as ``python -m`` of the module would, and end."""
    code = 1
    try:
        _when_parent_ends(signal.SIGKILL)
        os.setpgid(0, 0)
        log = os.open(Path(order["folder"]) / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for old, new in ((0, nothing), (1, log), (2, log)):
            os.dup2(new, old)
        os.environ.update(order["environment"], TMPDIR=order["folder"])
        sys.path[:] = order["path"]
        tempfile.tempdir = None  # found anew
        importlib.import_module(order["module"]).main(Path(order["folder"]), os.getppid())
        code = 0
    except SystemExit as request:
        code = request.code if isinstance(request.code, int) else 1
        if not isinstance(request.code, int):
            print(request.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve(orders: int, answers: int) -> Never:
    """In the fork: serve, and end."""
    global niceness
    code = 1
    try:
        _when_parent_ends(signal.SIGCONT)
        os.setpgid(0, 0)
        os.nice(NICENESS)
        niceness = NICENESS
        nothing = os.open(os.devnull, os.O_RDWR)
        for old, new in ((0, orders), (1, nothing), (2, nothing)):
            os.dup2(new, old)
        os.environ.update(_ENVIRONMENT)
        if (config := sys.modules.get("torch._inductor.config")) is not None:  # it has read the environment
            config.compile_threads = 1  # type: ignore[attr-defined]
        _Serving(answers, (PRELOADED[1], *_COMPILERS)).run()
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """The server: import what children need, then serve."""
    os.nice(NICENESS)
    if _STOPPABLE in sys.argv:
        _when_parent_ends(signal.SIGCONT)  # it looks at once, and removes what its children leave
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever an import prints is no answer
    vars(importlib.import_module("torchjanus.execute.compiled.server"))["niceness"] = NICENESS  # not of __main__
    importlib.import_module(PRELOADED[0])
    if threading.active_count() == 1:  # else a fork would lack the other threads
        serving = _Serving(answers, (PRELOADED[1], *_COMPILERS))
        serving.say_imported()
        serving.run()


if __name__ == "__main__":
    main()
