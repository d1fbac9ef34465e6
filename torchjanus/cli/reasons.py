"""Reason codes as text: one entry, the list, and the page docs/reasons.md."""

from __future__ import annotations

import itertools

from torchjanus.core.reasons import reasons

__all__ = ["listing", "page"]

_INTRODUCTION = """# Reason codes

Where a step is not speculated on, or a part of it is not optimised, `torchjanus.explain(step)` says why, with the line
of the program and a code in brackets. The results are eager's in any case. `torchjanus explain CODE` prints an entry of
this page; `torchjanus.explain(step).codes` gives the codes to programs and tests. A code never changes its meaning.

Each entry has a program that meets the code, or says in which rare situation it is met. `torch`, `torchjanus` and `np`
(NumPy) are imported.
Do not edit this page: it is printed by `torchjanus explain --all` from `torchjanus/core/reasons.toml`.
"""


def page() -> str:
    """Return all entries, by section."""
    sections = itertools.groupby(reasons().values(), lambda reason: reason.section)
    return "\n".join([_INTRODUCTION, *("\n".join([f"## {name}\n", *map(str, found)]) for name, found in sections)])


def listing() -> str:
    """Return each code with its sentence, one per line."""
    return "\n".join(f"{reason.code:28} {reason.title}" for reason in reasons().values())
