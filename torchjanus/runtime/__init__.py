"""Runs the calls of a speculated function: the only package that uses all the others."""

from typing import TYPE_CHECKING

from torchjanus.core.lazy import names_of

if TYPE_CHECKING:
    from torchjanus.runtime.decorators import speculate, vary
    from torchjanus.runtime.entries.engine import default_executor
    from torchjanus.runtime.entries.entry import Entry
    from torchjanus.runtime.parts.region import Region
    from torchjanus.runtime.runs.budget import Overhead
    from torchjanus.runtime.runs.records import Event, Profile, Statistics
    from torchjanus.runtime.runs.registry import keep_speculated, speculated
    from torchjanus.runtime.runs.stance import stance
    from torchjanus.runtime.saving import load
    from torchjanus.runtime.speculated_function import Speculated

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

__getattr__ = names_of(
    __name__,
    {
        "torchjanus.runtime.entries.engine": "default_executor",
        "torchjanus.runtime.entries.entry": "Entry",
        "torchjanus.runtime.parts.region": "Region",
        "torchjanus.runtime.runs.budget": "Overhead",
        "torchjanus.runtime.runs.registry": "keep_speculated speculated",
        "torchjanus.runtime.runs.records": "Event Profile Statistics",
        "torchjanus.runtime.runs.stance": "stance",
        "torchjanus.runtime.saving": "load",
        "torchjanus.runtime.decorators": "speculate vary",
        "torchjanus.runtime.speculated_function": "Speculated",
    },
)
