"""The life of a call: the only place where all parts meet."""

from torchjanus.runtime.budget import Overhead
from torchjanus.runtime.engine import default_executor
from torchjanus.runtime.entry import Entry
from torchjanus.runtime.records import Event, Profile, Statistics
from torchjanus.runtime.speculate import (
    Speculated,
    keep_speculated,
    speculate,
    speculated,
)

__all__ = [
    "Entry",
    "Event",
    "Overhead",
    "Profile",
    "Speculated",
    "Statistics",
    "default_executor",
    "keep_speculated",
    "speculate",
    "speculated",
]
