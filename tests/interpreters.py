"""Other Python interpreters on this machine that torchjanus supports: some tests run on each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["bare_environment", "interpreters"]


def bare_environment() -> dict[str, str]:
    """The environment without what is meant for the running interpreter."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL"))}


def interpreters() -> list[str]:
    """One for each version other than the running one, of those that are found and really run."""
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
