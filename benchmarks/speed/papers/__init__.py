"""The programs that the JANUS and Terra papers measure, as a user of PyTorch would write them, and their measurement.

    python -m benchmarks.speed.papers [--quick] [--only lstm gpt2 ...] [--record]

``PROGRAMS`` names them all. Data are made up, from a seed; sizes are the papers' where two cores allow it, and each
program says what it is run on.
"""

from __future__ import annotations

# Each module enters its programs.
from benchmarks.speed.papers import agents, attention, convnets, detection, dropping, gans, recurrent, trees
from benchmarks.speed.papers.base import PROGRAMS, Program, Recipe

__all__ = [
    "PROGRAMS",
    "Program",
    "Recipe",
    "agents",
    "attention",
    "convnets",
    "detection",
    "dropping",
    "gans",
    "recurrent",
    "trees",
]
