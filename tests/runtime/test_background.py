"""Compilation beside the training: no call waits for it, nothing outlives whoever wants it, and the report tells."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchjanus
from torchjanus.execute.compiled import child as child_process
from torchjanus.execute.compiled import server, worker
from torchjanus.execute.compiled.worker import Request
from torchjanus.execute.processes import background
from torchjanus.runtime.entries import engine as engine_module
from torchjanus.runtime.entries.engine import Engine

ROOT = Path(__file__).resolve().parents[2]
LONG = 600  # seconds: a test that waits so long has failed, however busy the machine is


class Step:
    def __init__(self, width: int = 3) -> None:
        torch.manual_seed(0)
        self.net = torch.nn.Linear(width, 2)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.width = width
        self.count = 0
        self.step = torchjanus.speculate(self.body, executor="auto")

    def body(self, x: torch.Tensor) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = torch.nn.functional.dropout(self.net(x), 0.2).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def calls(self, count: int, step: Callable[..., torch.Tensor] | None = None) -> list[float]:
        losses = []
        for _ in range(count):
            losses.append((step or self.step)(torch.full((4, self.width), 1.0 + self.count % 7 / 7)).item())
            self.count += 1
        return losses

    @property
    def engine(self) -> Engine:
        (entry,) = self.step.entries
        return entry.engine  # type: ignore[no-any-return]


def eager(count: int) -> list[float]:
    made = Step()
    return made.calls(count, made.body)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the folders of compilations are made; nothing may be left there."""
    for queue in (background._queue, background._short):
        queue.close()  # what earlier tests have asked for is not compiled by a program of these tests
    monkeypatch.setattr(child_process.tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    deadline = time.monotonic() + LONG
    while list(tmp_path.glob("torchjanus-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(tmp_path.glob("torchjanus-*")) == []


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are compiled as soon as they are made."""
    monkeypatch.setattr(engine_module, "PROVEN", 0)


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets the compiler's process run a program of the test's instead."""

    def runs(source: str) -> None:
        real = subprocess.Popen

        def popen(command: list[str], **options: Any) -> Any:
            return real([command[0], "-c", textwrap.dedent(source), *command[3:]], **options)

        monkeypatch.setattr(server, "start", lambda **given: None)  # each child is a process of its own
        monkeypatch.setattr(child_process, "fork", lambda *given: None)
        monkeypatch.setattr(child_process.subprocess, "Popen", popen)

    return runs


def children(folder: Path) -> list[int]:
    """The processes that were started for compilations in that folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = [*(process / "cmdline").read_bytes().split(b"\0"), os.readlink(process / "fd" / "1").encode()]
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:  # it has ended
            continue
        # A forked child has its server's command line, and a log of its own.
        if state != "Z" and any(word.startswith(bytes(folder / "torchjanus-")) for word in words):
            found.append(int(process.name))
    return found


def gone(folder: Path) -> bool:
    deadline = time.monotonic() + LONG
    while children(folder) or list(folder.glob("torchjanus-*")):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def under_way(engine: Engine) -> bool:
    """Whether the compiler's process has been started, now or soon."""
    deadline = time.monotonic() + LONG
    while not any("is compiling (for " in note for note in engine.notes):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    time.sleep(0.1)
    return True


SLEEPING = "import time; time.sleep(600)"
linux = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")


def test_calls_go_on_while_a_child_works_and_the_report_says_so(child: Callable[[str], None]) -> None:
    child(SLEEPING)
    made = Step()
    losses = made.calls(3)
    losses += made.calls(5)
    assert made.engine.current == "replay"
    assert under_way(made.engine)
    report = str(torchjanus.explain(made.step, detail=True))
    assert "inductor is compiling (for " in report
    assert losses == eager(8)
    made.engine.close()
    assert made.engine.notes == []


def test_a_graph_is_compiled_once_it_has_made_calls(
    child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "PROVEN", 4)
    child(SLEEPING)
    made = Step()
    made.calls(3 + 3)
    assert made.engine.notes == ["is compiled once it has made 4 calls"] and not made.engine.is_ready
    assert not background.busy()
    made.calls(1)
    assert under_way(made.engine)
    made.engine.close()


def test_others_wait_for_their_iteration(child: Callable[[str], None], folder: Path) -> None:
    child(SLEEPING)
    first, second = Step(), Step()
    first.calls(3)
    second.calls(3)
    assert under_way(first.engine)
    assert len(list(folder.glob("torchjanus-*"))) == 1
    assert "inductor waits for its turn (for " in second.engine.notes[0]
    ours, theirs = first.engine, second.engine
    ours.close()
    assert under_way(theirs)
    theirs.close()


def test_a_child_that_crashes_leaves_the_entry_on_replay(child: Callable[[str], None]) -> None:
    child("import os, signal; print('so far', flush=True); os.kill(os.getpid(), signal.SIGSEGV)")
    made = Step()
    losses = made.calls(3)
    made.step.wait()
    assert made.engine.notes == ["inductor has compiled: the next call takes it"] or "could not" in made.engine.notes[0]
    losses += made.calls(3)
    assert losses == eager(6)
    assert made.engine.current == "replay"
    report = str(torchjanus.explain(made.step, detail=True))
    assert "inductor could not compile the graph" in report
    assert "its process was ended by SIGSEGV; the last that it said: so far" in report
    assert made.step.statistics().speculated == 3


def test_a_child_that_takes_too_long_is_ended(
    child: Callable[[str], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(background, "MOST_SECONDS", 0.5)
    # What it has started goes, too.
    child("import subprocess, sys; subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[1]])")
    made = Step()
    losses = made.calls(3)
    made.step.wait()
    losses += made.calls(3)
    assert losses == eager(6)
    assert any("TimeoutError: it took longer than" in note for note in made.engine.notes)
    if Path("/proc/self/stat").exists():
        assert gone(folder)


@linux
def test_a_dropped_entry_cancels_its_compilation(child: Callable[[str], None], folder: Path) -> None:
    child(SLEEPING)
    made = Step()
    made.calls(4)
    assert under_way(made.engine)
    assert len(children(folder)) == 1
    made.step._learning.drop(made.step.entries[0], "a test says so")
    assert gone(folder)


@linux
def test_a_function_that_nobody_holds_cancels_its_compilation(child: Callable[[str], None], folder: Path) -> None:
    child(SLEEPING)
    engine = Engine(lowered_of(Step()), "auto", lambda run: None)
    engine.compile()
    assert under_way(engine)
    assert len(children(folder)) == 1
    del engine
    assert gone(folder)


def lowered_of(made: Step) -> Any:
    step = torchjanus.speculate(made.body, executor="replay")
    made.calls(3, step)
    return step.entries[0].lowered


def test_copies_take_no_compilation_along(child: Callable[[str], None], folder: Path) -> None:
    child(SLEEPING)
    made = Step()
    made.calls(4)
    other = copy.deepcopy(made.step)
    assert other.entries == []
    again = pickle.loads(pickle.dumps(torchjanus.speculate(eager)))
    assert again.entries == []
    assert under_way(made.engine)
    assert len(list(folder.glob("torchjanus-*"))) == 1
    made.engine.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_has_no_say_and_goes_on_by_replay(child: Callable[[str], None], folder: Path) -> None:
    child(SLEEPING)
    made = Step()
    made.calls(4)
    assert under_way(made.engine)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            made.calls(2)
            reported = "the process was forked" in made.engine.notes[0] and made.engine.current == "replay"
            made.engine.close()
            background._queue.close()
            status = 0 if reported else 2
        finally:
            os._exit(status)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert "is compiling" in made.engine.notes[0]
    assert len(list(folder.glob("torchjanus-*"))) == 1
    made.engine.close()


PROGRAM = """
import os, signal, sys, threading, time, torch, torchjanus

@torchjanus.speculate(executor="auto")
def step(x):
    return (x * 2).sin().sum()

for _ in range(16):
    step(torch.ones(3))
until = time.monotonic() + 600
while "is compiling" not in str(torchjanus.explain(step, detail=True)) and time.monotonic() < until:
    time.sleep(0.05)
report = str(torchjanus.explain(step, detail=True))
print("compiling" if "is compiling" in report else report, flush=True)
while True:
    time.sleep(0.05)
    step(torch.ones(3))
"""


@linux
@pytest.mark.parametrize(
    "number",  # what SIGTERM does to a program, SIGKILL does too
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL],
)
def test_nothing_is_left_behind_by_a_program_that_ends(number: signal.Signals, folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(PROGRAM)
    environment = {
        **os.environ,
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path])),
    }
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "cache")
    program = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    )
    assert program.stdout is not None
    with program.stdout:
        assert program.stdout.readline() == "compiling\n"
    deadline = time.monotonic() + LONG
    while len(children(folder)) != 1:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    program.send_signal(number)
    program.wait(LONG)
    assert gone(folder)


@pytest.mark.slow
def test_graphs_for_changing_sizes_with_loops_and_with_recursion_are_compiled_beside_the_training_too() -> None:
    torch.manual_seed(0)
    cell, data = torch.nn.RNNCell(3, 4), torch.Generator().manual_seed(0)

    def loop(x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.size(1), 4)
        for row in x:
            state = cell(row, state)
        return state.sum().detach()

    def sizes(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ cell.weight_ih.t()).sum(0).detach()

    for function, shapes in ((loop, [(40, 2, 3)] * 12), (sizes, [(5 + number % 7, 3) for number in range(16)])):
        step = torchjanus.speculate(function, executor="auto")
        for shape in shapes[:5]:
            step(torch.randn(shape, generator=data))
        step.wait()
        (entry,) = step.entries
        assert entry.engine.current == "replay" and entry.engine._ticket is not None, entry.engine.notes
        entry.engine.wait()
        for shape in shapes:
            x = torch.randn(shape, generator=data)
            torch.testing.assert_close(step(x), function(x))
        assert any("agreed with replay" in note for note in entry.engine.notes), entry.engine.notes

    def fold(tree: Any) -> torch.Tensor:
        parts = [fold(one) for one in tree] if isinstance(tree, tuple) else [cell.weight_ih[:, tree]]
        return torch.tanh(cell.weight_hh @ (parts[0] + parts[-1]))

    def trees(*roots: Any) -> torch.Tensor:
        return torch.stack([fold(root) for root in roots]).sum().detach()

    step = torchjanus.speculate(trees, executor="auto")
    forests: list[Any] = [((0, 1), 2), (0, ((1, 2), 1)), ((0, 0), (1, 2)), (((2, 1), 0), 1), ((0, 1), ((2, 2), 1))]
    for number in range(8):
        step(forests[number % 5], forests[(number + 2) % 5])
        step.wait()
        if step.entries:
            break
    (entry,) = step.entries
    assert entry.engine.current == "replay" and entry.engine._ticket is not None, entry.engine.notes
    entry.engine.wait()
    for number in range(8):
        given = forests[(3 * number) % 5], forests[(number + 1) % 5]
        torch.testing.assert_close(step(*given), trees(*given))
    assert any("agreed with replay" in note for note in entry.engine.notes), entry.engine.notes


@pytest.mark.skipif(child_process.resource is None, reason="there are no limits here")
def test_a_child_is_bounded_in_memory(child: Callable[[str], None]) -> None:
    child(
        """
        import pathlib, resource, sys
        from torchjanus.execute.compiled import child
        child.MEMORY = 1 << 30
        child.bound(0)
        try:
            bytearray(2 << 30)
        except MemoryError:
            sys.exit('bounded')
        """
    )
    pending = worker.Compilation([Request(b"", (), {}, 1, torch.float32)])
    with pytest.raises(torchjanus.core.errors.Refused, match=r"cannot compile the step \(bounded\)"):
        pending.result(timeout=LONG)


@pytest.mark.slow
def test_the_artifact_takes_over_from_replay() -> None:
    made = Step()
    losses = made.calls(3)
    losses += made.calls(2)
    assert made.engine.current == "replay"
    torch.manual_seed(1)
    losses += made.calls(1)
    while made.engine.current == "replay":
        losses += made.calls(1)
        time.sleep(0.01)
    swapped = len(losses)
    losses += made.calls(2 + 12 + 5)
    assert made.engine.notes[-1].startswith("fastest by measure"), made.engine.notes
    other = Step()
    expected = other.calls(5, other.body)
    torch.manual_seed(1)
    expected += other.calls(len(losses) - 5, other.body)
    assert [*map(repr, losses[:swapped])] == [*map(repr, expected[:swapped])]  # after many calls they are NaN
    assert losses == pytest.approx(expected, rel=1e-3, nan_ok=True)
    assert "inductor compiled the graph in " in str(torchjanus.explain(made.step, detail=True))
