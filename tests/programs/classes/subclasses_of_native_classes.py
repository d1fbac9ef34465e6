"""Instances of the program's subclasses of native classes: what they hold natively differs from call to call."""

import array
import decimal
import itertools
import pathlib
import random
import uuid

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 6

NUMBERS = [1, 1, 1, 1, 1, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2]  # the very same in the first calls


class Name(str):
    pass


class Index(int):
    pass


class Rate(float):
    pass


class Raw(bytes):
    pass


class Money(decimal.Decimal):
    rate = 2

    def doubled(self):
        return Money(self * self.rate)


class Folder(pathlib.PurePosixPath):
    pass


class Levels(array.array):
    def total(self):
        return sum(self) + len(self)


class Steps(itertools.count):
    def skip(self):
        next(self)
        return next(self)


class Dice(random.Random):
    def __init__(self, seed):
        super().__init__(seed)
        self.draws = 0

    def roll(self):
        self.draws += 1
        return self.random() + 0.5


def scaled(make, factor, kept=False):
    """A step that scales its loss by ``factor`` of an object that ``make`` makes for each call, of another number."""
    weight = nn.Parameter(torch.randn(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)

    def step(value):
        number = factor(value)
        loss = weight.square().sum() * number
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item(), number

    objects = [make(number) for number in range(3)] if kept else None
    calls = [(objects[number] if kept else make(number),) for number in NUMBERS]
    return Program(step, calls, state=weight)


@program(speculated=5, compiles=4)
def a_text_is_compared():
    return scaled(lambda n: Name("abc"[n]), lambda name: 1 + (name == "b") + (name.upper() > "B"))


@program(speculated=5, compiles=4)
def a_text_is_compared_of_kept_objects():
    return scaled(lambda n: Name("abc"[n]), lambda name: 1 + (name == "b") + ("b" in name), kept=True)


@program(speculated=5, compiles=4)
def an_integer_computes():
    return scaled(Index, lambda index: index + 1 + [2, 3, 4][index])


@program(speculated=5, compiles=4)
def a_float_scales_a_tensor():
    return scaled(Rate, lambda rate: float(torch.ones(2).sum() * rate) + rate)


@program(speculated=5, compiles=4)
def bytes_are_summed():
    return scaled(lambda n: Raw([n, 1]), lambda raw: sum(raw) + raw[0])


@program(speculated=5, compiles=4)
def a_decimal_computes():
    return scaled(lambda n: Money(n + 1), lambda money: float(money.doubled()) + round(money) + int(money))


@program(speculated=5, compiles=4)
def a_path_becomes_text():
    return scaled(lambda n: Folder("abc"[n]), lambda path: ord(str(path)) + ord(f"{path / 'x'}"[0]))


@program(speculated=5, compiles=4)
def an_array_is_summed():
    return scaled(lambda n: Levels("i", [n]), lambda levels: levels.total() + max(list(levels)))


@program(speculated=5, compiles=4)
def a_counter_goes_on():
    return scaled(Steps, lambda steps: steps.skip(), kept=True)


@program(speculated=5, compiles=4)
def a_generator_draws():
    return scaled(Dice, lambda dice: dice.roll() + dice.draws, kept=True)


@program(speculated=5, compiles=4)
def a_decimal_becomes_text():
    return scaled(decimal.Decimal, lambda number: ord(f"{number}") + ord(str(number)))


@program(speculated=5, compiles=4)
def an_identifier_becomes_text():
    return scaled(lambda n: uuid.UUID(int=n), lambda key: ord(str(key)[-1]))
