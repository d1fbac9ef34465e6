"""Whole trainings, eager and speculated: the same curve against steps, another one against time (JANUS, figure 6)."""

from benchmarks.speed.convergence import games, language, pictures, trees
from benchmarks.speed.convergence.base import PROGRAMS, Recipe, Training

__all__ = ["PROGRAMS", "Recipe", "Training", "games", "language", "pictures", "trees"]
