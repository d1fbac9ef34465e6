"""Python's collector of cycles, put off while there is much to be made.

Rewriting and lowering make objects by the hundred thousand and keep them; the collector would look through all that a
process with torch has, again and again, which was seen to double the time. Knows nothing of what is made.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["uncollected"]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """While nothing of the program's own runs: cycles are looked for afterwards, as ever."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
