"""Reason codes: why a step is not speculated on, or a part of it is not optimised.

The table is ``reasons.toml``. A code is stable: its meaning never changes.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

__all__ = ["Reason", "reasons"]


@dataclass(frozen=True, slots=True)
class Reason:
    """One code: a sentence, its meaning, what the user can do, and a program that has it; or, where no program is sure
    to meet it, the situation in which it is met."""

    section: str
    code: str
    title: str
    meaning: str
    remedy: str
    program: str = ""
    situation: str = ""

    def __str__(self) -> str:
        """Return the entry as Markdown."""
        shown = f"\n```python\n{self.program.strip()}\n```\n" if self.program else f"\nIt is met so: {self.situation}\n"
        return f"### {self.code}\n\n**{self.title}** {self.meaning}\n{shown}\nInstead: {self.remedy}\n"


@cache
def reasons() -> dict[str, Reason]:
    """Return all reasons by code, in the order of the table."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return {code: Reason(section, code, **entry) for section, some in table.items() for code, entry in some.items()}
