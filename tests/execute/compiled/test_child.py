"""A child lets the training go first, is not interrupted with it, and can be ended with all that it has started."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from torchjanus.execute.compiled.child import Child

WAITS = """
import sys, time
from pathlib import Path
from torchjanus.execute.compiled.child import begin

begin(Path(sys.argv[1]), int(sys.argv[2]))
Path(sys.argv[1], "begun").touch()
time.sleep(600)
"""


@pytest.mark.skipif(not hasattr(os, "getsid"), reason="there are sessions and groups on POSIX only")
def test_a_child_is_of_the_trainings_session_but_not_of_its_group() -> None:
    def fill(folder: Path) -> dict[str, str]:
        (folder / "waits_for_long.py").write_text(WAITS)
        return {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}

    child = Child("waits_for_long", fill)
    process = child._process.pid
    try:
        until = time.monotonic() + 600
        while not (child.folder / "begun").exists():
            assert not child.ready(), child.wait()
            assert time.monotonic() < until
            time.sleep(0.05)
        # Linux weighs processes by their niceness within a session only: see where the child is started.
        assert os.getsid(process) == os.getsid(0)
        assert os.getpgid(process) == process
    finally:
        child.cancel()
    assert not child.folder.exists()
