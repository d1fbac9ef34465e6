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
def uncollected(*, kept: bool = False) -> Iterator[None]:
    """While nothing of the program's own runs: cycles are looked for afterwards, as ever. ``kept``: what is made in
    here, or was just before, lives long."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if kept:
                _grow_old()
            gc.enable()


def _grow_old() -> None:
    """Make old objects of the young ones that live.

    When those that have become old are a quarter of the others, the collector looks through everything, in some call
    soon after: which takes a third of a second in a process that has imported torch. It does not count these."""
    gc.collect(0)
    if not gc.get_freeze_count():  # what somebody has frozen must stay so
        gc.freeze()
        gc.unfreeze()
