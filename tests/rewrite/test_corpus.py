"""The corpus of programs cannot be told from its rewritten self: on this interpreter, and on the others that are
found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import differ

RUNS = [
    (path, name, way)
    for path in differ.corpus_files()
    for name in differ.programs(path)
    for way in differ.ways_for(path)
]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("path", "name", "way"), RUNS, ids=[f"{path.stem}-{name[8:]}-{way}" for path, name, way in RUNS]
)
def test_rewritten_program_cannot_be_told_from_the_original(path: Path, name: str, way: str) -> None:
    told = differ.difference(path, name, differ.ways()[way])
    assert not told, told


def interpreters() -> list[str]:
    """Other interpreters that torchjanus supports and that really run."""
    wanted = {(3, 11), (3, 12), (3, 13)} - {sys.version_info[:2]}
    candidates = [shutil.which(f"python3.{minor}") for minor in (11, 12, 13)]
    candidates += [str(path) for path in sorted(Path.home().glob(".pyenv/versions/*/bin/python3"))]
    found: dict[tuple[int, ...], str] = {}
    for candidate in filter(None, candidates):
        asked = [candidate, "-c", "import sys; print(*sys.version_info[:2])"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        if answer.returncode == 0:
            version = tuple(int(part) for part in answer.stdout.split())
            if version in wanted:
                found.setdefault(version, candidate)
    return list(found.values())


@pytest.mark.parametrize("interpreter", interpreters())
def test_corpus_on_other_interpreters(interpreter: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}
    ran = subprocess.run(
        [interpreter, str(Path(differ.__file__))],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**environment, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert ", 0 differ" in ran.stdout.splitlines()[-1]
