"""What native code finds in lists from before the call: by position, by truth value, by equality."""

import itertools
import random

import torch

from tests.programs.harness import Program, program


class Held:
    """Has other numbers at each call."""

    def __init__(self, n):
        self.picked = [random.randrange(6) for _ in range(3)]
        self.nested = [[random.randrange(6) for _ in range(2)] for _ in range(2)]
        self.span = slice(n % 3, 3 + n % 2)
        self.place = (random.randrange(6), slice(0, 2))
        self.wanted = random.choice(self.picked)
        self.named = ("n", random.randrange(200))
        self.flags = [random.randrange(2) for _ in range(4)]


def calls(count=16):
    return [(Held(n), torch.arange(18.0).reshape(6, 3) + n) for n in range(count)]


@program(speculated=10)
def rows_by_a_list():
    return Program(lambda held, x: x[held.picked] * 2, calls())


@program(speculated=10)
def rows_by_lists_in_a_tuple():
    return Program(lambda held, x: (x[held.picked, [0, 1, 2]], x[held.picked, 1:]), calls())


@program(speculated=4, compiles=8)
def rows_by_a_slice():
    return Program(lambda held, x: (x[held.span] * 2, x[held.place]), calls(24))


@program(speculated=10)
def written_by_a_list():
    def step(held, x):
        y = x.clone()
        y[held.picked] = 1.5
        return y

    return Program(step, calls())


@program(speculated=3, compiles=16)
def filtered_by_a_number():
    def step(held, x):
        found = [x[0, 0] * number for number in filter(lambda number: number, held.flags)]
        return x.sum() + sum(found), len(list(filter(None, held.flags)))

    return Program(step, calls(30))


@program(speculated=4, compiles=7)
def where_an_element_is():
    """Small numbers are one object wherever they are."""

    def step(held, x):
        return x * held.picked.index(held.wanted), held.picked.count(held.wanted), held.wanted in held.flags

    return Program(step, calls(24))


@program(speculated=10)
def one_list_after_the_other():
    def step(held, x):
        return x * sum(itertools.chain.from_iterable(held.nested))

    return Program(step, calls())


@program(speculated=2, compiles=8)
def the_length_of_a_text():
    def step(held, x):
        x = x * len("%s, %s" % (held.picked, 1)) + len("%s: %s" % held.named)
        return x * len(str(held.picked)), x if f"{held.flags}" == "[0, 0, 0, 0]" else -x

    return Program(step, calls(24))


@program(speculated=1, compiles=8)
def pairs_as_a_dictionary():
    def step(pairs, x):
        return x * dict(pairs).get("a", 0)

    numbers = [1, 2, 3, 3, 4, 5, 6, 7, 7, 7]
    return Program(step, [([("a", number), ("b", 1)], torch.ones(2)) for number in numbers])
