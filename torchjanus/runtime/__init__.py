"""The life of a call: the only place where all parts meet."""

from torchjanus.runtime.entry import Entry
from torchjanus.runtime.speculate import (
    Event,
    Speculated,
    Statistics,
    default_executor,
    keep_speculated,
    speculate,
    speculated,
)

__all__ = [
    "Entry",
    "Event",
    "Speculated",
    "Statistics",
    "default_executor",
    "keep_speculated",
    "speculate",
    "speculated",
]
