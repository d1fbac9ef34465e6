"""``torchjanus run``: a script runs as python would run it, and the report follows whatever became of it."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import torchjanus
from tests.forked import python, run_forked
from torchjanus import cli, runtime

ROOT = Path(__file__).resolve().parents[2]
# For interpreters that run elsewhere: they find this checkout first, then what this one finds.
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
}


@dataclasses.dataclass(frozen=True)
class Counts:
    calls: int = 50
    watched: int = 3
    speculated: int = 45
    missed: int = 2
    violated: int = 0
    refused: int = 0
    imperative: int = 0
    compiles: int = 1
    entries: int = 1


class Step:
    """Stands for a speculated function."""

    def __init__(self, name: str) -> None:
        self.__qualname__ = name

    def statistics(self) -> Counts:
        return Counts()


class Said:
    """Stands for an explanation."""

    def __init__(self, step: Step) -> None:
        self.name = step.__qualname__

    def __str__(self) -> str:
        return f"{self.name}: assumes nothing [at all]"

    def detailed(self) -> str:
        return f"{self}, in detail"

    def data(self) -> dict[str, object]:
        return {"name": self.name}


@pytest.fixture
def chosen() -> list[str]:
    """The executors that the command set as the default."""
    return []


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch, chosen: list[str]) -> list[Step]:
    """The speculated functions that the command sees. Also puts back what a script leaves behind in the interpreter."""
    steps: list[Step] = []
    monkeypatch.setattr(runtime, "speculated", lambda: tuple(steps))
    monkeypatch.setattr(runtime, "keep_speculated", lambda: None)
    monkeypatch.setattr("torchjanus.runtime.report.explanation.explain", Said)
    monkeypatch.setattr(cli, "executor_in_use", lambda: "replay")
    monkeypatch.setattr(runtime, "default_executor", lambda *name: chosen.extend(name) or "replay")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    return steps


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str, name: str = "script.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
        return str(path)

    return write


SEEN = """\
import sys, json, os
import neighbour
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "name": __name__, "file": __file__, "package": __package__,
    "spec": repr(__spec__), "doc": __doc__, "main": sys.modules["__main__"].__dict__ is globals(),
    "names": sorted(n for n in globals() if n.startswith("__")), "neighbour": neighbour.x,
}))
"""


@pytest.mark.parametrize("place", ["here", "below", "link"])
def test_a_script_sees_what_python_would_show_it(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "seen.py").write_text('"""Its docstring."""\n' + SEEN)
    (tmp_path / "folder" / "neighbour.py").write_text("x = 7\n")
    (tmp_path / "link.py").symlink_to("folder/seen.py")
    folder, name = {
        "here": (tmp_path / "folder", "seen.py"),
        "below": (tmp_path, os.path.join("folder", "seen.py")),
        "link": (tmp_path, "link.py"),
    }[place]
    arguments = [name, "--json", "x", "--", "-v", "--no-report"]

    def shown(run: Callable[..., subprocess.CompletedProcess[str]], command: list[str]) -> dict[str, object]:
        done = run([sys.executable, *command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
        return json.loads(done.stdout)

    plain = shown(subprocess.run, arguments)
    runs = subprocess.run if place == "here" else run_forked
    assert shown(runs, ["-m", "torchjanus", "run", *arguments]) == plain
    assert plain["argv"] == arguments


def test_the_report_names_every_function(registry: list[Step], script, capsys: pytest.CaptureFixture[str]) -> None:
    registry += [Step("train_step"), Step("Trainer.evaluate")]
    assert cli.main(["run", script("print('hello')")]) == 0
    out, err = capsys.readouterr()
    assert out == "hello\n"
    assert "train_step: assumes nothing [at all]\n\nTrainer.evaluate: assumes nothing [at all]\n" in err


def test_the_report_in_detail(registry: list[Step], script, capsys: pytest.CaptureFixture[str]) -> None:
    registry.append(Step("train_step"))
    assert cli.main(["run", "--detail", script("")]) == 0
    assert "train_step: assumes nothing [at all], in detail\n" in capsys.readouterr().err


def test_nothing_speculated_is_said_with_the_remedy(registry, script, capsys) -> None:
    assert cli.main(["run", script("")]) == 0
    assert "Nothing was speculated" in (err := capsys.readouterr().err)
    assert "@torchjanus.speculate" in err


def test_no_report(registry, script, capsys) -> None:
    registry.append(Step("train_step"))
    assert cli.main(["run", "--no-report", script("")]) == 0
    assert capsys.readouterr().err == ""


def test_json(registry, script, tmp_path: Path) -> None:
    registry.append(Step("train_step"))
    path = script("import sys; sys.exit(4)")
    target = tmp_path / "report.json"
    assert cli.main(["run", "--json", str(target), "--no-report", path, "--epochs", "3"]) == 4
    content = json.loads(target.read_text())
    assert content["script"] == path
    assert content["arguments"] == ["--epochs", "3"]
    assert content["exit_code"] == 4
    assert content["seconds"] >= 0
    (function,) = content["functions"]
    assert function["name"] == "train_step"
    assert function["statistics"] == dataclasses.asdict(Counts())
    assert function["screen"] == "train_step: assumes nothing [at all]"
    assert function["explanation"] == "train_step: assumes nothing [at all], in detail"
    assert function["report"] == {"name": "train_step"}


def test_json_into_a_folder_that_is_not_there_stops_before_the_run(registry, script, tmp_path, capsys) -> None:
    assert cli.main(["run", "--json", str(tmp_path / "no" / "r.json"), script("print('ran')")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "there is no folder" in err


def test_executor_becomes_the_default(registry, chosen, script) -> None:
    assert cli.main(["run", "--executor", "replay", script("")]) == 0
    assert chosen == ["replay"]


def test_an_unknown_executor_stops_before_the_run(script, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--executor", "fast", script("print('ran')")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    known = "'auto', 'replay', 'inductor', 'cudagraph', 'coexecute'"
    assert err == f"torchjanus: executor='fast': torchjanus has {known}.\n"


REAL = """\
import torch, torchjanus

def main():
    weight = torch.ones(3, requires_grad=True)

    @torchjanus.speculate
    def local_step(x):
        weight.grad = None
        loss = (weight * x).sum()
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.grad, alpha=0.1)
        return loss.item()

    for k in range(10):
        print(local_step(torch.full((3,), float(k))))
    raise RuntimeError("the end")

main()
"""


def test_a_real_step_that_is_local_to_main_is_reported(script, tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    path = script(REAL)

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return python(command, ROOT, ENVIRONMENT)

    done = run("-m", "torchjanus", "run", "--executor", "replay", "--json", str(target), path)
    plain_path = script(REAL.replace("    @torchjanus.speculate\n", ""), "plain.py")
    plain = run(plain_path)
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (1, plain.stdout)
    assert plain.stdout.count("\n") == 10
    assert done.stderr.index("RuntimeError: the end") < done.stderr.index("torchjanus: report on")
    (function,) = json.loads(target.read_text())["functions"]
    assert function["name"] == "main.<locals>.local_step"
    assert function["statistics"]["calls"] == 10
    assert function["statistics"]["speculated"] >= 5
    assert function["screen"].splitlines()[0] in done.stderr
    assert f"{path}:6" in function["explanation"]


@pytest.mark.parametrize(
    ("body", "code", "said"),
    [
        ("sys.exit()", 0, ""),
        ("sys.exit(0)", 0, ""),
        ("sys.exit(7)", 7, ""),
        ("sys.exit(True)", 1, ""),
        ("sys.exit('out of data')", 1, "out of data\n"),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(3)", 3, ""),
    ],
)
def test_exit_codes(registry, script, capsys, body: str, code: int, said: str) -> None:
    registry.append(Step("train_step"))
    assert cli.main(["run", script(f"import sys\n{body}\n")]) == code
    err = capsys.readouterr().err
    assert err.startswith(said)
    assert "train_step" in err  # the report follows all the same


FAILS = """\
def inner(x):
    return 1 / x

def outer():
    try:
        inner(0)
    except ZeroDivisionError as error:
        raise KeyError("no such batch") from error

outer()
"""


def test_a_traceback_is_what_python_prints(script) -> None:
    path = script(FAILS)

    def run(*command: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, *command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    plain = run(path)
    assert run("-m", "torchjanus", "run", "--no-report", path) == plain
    assert plain[0] == 1
    assert "no such batch" in plain[1]


PROCESSES = """\
import multiprocessing
from dataclasses import dataclass

import torch


@dataclass
class Result:
    number: int


def work(number):
    return Result(number + 1)


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = pool.map_async(work, [1, 2]).get(100)
    print(results, results == [Result(2), Result(3)], type(results[0]) is Result)
"""


def test_classes_of_the_script_that_its_processes_send(script) -> None:
    path = script(PROCESSES)

    def run(*command: str) -> tuple[int, str, str]:
        done = subprocess.run([sys.executable, *command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    plain = run(path)
    assert "True True" in plain[1]
    assert run("-m", "torchjanus", "run", "--no-report", path) == plain


def test_an_interrupted_script_ends_as_python_ends_it(script) -> None:
    text = "import atexit, signal\natexit.register(print, 'bye')\nsignal.raise_signal(signal.SIGINT)\n"
    path, installed = script(text), "import torchjanus\ntorchjanus.install(report=False)\n" + text

    def run(*command: str) -> tuple[int, str, str]:
        done = subprocess.run([sys.executable, *command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    plain = run(path)
    assert plain[0] == -signal.SIGINT
    assert run("-m", "torchjanus", "run", "--no-report", path) == plain
    assert run(script(installed))[:2] == plain[:2]


FAILS_IN_STEPS = """\
import logging
import traceback

import torch


def train(fails):
    net = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for i in range(fails + 1):
        optimizer.zero_grad()
        loss = net(torch.ones(2, 3)).sum()
        loss.backward()
        optimizer.step()
        if i == fails:
            raise KeyError(i)


class Trainer:
    def step(self, x):
        self.optimizer.zero_grad()
        loss = self.net(x).sum()
        loss.backward()
        self.optimizer.step()
        return loss.item() / (0 if x.shape[0] == 5 else 1)


for fails in (0, 9):
    try:
        train(fails)
    except KeyError:
        traceback.print_exc()
trainer = Trainer()
trainer.net = torch.nn.Linear(3, 1)
trainer.optimizer = torch.optim.SGD(trainer.net.parameters(), 0.1)
for i in range(10):
    try:
        trainer.step(torch.ones(5 if i in (0, 9) else 2, 3))
    except ZeroDivisionError:
        logging.exception("call %d", i)
for i in range(10):
    trainer.optimizer.zero_grad()
    loss = trainer.net(torch.ones(2, 3)).sum()
    loss.backward()
    trainer.optimizer.step()
    assert i != 8, \\
        "eight"
"""


def test_tracebacks_of_steps_are_what_python_prints(script) -> None:
    path = script(FAILS_IN_STEPS)

    def run(*command: str) -> tuple[int, str]:
        done = subprocess.run([sys.executable, *command], env=ENVIRONMENT, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    plain = run(path)
    assert plain[0] == 1
    assert plain[1].count("Traceback") == 5
    for after in ("0", "1000"):
        assert run("-m", "torchjanus", "run", "--after", after, "--executor", "replay", "--no-report", path) == plain


def test_a_failing_script_is_reported_on(registry, script, capsys) -> None:
    registry.append(Step("train_step"))
    assert cli.main(["run", script(FAILS)]) == 1
    err = capsys.readouterr().err
    assert err.index("KeyError: 'no such batch'") < err.index("train_step: assumes nothing")
    assert "torchjanus/cli" not in err


def test_a_script_that_replaces_the_excepthook_is_obeyed(registry, script, capsys) -> None:
    path = script("import sys\nsys.excepthook = lambda kind, error, tb: print('hook', kind.__name__)\nraise OSError")
    assert cli.main(["run", "--no-report", path]) == 1
    assert capsys.readouterr() == ("hook OSError\n", "")


def test_a_wrong_use_of_torchjanus_blames_the_users_line(registry, script, capsys) -> None:
    path = script("from torchjanus.core.versions import require_supported\n\nrequire_supported((3, 8))\n")
    assert cli.main(["run", "--no-report", path]) == 1
    err = capsys.readouterr().err
    assert f'File "{path}", line 3, in <module>' in err
    assert "versions.py" not in err
    assert "Unsupported: torchjanus needs Python 3.11" in err


def test_our_own_bug_keeps_its_frames(registry, script, capsys) -> None:
    path = script("from torchjanus.core.versions import dotted\n\ndotted(3)\n")
    assert cli.main(["run", "--no-report", path]) == 1
    err = capsys.readouterr().err
    assert f'File "{path}", line 3, in <module>' in err
    assert "versions.py" in err


def test_a_syntax_error_is_shown_as_python_shows_it(script, tmp_path: Path) -> None:
    path = script("x = 1\nif x\n")
    plain = subprocess.run([sys.executable, path], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert "SyntaxError" in plain.stderr
    done = python(["-m", "torchjanus", "run", "--no-report", path], tmp_path, ENVIRONMENT)
    assert (done.returncode, done.stderr) == (plain.returncode, plain.stderr)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda folder: folder / "missing.py", "there is no file"),
        (lambda folder: folder, "is a directory"),
        (lambda folder: (folder / "notes.txt", "Dear reader,")[0], "is not a Python script"),
        (lambda folder: (folder / "data.py", "\0\0\0")[0], "is not a Python script"),
    ],
)
def test_what_cannot_be_run_is_one_line_and_exit_code_2(registry, tmp_path, capsys, make, why: str) -> None:
    (tmp_path / "notes.txt").write_text("Dear reader,\nthis is prose.\n")
    (tmp_path / "data.py").write_bytes(b"x = 1\n\0\0\0\xff")
    path = make(tmp_path)
    assert cli.main(["run", str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert why in err
    assert str(path) in err
    assert len(err.splitlines()) == 1


def test_an_interrupt_ends_the_script_and_the_report_follows(script, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    path = script(f"import time, pathlib\npathlib.Path({str(ready)!r}).touch()\ntime.sleep(600)\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "torchjanus", "run", path], env=ENVIRONMENT, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 600
    while not ready.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=600)
    assert child.returncode == -signal.SIGINT  # as python ends
    assert "KeyboardInterrupt" in err
    assert "Nothing was speculated" in err
    assert "torchjanus/cli" not in err


def test_version(capsys) -> None:
    assert cli.main(["version"]) == 0
    assert capsys.readouterr().out.startswith(f"torchjanus {torchjanus.__version__}, PyTorch 2.")


@pytest.mark.parametrize("arguments", [[], ["run"], ["walk"], ["run", "--jsn", "x", "y.py"]])
def test_wrong_usage_exits_with_2(arguments: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert "usage: torchjanus" in capsys.readouterr().err
