"""Tuples and lists with tensors in them, compared: the first pair that differs decides, be it of tensors."""

import collections
import dataclasses
import operator

import torch

from tests.programs.harness import CALLS, Program, program


def inputs(count=CALLS):
    return [(torch.tensor(float(number)), torch.tensor(float(number + 1)), number) for number in range(count)]


@program()
def tuples_and_lists():
    def step(a, b, number):
        return (a, 1) < (b, 3), [a, 2] >= [b, 1], ((a, 1), 2) < ((b, 1), 3), (1, (a,)) <= (1, (b,))

    return Program(step, inputs())


@program()
def answer_computed_with():
    def step(a, b, number):
        less = (a, 1) < (b, 3)
        return less.float() * a

    return Program(step, inputs())


@program(speculated=5, compiles=2)
def both_ways():
    def step(a, b, number):
        if (a % 3, number) < (b % 3, 3):
            return a * 2
        return b * 3

    return Program(step, inputs())


@program()
def parts_alike():
    """The same object is equal to itself without being asked; behind equal parts lengths decide."""

    def step(a, b, number):
        pair = torch.stack([a, b])
        return (pair, 1) < (pair, 2), (a, b) < (a.clone(), b + 1), (a,) < (a * 1, b), (a, 1) < (a, 1), a * 2

    return Program(step, inputs())


@program()
def deques_give_truths():
    def step(a, b, number):
        return collections.deque([a, 1]) < collections.deque([b, 3]), a * 2

    return Program(step, inputs())


@program()
def by_fields():
    @dataclasses.dataclass(order=True)
    class Rank:
        score: torch.Tensor
        number: int

    def step(a, b, number):
        return Rank(a, 1) < Rank(b, 3), a * 2

    return Program(step, inputs())


@program()
def sorted_and_negated():
    def step(a, b, number):
        return sorted([(b, 1), (a, 2)]), min((b, 1), (a, 2)), not (a, 1) < (b, 3), (a, 1) < (b, 3) < (b + 1, 1)

    return Program(step, inputs())


@program()
def by_functions():
    def step(a, b, number):
        less = (a, 1).__lt__
        return operator.lt((a, 1), (b, 3)), less((b, 3)), tuple.__gt__((a,), (b,)), operator.le([a], [b])

    return Program(step, inputs())


@program()
def more_than_one_element_raises():
    def step(a, b, number):
        pair = torch.stack([a, b])
        try:
            return (pair, 1) < (pair + 1, 1)
        except RuntimeError as error:
            return str(error)

    return Program(step, inputs())
