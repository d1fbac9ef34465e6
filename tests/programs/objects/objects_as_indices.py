"""Objects that native code asks for a number in the middle of its own work: the object stays, its number changes."""

import itertools

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 4

NUMBERS = [1, 1, 1, 1, 1, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2]


class Count:
    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number

    def __int__(self):
        return self.number

    def __float__(self):
        return float(self.number)


def counting(use):
    """A step that scales its loss by what ``use`` makes of an object whose number changes between the calls."""
    weight = nn.Parameter(torch.randn(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    count = Count(1)

    def step():
        loss = weight.square().sum() * use(count)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def setting(number):
        return lambda: setattr(count, "number", number)

    return Program(step, [()] * len(NUMBERS), {at: setting(n) for at, n in enumerate(NUMBERS)}, state=weight)


@program(refused="native code asks a Count")
def in_a_text():
    return counting(lambda count: len("ab".center(count)) + int("%d" % count))


@program(refused="native code asks a Count")
def as_a_width():
    return counting(lambda count: len("ab".center(count)) + "abab".find("b", count))


@program(refused="native code asks a Count")
def how_often_a_list_is_repeated():
    return counting(lambda count: len([1, 2] * count))


@program(refused="native code asks a Count")
def where_a_list_is_changed():
    return counting(lambda count: [1, 2, 3].pop(count))


@program(refused="native code asks a Count")
def how_far_an_iterator_goes():
    return counting(lambda count: len(list(itertools.islice("abc", count))))


@program(speculated=5, compiles=4)
def the_digits_of_a_rounded_number():
    return counting(lambda count: round(1.23456, count))


def sliced(call):
    weight = nn.Parameter(torch.randn(4, 2))

    def step(part):
        loss = weight[part].square().sum()
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight.sub_(0.1 * gradient)
        return loss.item()

    return Program(step, [(call(number),) for number in NUMBERS], state=weight)


@program(speculated=5, compiles=4)
def slices_within_a_tuple():
    return sliced(lambda number: (slice(number, None), 0))
