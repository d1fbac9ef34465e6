"""Programs that make the same calls each time they are made, and seconds made of blocks of calls."""

from __future__ import annotations

import random
from itertools import islice

import pytest
import torch

from benchmarks.cost.learning_cost import Block, windows
from benchmarks.programs.learning import PROGRAMS, Program


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_program_is_the_same_each_time(program: Program) -> None:
    results = []
    for _ in range(2):
        torch.manual_seed(0)
        random.seed(0)
        step, calls = program()
        results.append([step(*call) for call in islice(calls, 3)])
    assert results[0] == results[1] and all(isinstance(result, float) for result in results[0])


def test_windows_are_seconds_of_the_speculated_calls() -> None:
    blocks = [Block(1, 0.25, 0.25)] * 4 + [Block(1, 0.5, 0.25)] * 2 + [Block(1, 0.25, 0.5)]
    found = windows(blocks, 1.0)
    assert [window.calls for window in found] == [4, 3]  # what is left over is part of the last one
    assert found[0].throughput == 1.0 and found[1].throughput == pytest.approx(1.0 / 1.25)
