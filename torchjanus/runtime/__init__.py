"""Runs the calls of a speculated function: the only package that uses all the others."""

from torchjanus.runtime.entries.engine import default_executor
from torchjanus.runtime.entries.entry import Entry
from torchjanus.runtime.parts.region import Region
from torchjanus.runtime.runs.budget import Overhead
from torchjanus.runtime.runs.records import Event, Profile, Statistics
from torchjanus.runtime.runs.stance import stance
from torchjanus.runtime.saving import load
from torchjanus.runtime.speculate import speculate, vary
from torchjanus.runtime.speculated_function import Speculated, keep_speculated, speculated

__all__ = [
    "Entry",
    "Event",
    "Overhead",
    "Profile",
    "Region",
    "Speculated",
    "Statistics",
    "default_executor",
    "keep_speculated",
    "load",
    "speculate",
    "speculated",
    "stance",
    "vary",
]
