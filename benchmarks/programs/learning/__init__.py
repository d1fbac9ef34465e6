"""Whole steps that are hard to learn, or worth it; ``benchmarks.cost.learning_cost`` measures what learning them costs.

Knows nothing of who runs them. A program is made anew for each side, with random generators of its own, so that both
sides make the same calls.
"""

from __future__ import annotations

from benchmarks.programs.learning.base import Call, Made, Program
from benchmarks.programs.learning.deciding import (
    beam_search,
    experts,
    k_means,
    lbfgs,
    ode_solver,
    reinforce,
    split_by_counts,
)
from benchmarks.programs.learning.profiting import lora, muon, sac, wgan_gp
from benchmarks.programs.learning.surroundings import (
    asynchronous_queue,
    augmentation,
    everything_changes,
    hooks,
    replay_loader,
    warping_with_crf,
)

__all__ = ["CHANGING", "PROFITING", "PROGRAMS", "Call", "Made", "Program"]

CHANGING: tuple[Program, ...] = (
    beam_search,
    warping_with_crf,
    everything_changes,
    k_means,
    augmentation,
    ode_solver,
    replay_loader,
    hooks,
    reinforce,
    asynchronous_queue,
    lbfgs,
    experts,
    split_by_counts,
)
PROFITING: tuple[Program, ...] = (sac, wgan_gp, lora, muon)
PROGRAMS = CHANGING + PROFITING
