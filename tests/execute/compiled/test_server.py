"""The server forks children that do what a process of their own would do, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchjanus.execute.compiled import server, serving
from torchjanus.execute.compiled.child import Child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked on POSIX only")

LONG = 600.0  # seconds: far more than anything here takes


@pytest.fixture(scope="module", autouse=True)
def _one_of_its_own() -> Iterator[None]:
    """The server of other tests goes on: it has imported all that compilers need."""
    others, server._server = server._server, None
    yield
    server.close()
    server._server = others


def failing(words: bytes) -> Child:
    """A child whose order cannot be read."""

    def fill(folder: Path) -> dict[str, str]:
        (folder / "program").write_bytes(words)
        return {}

    return Child(server.PRELOADED[0], fill)


def waiting(folder: Path) -> server.Forked | None:
    """A child that waits for ever when it reads its order."""
    os.mkfifo(folder / "program")
    return server.fork(server.PRELOADED[0], str(folder), {})


def test_children_are_forked_and_tell_how_they_end() -> None:
    children = [failing(b"no program"), failing(b"neither")]
    for child in children:
        assert isinstance(child._process, server.Forked)
        assert "UnpicklingError" in child.wait(LONG) or "pickle" in child.wait(LONG)
        assert child.ready()
        child.cancel()
        assert not child.folder.exists()


def test_other_modules_are_not_forked(tmp_path: Path) -> None:
    assert server.fork("some.other.module", str(tmp_path), {}) is None


@pytest.mark.parametrize("name", ["TORCHINDUCTOR_CACHE_DIR", "TORCHJANUS_CACHE"])
def test_what_is_read_at_each_use_is_passed_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """Inductor sets its folder when it is imported: with a fork for each lowering refused, each would import
    everything."""
    server.start()
    first = server._server
    monkeypatch.setenv(name, str(tmp_path / "folder"))
    child = waiting(tmp_path)
    assert child is not None and server._server is first
    child.kill()
    assert child.wait(LONG) == -signal.SIGKILL


def test_a_child_has_the_programs_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"TORCHJANUS_CACHE": "old", "TORCHJANUS_DUMP": "old", "TORCH_LOGS": "same"})
    serving._set_environment({"TORCHJANUS_CACHE": "new", "TMPDIR": "folder"})
    assert os.environ == {"TORCHJANUS_CACHE": "new", "TORCH_LOGS": "same", "TMPDIR": "folder"}


def test_a_child_can_be_killed(tmp_path: Path) -> None:
    child = waiting(tmp_path)
    assert child is not None
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
    assert child.poll() is None
    child.kill()
    assert child.wait(LONG) == -signal.SIGKILL


def test_another_server_takes_the_place_of_one_with_other_settings_or_that_has_died(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A script that sets CUDA_VISIBLE_DEVICES, say, is started with a server under ``torchjanus run``."""
    server.start()
    first = server._server
    assert first is not None
    monkeypatch.setenv("TORCH_LOGS", "+inductor")
    child = waiting(tmp_path)
    second = server._server
    assert child is not None and second is not None and second is not first
    assert not first.alive and second.settings["TORCH_LOGS"] == "+inductor"
    monkeypatch.delenv("TORCH_LOGS")
    assert server.fork(server.PRELOADED[0], str(tmp_path), {}) is None  # the second has a child
    assert child.poll() is None
    second._process.kill()
    assert child.wait(LONG) == -signal.SIGKILL
    second._listener.join(LONG)
    again = failing(b"no program")
    assert isinstance(again._process, server.Forked) and again.wait(LONG)
    assert server._server is not second
    again.cancel()


PROGRAM = """
import os, sys, time
from pathlib import Path
from torchjanus.execute.compiled import server, serving

if sys.argv[3] == "forks":  # it serves at once
    serving._LOWERERS, serving._IMPORTS = (), dict.fromkeys(serving._IMPORTS, ())
server.start(forks=sys.argv[3] == "forks")
assert isinstance(server._server._process, server._Fork) == (sys.argv[3] == "forks")
os.mkfifo(Path(sys.argv[1], "program"))
child = server.fork(server.PRELOADED[0], sys.argv[1], {})
while not Path(sys.argv[1], "log").exists():
    time.sleep(0.05)
print(server._server._process.pid, flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="processes are looked up in /proc")
@pytest.mark.parametrize(
    ("how", "server"),
    [  # two that have both ends and both servers; each starts interpreters
        ("ended", "forks"),
        ("killed", "starts"),
        pytest.param("ended", "starts", marks=pytest.mark.slow),
        pytest.param("killed", "forks", marks=pytest.mark.slow),
    ],
)
def test_nothing_outlives_the_program(tmp_path: Path, how: str, server: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), how, server],
        capture_output=True,
        text=True,
        timeout=LONG,
    )
    process = int(done.stdout)
    deadline = time.monotonic() + LONG
    while alive(process) or any(parent_of(other) == process for other in processes()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


STOPPED = """
import os, sys, time
from torchjanus.execute.compiled import server

server.start(forks=True, lowers=False, compiles=False)
assert server.importing() is None
server.start()
importing = server.importing()
while sys.argv[2] == "stopped" and not server._server.may_stop:
    time.sleep(0.01)
importing.pause()
print(server._server.process, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), 9)
importing.resume()
assert server._server.imported.wait(600)
assert importing.poll() == 0 and server.importing() is None
"""


@pytest.mark.skipif(not server.STOPS, reason="processes are stopped on Linux only")
@pytest.mark.parametrize(
    ("how", "when"),
    [  # each starts interpreters
        ("resumed", "stopped"),
        ("killed", "stopped"),
        pytest.param("killed", "starting", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_imports_can_be_stopped_and_ends_with_the_program(how: str, when: str) -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED, how, when], capture_output=True, text=True, timeout=LONG)
    assert done.returncode == (-9 if how == "killed" else 0), done.stderr
    deadline = time.monotonic() + LONG
    while alive(int(done.stdout)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def processes() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def status_of(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def alive(process: int) -> bool:
    return status_of(process)[0] not in "XZ"


def parent_of(process: int) -> int:
    return int(status_of(process)[1])


def test_a_child_that_needs_a_device_is_no_fork() -> None:
    child = Child(server.PRELOADED[0], lambda folder: {}, forked=False)
    assert not isinstance(child._process, server.Forked)
    child.cancel()
