"""The loggers: which level they have."""

from __future__ import annotations

import logging
import subprocess
import sys


def test_a_level_that_the_program_has_set_before_the_import_stays() -> None:
    program = 'import logging; logging.getLogger("torchjanus").setLevel("DEBUG"); import torchjanus; '
    program += 'print(logging.getLogger("torchjanus").level)'
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == str(logging.DEBUG)
