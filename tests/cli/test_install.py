"""``torchjanus.install()`` in a script, and the magics of a notebook: steps are found, and nothing else changes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.forked import python
from torchjanus import runtime
from torchjanus.cli.discovery import Selection
from torchjanus.cli.install import _rest
from torchjanus.cli.notebook import load_ipython_extension, watch_cells
from torchjanus.core.errors import Unsupported

ROOT = Path(__file__).resolve().parents[2]
LOOP = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []
for x in torch.randn(30, 8, 4):
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
"""
SCRIPT = f'''"""A script."""
from __future__ import annotations
import sys; import torchjanus; torchjanus.install(after=0.0)
"no docstring"
{LOOP}
def read() -> Unknown:
    return losses[-1]

print(__doc__, __name__, sys.argv, read.__annotations__, losses[0], read())
if len(sys.argv) > 1:
    raise ValueError(sys.argv[1])
sys.exit("ended")
'''
BLOCK = f"""
if True:
    import torchjanus
    torchjanus.install()
{LOOP}
print(losses[-1])
"""


@pytest.fixture(autouse=True)
def _by_replay() -> Iterator[None]:
    """Nothing is compiled: which calls are served is looked at, not how fast."""
    before = runtime.default_executor()
    runtime.default_executor("replay")
    yield
    runtime.default_executor(before)


def run(folder: Path, text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script by an interpreter of its own: install() looks at who has called it."""
    (folder / "script.py").write_text(text)
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths, "TORCHJANUS_EXECUTOR": "replay"}
    command = [sys.executable, "script.py", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [(), ("a mistake",)])
def test_a_script_does_what_it_did(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.replace("import torchjanus; torchjanus.install(after=0.0)", "pass"))
    plain = python(["script.py", *arguments], tmp_path, imported="torch")
    done = run(tmp_path, SCRIPT, *arguments)
    assert (done.stdout, done.returncode) == (plain.stdout, plain.returncode)
    said, _, report = done.stderr.partition("\ntorchjanus: report on ")
    assert said == plain.stderr
    assert "27 of 30 calls" in report


def test_where_steps_cannot_be_found_it_warns_and_the_script_runs(tmp_path: Path) -> None:
    done = run(tmp_path, BLOCK)
    assert done.returncode == 0 and float(done.stdout) > 0
    assert "script.py:4: UserWarning: torchjanus.install() finds no steps in this file: it is called in a block" in (
        done.stderr
    )
    with pytest.raises(Unsupported, match="called by a function"):
        _rest(sys._getframe())


class Shell:
    """IPython's shell, as far as it is used."""

    execution_count = 1

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {"__name__": "__main__"}
        self.input_transformers_post: list[Any] = []
        self.magics: dict[str, Any] = {}
        self.compile = self

    def register_magic_function(self, function: Any, kind: str, name: str) -> None:
        assert kind == "line_cell"
        self.magics[name] = function

    def transform_cell(self, cell: str) -> str:
        return cell

    def cache(self, text: str, number: int) -> str:
        return f"cell {hash(text)}"

    def run_cell_magic(self, name: str, line: str, cell: str) -> None:
        self.magics[name](line, cell)

    def run(self, cell: str) -> None:
        lines = cell.splitlines(keepends=True)
        for transform in self.input_transformers_post:
            lines = transform(lines)
        exec("".join(lines), {**self.user_ns, "get_ipython": lambda: self})


def test_the_cells_of_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    plain: dict[str, Any] = {}
    exec(LOOP, plain)
    shell = Shell()
    watch_cells(shell, Selection(after=0.0))
    shell.run("print('no step')")
    shell.run(LOOP)
    assert shell.user_ns["losses"] == plain["losses"]
    out = capsys.readouterr().out
    assert out.startswith("no step\n<module>") and "of 30 calls" in out
    shell.run(LOOP)
    assert "of 60 calls" in capsys.readouterr().out  # the same step
    assert torch.equal(shell.user_ns["loss"], plain["loss"])
    shell.magics["torchjanus"]("--detail")
    assert "what happened" in capsys.readouterr().out


def test_a_step_that_is_over_too_soon(capsys: pytest.CaptureFixture[str]) -> None:
    shell, selection = Shell(), Selection(after=1000.0)
    watch_cells(shell, selection)
    shell.run(LOOP)
    (why,) = selection.unwatched()
    assert why.startswith("training loop of <module> (line 9) of ") and "its 30 calls took" in why
    assert "Python's so far: its 30 calls took" in capsys.readouterr().out


def test_the_extension_defines_the_magic() -> None:
    shell = Shell()
    load_ipython_extension(shell)
    shell.run_cell_magic("torchjanus", "", "x = 1 + 1")
    assert shell.user_ns["x"] == 2
