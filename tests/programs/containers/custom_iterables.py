"""Iterables of the program's own classes, given to what iterates: builtins, itertools, containers."""

import collections
import functools
import itertools
import math
import operator

import torch
from torch import nn

from tests.programs.harness import Program, program


class Indexed:
    """The old protocol: items by number until IndexError."""

    def __init__(self):
        self.items, self.asked = [1.0, 2.0, 3.0], 0

    def __getitem__(self, index):
        self.asked += 1
        return self.items[index]


class Sequence(Indexed):
    def __len__(self):
        return len(self.items)


class Generating:
    def __init__(self):
        self.items, self.asked = [1.0, 2.0, 3.0], 0

    def __iter__(self):
        for item in self.items:
            self.asked += 1
            yield item


class Stepping(Generating):
    def __iter__(self):
        return Cursor(self)


class Cursor:
    def __init__(self, owner):
        self.owner, self.place = owner, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.place >= len(self.owner.items):
            raise StopIteration
        self.owner.asked += 1
        self.place += 1
        return self.owner.items[self.place - 1]


class Mapping:
    def __init__(self):
        self.items_, self.asked = {"a": 1.0, "b": 2.0}, 0

    def keys(self):
        self.asked += 1
        return self.items_.keys()

    def __getitem__(self, key):
        self.asked += 1
        return self.items_[key]


class Pairing:
    def __init__(self):
        self.asked = 0

    def __iter__(self):
        self.asked += 1
        return iter([("a", float(self.asked)), ("b", 2.0)])


def through(go, classes=(Indexed, Generating, Stepping)):
    """A program that goes through an object of each class, whose elements change in the middle."""
    held = [cls() for cls in classes]

    def step(x):
        found = [go(one, x) for one in held]
        return found, x * sum(one.asked for one in held)

    def changed():
        for one in held:
            if isinstance(one, Indexed | Generating):
                one.items[1] = 5.0

    return Program(step, [(torch.randn(3),) for _ in range(12)], before={8: changed}, state=held)


@program(speculated=8)
def iterators_of_them():
    def go(one, x):
        iterator = iter(one)
        return next(iterator) * x + next(iterator)

    return through(go)


@program(speculated=8)
def backwards():
    def go(one, x):
        return [x * item for item in reversed(one)], next(reversed(one)), list(reversed(one))

    class Reversing(Sequence):
        def __reversed__(self):
            for item in self.items[::-1]:
                self.asked += 1
                yield item

    return through(go, (Sequence, Reversing))


@program(speculated=8, compiles=1)
def lists_of_modules():
    first, second = (nn.ModuleList([nn.Linear(3, 3) for _ in range(n)]) for n in (3, 2))
    weights = nn.ParameterList([nn.Parameter(torch.randn(3)) for _ in range(2)])

    def step(x):
        for layer in (*reversed(first), *itertools.chain(first, second), *itertools.islice(first, 1, 3)):
            x = torch.tanh(layer(x))
        for one, other in (*itertools.product(first, second), *itertools.pairwise(collections.deque(first))):
            x = one(x) - other(x)
        layers = [second[0]]
        layers += first
        layers[:1] = second
        for layer in layers:
            x = layer(x)
        for weight in reversed(weights):
            x = x * weight
        return x.detach()

    return Program(step, [(torch.randn(4, 3),) for _ in range(12)], state=(first, second, weights))


@program(speculated=8)
def containers_are_filled():
    def go(one, x):
        listed = [0.0]
        listed += one
        listed[1:2] = one
        queue = collections.deque(one, maxlen=5)
        queue.extend(one)
        queue += one
        return [x * item for item in (*listed, *queue)]

    return through(go)


@program(speculated=6, compiles=2)
def sets_and_counts():
    def go(one, x):
        found = {1.0, 9.0}
        found.update(one, one)
        return x * len(found.intersection(one)), found.issuperset(one), collections.Counter(one), 2.0 in one

    return through(go)


@program(speculated=8)
def itertools_go_through_them():
    def go(one, x):
        cycled = itertools.cycle(one)
        return (
            [x * item for item in itertools.islice(one, 2)],
            [x * item for item in itertools.chain.from_iterable([one, one])],
            [x * item for item in itertools.accumulate(one, func=operator.mul)],
            [x * (a or 1) for a, _ in itertools.zip_longest(one, range(4))],
            [x * a for a, b in itertools.combinations(one, 2)],
            [x * a + b for a, b in zip(*itertools.tee(one), strict=True)],
            [next(cycled) for _ in range(4)],
        )

    return through(go)


@program(speculated=6, compiles=3)
def itertools_ask_about_them():
    def go(one, x):
        return (
            [x * item for item in itertools.takewhile(lambda item: item < 3, one)],
            [x * item for item in itertools.compress(one, one)],
            [(x * key, len(list(group))) for key, group in itertools.groupby(one, key=lambda item: item > 1)],
        )

    return through(go)


@program(speculated=6, compiles=2)
def numbers_are_computed_of_them():
    def go(one, x):
        total = math.prod(one) + math.fsum(one) + operator.countOf(one, 1.0)
        return x * total, functools.reduce(lambda a, b: a - b, one)

    return through(go)


@program(speculated=8)
def mappings_and_pairs():
    def go(one, x):
        made = {"a": 0.0}
        made.update(one)
        made |= one
        ordered, default = collections.OrderedDict(one), collections.defaultdict(float, one)
        return x * made["a"] + ordered["b"], list(ordered), default["c"]

    return through(go, (Mapping, Pairing))


@program(speculated=8)
def calls_until():
    class Counting(Generating):
        def __call__(self):
            self.asked += 1
            return self.asked % 4

        def read(self):
            return self()

    def go(one, x):
        return [x * item for item in iter(one, 0)], list(iter(one.read, 3)), list(iter(lambda: one(), 0))

    return through(go, (Counting,))


@program(refused="a new iterator leaves the step")
def iterators_that_are_kept():
    held = Sequence()

    def step(x):
        held.iterator, held.backwards = iter(held), reversed(held)
        return x * next(held.iterator) + next(held.backwards)

    program = Program(step, [(torch.randn(3),) for _ in range(8)], state=held)
    program.between = lambda _: (next(held.iterator), list(held.backwards))
    return program
