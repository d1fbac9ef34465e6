"""Containers that native functions do not go through: they return, hold or change the very objects."""

import collections
import functools
import itertools
import operator
import typing

import torch

from tests.programs.harness import CALLS, Program, program


def given(fn):
    """``fn(held)`` for a list from before the call; it may change it."""
    held = [1.0]

    def step(x):
        return x * 2, fn(held)

    return Program(step, [(torch.randn(3),) for _ in range(CALLS)], state=held)


@program()
def repeated():
    return given(lambda held: [each is held for each in itertools.repeat(held, 2)])


@program()
def repeated_and_appended_to():
    return given(lambda held: [each.append(1) for each in itertools.repeat(held, 2)])


@program()
def reduced_into():
    return given(lambda held: functools.reduce(lambda out, value: out.append(value) or out, [1, 2], held) is held)


@program()
def value_of_all_keys():
    return given(lambda held: dict.fromkeys("ab", held)["a"] is held)


@program()
def start_of_a_sum():
    return given(lambda held: (sum([], held) is held, sum([], start=held) is held, sum([[2.0]], held)))


@program()
def default_of_an_extreme():
    return given(lambda held: (max([], default=held) is held, min((), default=held) is held))


@program()
def default_of_an_iterator():
    return given(lambda held: next(iter([]), held) is held)


@program()
def fills_up():
    return given(lambda held: list(itertools.zip_longest([1, 2], [3], fillvalue=held))[1][1] is held)


@program()
def initial_value():
    return given(lambda held: next(itertools.accumulate([], initial=held)) is held)


@program()
def gone_through_by_name():
    return given(lambda held: list(enumerate(iterable=held, start=2)))


Pair = collections.namedtuple("Pair", "first second")


class Rows(typing.NamedTuple):
    rows: list
    count: int = 0


@program()
def held_by_a_named_tuple():
    return given(lambda held: (Pair(held, 1).first is held, Pair(second=held, first=0).second is held))


@program()
def appended_to_in_a_named_tuple():
    return given(lambda held: (Rows(held).rows.append(2.0), Rows(held)._replace(count=1).rows is held, len(held)))


@program()
def extended_by_a_function():
    return given(lambda held: operator.iconcat(held, (2.0,)) is held)


@program()
def a_deque_extended_by_a_function():
    held = collections.deque([1.0])

    def step(x):
        return x * 2, operator.iconcat(held, [2.0]) is held, len(held)

    return Program(step, [(torch.randn(3),) for _ in range(CALLS)], state=held)
