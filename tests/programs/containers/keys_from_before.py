"""Keys that are tuples, frozen sets and other objects from before the call: other calls bring others."""

import collections
import fractions
import ipaddress
from typing import NamedTuple

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 6

MIDDLE = [1, 1, 1, 1, 1, 1, 0, 1, 2, 0, 1, 2, 0, 1, 2]  # the very same in the first calls
TUPLES = [(1, middle, 2) for middle in MIDDLE]


class Move(NamedTuple):
    unit: int
    step: int


class Name(str):
    pass


def counting(count, keys):
    """A step that trains with a number that ``count`` gives for a key of each call, and a dictionary of the program."""
    weight = nn.Parameter(torch.randn(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    seen = {}

    def step(key):
        loss = weight.square().sum() * count(seen, key)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    return Program(step, [(key,) for key in keys], state=(weight, seen))


def visits(seen, key):
    seen[key] = seen.get(key, 0) + 1
    return seen[key]


def visits_and_label(seen, key):
    return visits(seen, (key, "label"))


def repeated(_, keys):
    return len(dict.fromkeys(keys)) + len(set(keys)) + collections.Counter(keys).most_common(1)[0][1]


@program(speculated=5, compiles=4)
def tuples_of_numbers():
    return counting(visits, TUPLES)


@program(speculated=5, compiles=4)
def tuples_within_tuples():
    return counting(visits_and_label, TUPLES)


@program(speculated=5, compiles=4)
def named_tuples():
    return counting(visits, [Move(1, middle) for middle in MIDDLE])


@program(speculated=5, compiles=4)
def frozen_sets():
    return counting(visits, [frozenset({middle, 7}) for middle in MIDDLE])


@program(speculated=5, compiles=4)
def tuples_that_native_code_hashes():
    return counting(repeated, [[key, (1, 1, 2), (1, 0, 2), (1, 0, 2)] for key in TUPLES])


@program(speculated=5, compiles=4)
def a_dictionary_of_the_call():
    def count(_, key):
        ranks = {(1, 0, 2): 3, key: 5}
        return sum(ranks.values()) + ranks.get((1, 1, 2), 0)

    return counting(count, TUPLES)


@program(speculated=5, compiles=4)
def tuples_of_texts_and_dtypes():
    kinds = ("a", torch.float32), ("b", torch.float32), ("b", torch.float64)
    return counting(visits, [kinds[middle] for middle in MIDDLE])


@program(speculated=5, compiles=4)
def fractions_as_keys():
    return counting(visits, [fractions.Fraction(middle, 3) for middle in MIDDLE])


@program(speculated=2, compiles=4)
def texts_of_a_class():
    names = [Name(letter) for letter in "abc"]
    return counting(visits, [names[middle] for middle in MIDDLE])


@program(speculated=2, compiles=4)
def addresses():
    known = [ipaddress.ip_address(number) for number in range(3)]
    return counting(visits, [known[middle] for middle in MIDDLE])
