"""Getters and method callers of ``operator`` that were made before the call: what they hold may be other at each."""

import operator

import torch
from torch import nn

from tests.programs.harness import Program, program

NUMBERS = [1] * 6 + [0, 1, 2] * 4


class Box:
    def __init__(self):
        self.one, self.two, self.three = 1.0, 2.0, 3.0
        self.inner = self

    def scaled(self, number, by=1.0):
        return self.one * number + by


def trained(make, use):
    """A step that is given ``make(number)`` and trains with ``use`` of it."""
    weight, box = nn.Parameter(torch.randn(4)), Box()

    def step(getter):
        loss = weight.square().sum() * use(getter, box)
        (gradient,) = torch.autograd.grad(loss, weight)
        with torch.no_grad():
            weight.sub_(0.1 * gradient)
        return loss.item()

    return Program(step, [(make(number),) for number in NUMBERS], state=weight)


@program(speculated=8, compiles=4)
def elements():
    return trained(operator.itemgetter, lambda getter, _: getter([1, 2, 3]))


@program(speculated=8, compiles=4)
def several_elements_and_slices():
    return trained(
        lambda number: operator.itemgetter(number, slice(number, 3)),
        lambda getter, _: sum(getter([1.0, 2.0, 3.0])[1], getter([4.0, 5.0, 6.0])[0]),
    )


@program(speculated=4, compiles=4)
def attributes():
    names = ("one", "inner.two", "inner.inner.three")
    return trained(lambda number: operator.attrgetter(names[number]), lambda getter, box: getter(box))


@program(speculated=4, compiles=4)
def methods_by_name():
    return trained(
        lambda number: operator.methodcaller("scaled", number + 0.5, **({"by": 2.0} if number else {})),
        lambda caller, box: caller(box),
    )


@program(speculated=4, compiles=4)
def keys_of_native_code():
    rows = [(3.0, 1.0, 2.0), (1.0, 2.0, 3.0), (2.0, 3.0, 1.0)]

    def use(getter, _):
        best = max(rows, key=getter)
        in_order = sorted(rows, key=getter)
        return best[0] + sum(value * (n + 1) for n, value in enumerate(map(getter, in_order))) + in_order[0][1]

    return trained(operator.itemgetter, use)
