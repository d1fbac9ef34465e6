"""Runs of one program, each in a process of its own, that share what torchjanus keeps and nothing else.

Part of the benchmarks of a second run. Inductor's cache is empty in each, as after a night in which /tmp was emptied.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["in_turn"]


def in_turn(module: str, name: str, options: Sequence[str], threads: int, count: int) -> Iterator[dict[str, Any]]:
    """Run ``python -m module --child name *options`` so many times, and yield the last line that each prints: JSON.
    Raises RuntimeError if one fails."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kept").mkdir(mode=0o700)
        for number in range(count):
            environment = {
                **os.environ,
                "TORCHJANUS_CACHE": str(Path(folder) / "kept"),
                "TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / f"inductor-{number}"),
                "OMP_NUM_THREADS": str(threads),
            }
            command = [sys.executable, "-m", module, "--child", name, *options]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise RuntimeError(f"{name}: {done.stderr[-2000:]}")
            yield json.loads(done.stdout.splitlines()[-1])
