"""The corpus of programs cannot be distinguished from its rewritten self: on this interpreter, and on the others that
are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.interpreters import bare_environment, interpreters

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
def test_rewritten_program_cannot_be_distinguished_from_the_original(path: Path, name: str, way: str) -> None:
    reported = differ.difference(path, name, differ.ways()[way])
    assert not reported, reported


@pytest.mark.parametrize("interpreter", interpreters())
def test_corpus_on_other_interpreters(interpreter: str) -> None:
    ran = subprocess.run(
        [interpreter, str(Path(differ.__file__))],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**bare_environment(), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-2000:]
    assert ", 0 differ" in ran.stdout.splitlines()[-1]
