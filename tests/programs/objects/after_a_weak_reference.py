"""Constructs after the step has looked at a weak reference: from then on the record of the run holds no object."""

import copy
import functools
import itertools
import warnings
import weakref

import torch

from tests.programs.harness import CALLS, Program, program


class Passing:
    """Is gone at once."""


class Box:
    def __init__(self):
        self.kept = None


def look():
    return weakref.ref(Passing())() is None


def inputs():
    return [(torch.randn(3),) for _ in range(3 * CALLS)]


@program(refused="weak reference")
def functions_that_native_code_calls_several_times():
    held = [3.0, 1.0, 2.0]

    def step(x):
        look()
        factor = held[0] + 1
        mapped = list(map(lambda value: value * factor, held))
        chosen = list(filter(lambda value: value > 4, mapped))
        in_order = sorted(held, key=lambda value: -value)
        total = functools.reduce(lambda one, other: one + other * factor, held)
        least = min(held, key=lambda value: abs(value - 2.2))
        summed = list(itertools.accumulate(held, lambda one, other: max(one, other)))
        held.sort(key=lambda value: value * -1)
        return x * total, mapped, chosen, in_order, least, summed

    def change():
        held.append(0.5)

    return Program(step, inputs(), before={4: change}, state=held)


@program(refused="weak reference")
def iterators_with_functions_are_kept():
    held, box, seen = [3.0, 1.0, 2.0], Box(), []

    def step(x):
        factor = held[0] + 1
        box.kept = [map(lambda value: value * factor, held), filter(lambda value: value < factor, held)]
        look()
        box.kept.append(itertools.starmap(lambda one, other: one - other * factor, [(1, held[0]), (2, 3)]))
        return x * factor

    def between(_):
        held[0] += 0.5
        seen.append([list(one) for one in box.kept])

    return Program(step, inputs(), state=(held, seen), between=between)


@program(refused="weak reference")
def warnings_in_a_callers_name():
    def old(x):
        warnings.warn("old() is called", FutureWarning, stacklevel=2)
        return x * 2

    def older(x, number):
        def inner(x):
            warnings.warn(f"older() is called, {number}", stacklevel=3)
            return x + 1

        return inner(x)

    def step(x):
        y = old(x)
        look()
        for number in range(2):
            y = older(y, number)
        return old(y).sum()

    return Program(step, inputs())


@program(refused="weak reference")
def values_that_hold_themselves_are_passed_on():
    def joined(held, x):
        made = copy.deepcopy(held)
        return x * held[1], made[0][0] is made

    def step(x):
        held = ([], 2)
        held[0].append(held)
        look()
        result, same = joined(held, x)
        return result.sum(), same

    return Program(step, inputs())


@program(refused="weak reference")
def errors_in_functions_that_are_called():
    class Wrong(Exception):
        pass

    def deeper(x, number):
        if number % 2:
            raise Wrong(f"number {number}")
        return x * number

    def step(x):
        look()
        found = [x]
        for number in range(4):
            try:
                found.append(deeper(found[-1], number))
            except Wrong as error:
                lines, at = [], error.__traceback__
                while at is not None:
                    lines.append((at.tb_frame.f_code.co_name, at.tb_lineno))
                    at = at.tb_next
                found.append(x * len(lines))
        return found

    return Program(step, inputs())
