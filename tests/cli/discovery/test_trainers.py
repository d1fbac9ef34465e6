"""Steps of trainers are found: by name in the modules of libraries, and in the classes that a program gives them."""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import sys
import textwrap
from pathlib import Path

import pytest

import torchjanus
from torchjanus.cli.discovery import Selection, compiled, imports, watch_imports
from torchjanus.cli.discovery.trainers import TRAINERS, steps_in

MODULE = """
    import lightning.pytorch as pl

    class Net(pl.LightningModule):
        def training_step(self, batch, index):
            return self.loss(batch)

        def validation_step(self, batch, index):
            self.log("loss", self.loss(batch))

        def other(self): ...

    class ByHand(pl.LightningModule):
        def training_step(self, batch, index):
            self.manual_backward(self.loss(batch))
            self.optimizers().step()
"""


def test_the_methods_that_a_trainer_calls_are_steps() -> None:
    found = [*map(str, steps_in(ast.parse(textwrap.dedent(MODULE))))]
    assert found == [
        "training function of Net.training_step (line 5)",
        "evaluation function of Net.validation_step (line 8)",
        "training function of ByHand.training_step (line 14)",
    ]


def test_without_a_trainer_they_are_functions_like_others() -> None:
    source = textwrap.dedent(MODULE).replace("lightning.pytorch", "something")
    assert [*map(str, steps_in(ast.parse(source)))] == ["training function of ByHand.training_step (line 14)"]


def test_modules_of_torchjanus_itself_are_left_to_python() -> None:
    """Many of them are imported late, while the program runs, and an editable install is no installed package."""
    finder = imports._Finder(Selection())
    folder = Path(torchjanus.__file__).parent
    files = [*folder.rglob("*.py")]
    assert len(files) > 100
    for file in files:
        name = ".".join(("torchjanus", *file.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
        parent = None if name == "torchjanus" else [str(file.parent.parent if file.stem == "__init__" else file.parent)]
        assert importlib.machinery.PathFinder.find_spec(name, parent or [str(folder.parent)]) is not None, name
        assert finder.find_spec(name, parent or [str(folder.parent)], None) is None, name


LIBRARY = """
    class NeuralNet:
        def train_step(self, batch):
            def closure():
                return self.one(batch)
            return self.stepped(closure)

        def one(self, batch): return batch + 1
        def stepped(self, closure): return closure()
        def validation_step(self, batch): return batch
        def other(self, loss): loss.backward(); self.step()
"""


def test_a_library_is_searched_for_the_functions_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "skorch"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "net.py").write_text(textwrap.dedent(LIBRARY))
    (package / "another.py").write_text(textwrap.dedent(LIBRARY))
    monkeypatch.syspath_prepend(str(tmp_path / "site-packages"))
    monkeypatch.setattr(imports, "is_installed", lambda file: str(tmp_path) in file)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in ("skorch", "skorch.net", "skorch.another"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = Selection()
    watch_imports(found)
    net = importlib.import_module("skorch.net")
    importlib.import_module("skorch.another")
    for name in ("skorch", "skorch.net", "skorch.another"):
        monkeypatch.delitem(sys.modules, name)
    assert [step.description for step in found.taken] == [
        "training function of NeuralNet.train_step (line 3) of net.py",
        "evaluation function of NeuralNet.validation_step (line 10) of net.py",
    ]
    assert net.NeuralNet().train_step(1) == 2
    assert "called" not in found.unwatched()[0] and "its call took" in found.unwatched()[0]


@pytest.mark.slow  # the imports alone take many seconds
@pytest.mark.parametrize("module", TRAINERS)
def test_the_functions_are_there_in_the_installed_library(module: str) -> None:
    """Where a library has renamed a function, its steps would be left to Python without a word."""
    pytest.importorskip(module.partition(".")[0])
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    names = TRAINERS[module]
    selection = Selection()
    compiled(Path(spec.origin).read_bytes(), spec.origin, selection, module)
    assert not selection.left, selection.reasons()
    assert len(selection.taken) == (1 if names is None else len(names))
