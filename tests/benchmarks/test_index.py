"""``python -m benchmarks`` lists every benchmark, and every command that is named anywhere can be run."""

from __future__ import annotations

import re

import pytest

from benchmarks.__main__ import GROUPS, benchmarks, main
from benchmarks.record import ROOT

TEXTS = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(path for part in ("benchmarks", "tests", "torchjanus", "examples") for path in (ROOT / part).rglob("*.py")),
    ROOT / "Makefile",
]


def exists(module: str) -> bool:
    """Whether a dotted name is a module or a package of the repository."""
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists() or path.is_dir()


def test_every_module_that_can_be_run_is_listed_or_is_run_by_a_benchmark() -> None:
    runnable = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
        for group in GROUPS
        for path in (ROOT / "benchmarks" / group).rglob("*.py")
        if '__name__ == "__main__"' in path.read_text() and path.name != "contender.py"
    }
    assert {found.name for found in benchmarks()} == runnable


@pytest.mark.parametrize("found", benchmarks(), ids=lambda found: found.name)
def test_a_benchmark_says_what_it_shows_how_long_it_takes_and_how_it_is_run(found) -> None:
    assert found.shows.endswith((".", "?"))
    assert found.takes.endswith(".")
    assert found.commands
    assert all(re.match(rf"python -m {re.escape(found.name)}( |$)", command) for command in found.commands)


def test_the_list_can_be_narrowed_down(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["memory"]) == 0
    text = capsys.readouterr().out
    assert "python -m benchmarks.cost.memory" in text
    assert "benchmarks.speed.papers" not in text
    assert main([]) == 0
    assert len(re.findall(r"^\w+: ", capsys.readouterr().out, re.MULTILINE)) == len(GROUPS)


def test_commands_that_are_named_exist() -> None:
    for path in TEXTS:
        for module in re.findall(r"(?:-m |`)(benchmarks(?:\.\w+)+)", path.read_text()):
            assert exists(module), f"{path.relative_to(ROOT)} names {module}"
