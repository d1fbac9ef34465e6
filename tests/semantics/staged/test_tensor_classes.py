"""Tensors of classes that see calls of torch: a staged graph would not run their code."""

from __future__ import annotations

import pytest
import torch

import torchjanus
from torchjanus import NotStaged


class Counting(torch.Tensor):
    """Counts the calls of torch that it sees."""

    seen = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Counting.seen += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_captured_one_is_refused():
    held = torch.ones(3).as_subclass(Counting)

    def step(x):
        return torch.add(x, held)

    with pytest.raises(NotStaged, match="Counting, a class of tensors that sees calls") as error:
        torchjanus.staged(step)(torch.ones(3))
    assert f"{__file__}:{step.__code__.co_firstlineno + 1}" in str(error.value)


def test_a_question_to_one_is_refused():
    held = torch.ones(3).as_subclass(Counting)
    with pytest.raises(NotStaged):
        torchjanus.staged(lambda x: (torch.equal(held, x), x))(torch.ones(3))


def test_parameters_and_classes_without_such_code_are_staged():
    class Named(torch.Tensor):
        pass

    weight, other = torch.nn.Parameter(torch.full((3,), 2.0)), torch.ones(3).as_subclass(Named)
    x = torch.tensor([1.0, 2.0, 3.0])
    made = torchjanus.staged(lambda x: x * weight + other)(torch.ones(3))
    assert torch.equal(made(x).as_subclass(torch.Tensor), x * weight + torch.ones(3))
