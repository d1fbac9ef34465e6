"""Defers Python's collection of cycles while many objects are made.

Rewriting and lowering make hundreds of thousands of objects and keep them; the collector would traverse all objects of
a process with torch again and again, which was seen to double the time. This module does not know what is made.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["uncollected"]


@contextlib.contextmanager
def uncollected(*, kept: bool = False, garbage: bool = True) -> Iterator[None]:
    """Disable the collector, while no code of the program runs. ``kept``: objects made in here, or just before, live
    long; ``garbage``: some of them are cycles that nothing uses any more. (To look for those takes a twentieth of a
    second after a large import.)"""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            if kept:
                _grow_old(garbage)
            gc.enable()


# Whether the program has been seen to freeze objects. It is asked no more then: Python counts them one by one, which
# takes as long as a full collection.
_program_freezes = False


def _grow_old(garbage: bool) -> None:
    """Move the surviving young objects to the oldest generation.

    When objects that became old amount to a quarter of the others, the collector traverses everything in some later
    call, which takes a third of a second in a process with torch. It does not count objects moved in this way.
    """
    global _program_freezes
    if garbage:
        gc.collect(0)
    _program_freezes = _program_freezes or gc.get_freeze_count() > 0
    if not _program_freezes:  # objects that the program has frozen must stay so
        gc.freeze()
        gc.unfreeze()
