"""The numbers of all iterations as an operator: Python's own, fresh at each call."""

from __future__ import annotations

import math

import torch

from torchjanus.graph.operators.host_column import host_column

FORM = repr(("made", ("given", 0, "float"), ("mul", ("hole",), ("const", 0.5))))


def test_numbers_are_made_as_python_makes_them() -> None:
    rate, expected = 0.3, []
    for _ in range(5):
        rate *= 0.5
        expected.append(rate)
    assert host_column(FORM, 5, 0, 0.3).tolist() == expected


def test_what_a_call_does_to_its_numbers_no_other_call_sees() -> None:
    first = host_column(FORM, 4, 1, 0.3)
    expected = first.tolist()
    first.zero_()
    assert host_column(FORM, 4, 1, 0.3).tolist() == expected
    assert host_column(FORM, 3, 1, 0.3).tolist() == expected[:4]


def test_the_sign_of_nothing_is_distinguished() -> None:
    signs = [math.copysign(1, host_column(FORM, 2, 0, zero)[-1].item()) for zero in (0.0, -0.0, 0.0)]
    assert signs == [1, -1, 1]


def test_numbers_of_tensors_are_those_that_they_hold_then() -> None:
    held = torch.tensor(1.0)
    assert host_column(FORM, 2, 0, held).tolist() == [0.5, 0.25]
    held.fill_(2.0)
    assert host_column(FORM, 2, 0, held).tolist() == [1.0, 0.5]
