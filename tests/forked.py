"""Runs programs in fresh processes that have imported torch and torchjanus already: an import takes seconds each time.

A process that has imported all that they need, and done nothing else, waits for orders and forks for each. The fork
runs a file, a module or a text as ``__main__``, as the interpreter would: with its own arguments, folder, environment
and output. What is read while torchjanus is imported (``TORCHJANUS_LOGS``, ``TORCHJANUS_STANCE``) is that of the tests,
unless the process that forks has imported torch only. Tests of what an interpreter shows of itself, of who calls the
program, or of the import of torch, start one.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["python", "run_forked"]

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 1800  # seconds: against programs that hang, not a bound on their speed
# What a program imports that speculates. torchjanus by itself imports little before it is used.
IMPORTED = (
    "torch", "torchjanus", "torchjanus.runtime.speculated_function", "torchjanus.runtime.report.explanation",
    "torchjanus.execute.processes.lowering", "torch.fx.experimental.symbolic_shapes", "torch.fx._graph_pickler",
    "torch._dynamo.source", "torch.utils._sympy.interp", "torch.utils._sympy.printers",
)  # fmt: skip


@functools.cache
def _waiting(imported: str) -> subprocess.Popen[str]:
    """The process that forks: one for each process of tests, and each that it has imported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.forked", imported]
    made = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(made.kill)
    return made


def python(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str] = os.environ,
    together: bool = False,
    imported: str = "torchjanus",
) -> subprocess.CompletedProcess[str]:
    """Run ``python *arguments`` in a folder: a file or ``-m module``, each with arguments, or ``-c text``.

    ``together``: errors are written to the output (``2>&1``); ``imported``: "torch" if the program is to import
    torchjanus itself."""
    process = _waiting(imported)
    assert process.stdin is not None and process.stdout is not None
    with tempfile.TemporaryDirectory() as name:
        files = [Path(name, "out"), Path(name, "out" if together else "err")]
        order = [list(arguments), str(folder), dict(environment), list(map(str, files))]
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        code = int(process.stdout.readline())
        return subprocess.CompletedProcess(list(arguments), code, *(file.read_text() for file in files))


def run_forked(
    command: Sequence[str], *, cwd: Path, env: Mapping[str, str], **others: Any
) -> subprocess.CompletedProcess[str]:
    """Stand in for ``subprocess.run``, where the command is this interpreter and its output is captured as text."""
    interpreter, *arguments = command
    assert interpreter == sys.executable and others["capture_output"] and others["text"], command
    return python(arguments, cwd, env)


# -- the other side ---------------------------------------------------------------------------------------------------


def _serve(imported: str) -> None:
    # What the forks need not import.
    for name in IMPORTED if imported == "torchjanus" else ("torch", "torch._inductor.standalone_compile"):
        importlib.import_module(name)
    answers = os.fdopen(os.dup(1), "w")  # a fork writes elsewhere
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _be(*json.loads(line))
        answers.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        answers.flush()


def _be(arguments: list[str], folder: str, environment: dict[str, str], files: list[str]) -> NoReturn:
    """Be the process that ``python *arguments`` starts."""
    signal.alarm(LIMIT)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [*paths, *(path for path in sys.path[1:] if path not in paths)]
    code = 0
    try:
        _run(arguments, folder)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if end.code is not None and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        code = 1
        while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == __file__:
            error.__traceback__ = error.__traceback__.tb_next
        traceback.print_exception(error)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 255)


def _run(arguments: list[str], folder: str) -> None:
    main: Any = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    first, *rest = arguments
    if first == "-m":
        import runpy

        sys.path.insert(0, folder)
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main.__builtins__ = __builtins__
    if first == "-c":
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec", dont_inherit=True), main.__dict__)
        return
    sys.path.insert(0, str(Path(folder, first).resolve().parent))
    sys.argv[:] = [first, *rest]
    main.__file__ = os.path.join(folder, first)
    main.__cached__ = None
    exec(compile(Path(folder, first).read_bytes(), main.__file__, "exec", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    _serve(sys.argv[1])
