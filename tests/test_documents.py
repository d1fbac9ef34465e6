"""The documents keep what they promise: the example runs, links lead somewhere, all parts are described."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_layering import LAYERS

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]),
}
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def test_the_example_of_the_readme_runs_speculated(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    script = tmp_path / "example.py"
    script.write_text(example)
    command = [sys.executable, "-m", "torchjanus", "run", "--executor", "replay", "--no-report", str(script)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert "Statistics(calls=50, watched=3, speculated=47," in done.stdout
    assert f"{script}:" in done.stdout  # the explanation says where


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    text = document.read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("https://"):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
    for target in re.findall(r"`((?:tests|benchmarks|examples|docs|torchjanus)/[\w./]+)`", text):
        assert (ROOT / target).exists(), f"{document.name} names {target}"


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        text = document.read_text()
        commands = re.findall(r"`make ([^`]*)`", text)
        for shell in re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            commands += re.findall(r"^make ([^#\n]*)", shell, re.MULTILINE)
        for command in commands:
            named = {word for word in command.split() if "=" not in word}
            assert named <= targets, f"{document.name} names 'make {command}'"


def test_the_architecture_describes_the_layers_as_they_are() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = next(b for b in re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if b.startswith("__init__"))
    drawn = [set(line.split()) for line in block.splitlines()]
    assert drawn == LAYERS[::-1]
    parts = text.partition("## The parts")[2].partition("\n## ")[0]
    table = set(
        re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in parts.splitlines() if line.startswith("| `")))
    )
    present = {path.name.removesuffix(".py") for path in (ROOT / "torchjanus").iterdir() if path.suffix in ("", ".py")}
    present = {name for name in present if not name.startswith("__")}
    assert table == present


def test_the_architecture_names_the_packages_that_there_are() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## The parts")[2].partition("\n## ")[0]
    named = set(re.findall(r"^\| `(\w+/[\w/]+)` \|", text, re.MULTILINE))
    package = ROOT / "torchjanus"
    folders = {path.parent for path in package.rglob("*.py") if path.name != "__init__.py"}
    inner = {folder.relative_to(package).as_posix() for folder in folders}
    assert named == {name for name in inner if "/" in name}


def test_every_module_says_what_it_owns() -> None:
    for path in (ROOT / "torchjanus").rglob("*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path


def test_there_is_a_place_for_the_constructs() -> None:
    text = (ROOT / "docs" / "design" / "rewriting.md").read_text()
    assert text.count("<!-- constructs -->") == text.count("<!-- /constructs -->") == 1
    assert text.index("<!-- constructs -->") < text.index("<!-- /constructs -->")


def test_pages_ask_for_packages_that_exist() -> None:
    asked = [
        (page, name)
        for page in (ROOT / "docs").rglob("*.md")
        for name in re.findall(r"<!-- (?:modules|imports): ([\w/.]+) -->", page.read_text())
    ]
    assert len(asked) > 10
    package = ROOT / "torchjanus"
    assert [
        (page.name, n) for page, n in asked if not (package / n).is_dir() and not (package / f"{n}.py").exists()
    ] == []
