"""The process that forks children: it takes orders by standard input, and tells by standard output which have ended.

``server`` is its owner's side, which starts it. This module does not know what the children do.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Never

from torchjanus.core.settings import SETTINGS
from torchjanus.execute.compiled.priority import PRIORITY, SERVER

__all__ = ["COMPILER", "ENVIRONMENT", "IMPORTED", "LOWERING", "READ_LATE", "STARTED", "STOPPABLE", "STOPS", "serve"]

# Modules whose main() a child may run, and what each of them imports when it is at work. What has a function warm_up is
# called, too: PyTorch fills tables and imports further modules at the first use, which takes seconds.
LOWERING, COMPILER = "torchjanus.execute.processes.lowering", "torchjanus.execute.compiled.worker"
_LOWERERS = (
    LOWERING,
    "torch.fx._graph_pickler", "torch.fx.experimental.symbolic_shapes", "torch._dynamo.source",
    "torch.utils._sympy.interp", "torch.utils._sympy.printers", "torch._inductor.codecache",
    "torchjanus.execute.processes.warm_up",
)  # fmt: skip
_COMPILERS = (
    COMPILER, "torch._inductor.compile_fx", "torch._inductor.codegen.cpp", "torch._inductor.codegen.cpp_wrapper_cpu",
    "torch._inductor.standalone_compile", "torch._inductor.output_code", "torch._inductor.fx_passes.joint_graph",
    "torch._inductor.fx_passes.post_grad", "torch._functorch.aot_autograd", "torch._dynamo.utils",
    "torch.fx.experimental.symbolic_shapes", "torch._decomp.decompositions",
)  # fmt: skip
_IMPORTS = {LOWERING: _LOWERERS, COMPILER: (*_LOWERERS, *_COMPILERS)}
STOPPABLE = "--stoppable"  # to the server: its parent's main thread has started it
STARTED = -1  # in place of the number of a child that has ended: it may be stopped from now on
IMPORTED = 0  # in place of the number of a child that has ended: all is imported
_IDLE = 120.0  # seconds without an order and without a child, after which the server ends
_STEP = 0.02  # seconds between two looks at children that may have ended
_LOOK = 0.25  # seconds between two looks whether the program is alive
# Variables of the environment that are read at each use, not at import. A child gets the program's values.
READ_LATE = (*(setting.name for setting in SETTINGS), "TORCHINDUCTOR_CACHE_DIR")
ENVIRONMENT = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # of the server
STOPS = sys.platform == "linux"  # whether a child may be stopped: it ends with its parent all the same
_PR_SET_PDEATHSIG = 1  # see prctl(2)


class _Serving:
    """The loop of the server: orders come by standard input, ends of children go by standard output."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._imports = deque[str]()  # modules left to import
        self._importing = False
        self._held: list[dict[str, Any]] = []  # for compilers, that came meanwhile: each would import the rest itself
        self._running: dict[int, tuple[int, str]] = {}  # by process: the order, and the folder
        self._text = b""

    def run(self, owner: int) -> None:
        """Serve until the process ``owner``, the program, ends, or there is nothing to do for long."""
        idle = time.monotonic()
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
            _import_all((self._imports.popleft(),))
            return
        self._importing = False
        _answer(self._answers, IMPORTED)
        held, self._held = self._held, []
        for message in held:
            self._take(message)

    def _take(self, message: dict[str, Any]) -> None:
        if "prepare" in message:
            self._importing = True
            self._imports.extend(_IMPORTS[message["prepare"]])
            return
        held = {one["order"] for one in self._held if "order" in one}
        if self._importing and (message.get("module") == COMPILER or message.get("child") in held):
            self._held.append(message)
            return
        if "signal" in message:
            for process, (number, _) in self._running.items():
                if number == message["child"]:
                    _signal(process, message["signal"])
            return
        if message["module"] == LOWERING:
            _import_all(_LOWERERS)  # else each child would do so
        process = os.fork()
        if process == 0:
            _child(message)
        self._running[process] = message["order"], message["folder"]

    def _reap(self) -> None:
        for process in [*self._running]:
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                number, _ = self._running.pop(process)
                _answer(self._answers, number, os.waitstatus_to_exitcode(status))


def _import_all(modules: Sequence[str]) -> None:
    """Import the modules, and call the function ``warm_up`` of those that have one and were not imported before."""
    for name in modules:
        known = name in sys.modules
        try:
            module = importlib.import_module(name)
        except ImportError:  # of another version of torch: imported when it is needed
            continue
        if not known and hasattr(module, "warm_up"):
            try:
                module.warm_up()
            except Exception:  # children do without, and take longer
                traceback.print_exc()
        PRIORITY.look()


def _answer(answers: int, number: int, code: int = 0) -> None:
    """Tell the owner of an event, or how the child of an order has ended."""
    os.write(answers, f"{number} {code}\n".encode())


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
        _set_environment({**order["environment"], "TMPDIR": order["folder"]})
        sys.path[:] = order["path"]
        tempfile.tempdir = None  # found again
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


def _set_environment(given: Mapping[str, str]) -> None:
    """Set these variables. Those of READ_LATE that are not given are not set in the program."""
    for name in [name for name in os.environ if name.startswith(READ_LATE)]:
        del os.environ[name]
    os.environ.update(given)


def serve(orders: int, answers: int, owner: int) -> Never:
    """In the fork: serve the process ``owner``, and end."""
    code = 1
    try:
        _when_parent_ends(signal.SIGCONT)
        os.setpgid(0, 0)
        PRIORITY.begin(SERVER)
        nothing = os.open(os.devnull, os.O_RDWR)
        for old, new in ((0, orders), (1, nothing), (2, nothing)):
            os.dup2(new, old)
        _answer(answers, STARTED)
        os.environ.update(ENVIRONMENT)
        if (config := sys.modules.get("torch._inductor.config")) is not None:  # it has read the environment
            config.compile_threads = 1  # type: ignore[attr-defined]
        _Serving(answers).run(owner)
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """The server: import what children need, then serve."""
    owner = os.getppid()
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever an import prints is no answer
    if STOPPABLE in sys.argv:
        _when_parent_ends(signal.SIGCONT)  # it looks at once, and removes what its children leave
        _answer(answers, STARTED)
    _import_all(_LOWERERS)
    if threading.active_count() == 1:  # else a fork would lack the other threads
        _answer(answers, IMPORTED)
        _Serving(answers).run(owner)


if __name__ == "__main__":
    main()
