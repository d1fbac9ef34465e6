"""Lists from before the call that change while something iterates over them."""

import collections
import random

import torch
from torch import nn

from tests.programs.harness import Program, program

N = 14


def numbers(least, most, seed=0):
    drawn = random.Random(seed)
    return [drawn.randint(least, most) for _ in range(N)]


def lists(least, most):
    drawn = random.Random(1)
    return [(torch.randn(2), [drawn.random() for _ in range(drawn.randint(least, most))]) for _ in range(N)]


@program(speculated=7, compiles=3)
def enumerated_and_appended_to():
    def step(x, a):
        out = []
        for i, v in enumerate(a):
            if i == 0:
                a.append(2.0)
            out.append(v)
        return x * sum(out)

    return Program(step, lists(2, 4))


@program(speculated=7, compiles=3)
def enumerated_and_written():
    def step(x, a):
        out = []
        for i, v in enumerate(a):
            if i == 0:
                a[1] = 5.0
            out.append(v)
        return x * sum(out)

    return Program(step, lists(2, 4))


@program(speculated=7, compiles=3)
def mapped_and_written():
    def step(x, a):
        m = map(lambda v: v * 2, a)
        a[1] = 5.0
        return x * sum(m)

    return Program(step, lists(2, 4))


@program(speculated=7, compiles=3)
def iterated_and_appended_to():
    def step(x, a):
        it = iter(a)
        first = next(it)
        a[1] = 5.0
        a.append(1.0)
        return x * (first + sum(it))

    return Program(step, lists(2, 4))


@program(speculated=7, compiles=3)
def zipped_and_written():
    def step(x, a):
        z = zip(a, a)
        next(z)
        a[1] = 5.0
        return x * sum(p * q for p, q in z)

    return Program(step, lists(2, 4))


@program(speculated=7, compiles=3)
def reversed_and_written():
    def step(x, a):
        z = reversed(a)
        a[0] = 5.0
        return x * sum(z)

    return Program(step, lists(2, 4))


@program(speculated=0, compiles=4)
def list_grows_in_its_loop():
    w = nn.Linear(4, 4)

    def step(x, flags, n):
        fl = flags
        out = []
        for f in fl:
            if f and len(fl) < n:
                fl.append(False)
            x = torch.tanh(w(x)) * (2 if f else 1)
            out.append(f)
        return x.detach(), out

    r = random.Random(2)
    return Program(
        step,
        [(torch.randn(2, 4), [r.random() < 0.4 for _ in range(n)], n + r.randint(0, 2)) for n in numbers(2, 5)],
        state=w,
    )


@program(speculated=0, compiles=4)
def both_lists_of_a_zip_grow():
    w = nn.Linear(4, 4)

    def step(x, a, b, n):
        out = []
        for f, g in zip(a, b):
            if f and len(a) < n:
                a.append(False)
                b.append(2.0)
            if len(out) == 1:
                b[1] = 7.0
            x = torch.tanh(w(x)) * (2 if f else 1) + g
            out.append(g)
        return x.detach(), out

    r = random.Random(2)
    return Program(
        step,
        [
            (
                torch.randn(2, 4),
                [r.random() < 0.4 for _ in range(n)],
                [r.random() for _ in range(n)],
                n + r.randint(0, 2),
            )
            for n in numbers(2, 5)
        ],
        state=w,
    )


@program(speculated=0, compiles=4)
def a_list_of_a_zip_shrinks():
    w = nn.Linear(4, 4)

    def step(x, xs, b):
        out = []
        for x_t, g in zip(xs, b):
            if g > 0.5:
                b.pop()
            x = torch.tanh(w(x)) * g + x_t
            out.append(g)
        return x.detach(), out

    r = random.Random(2)
    return Program(
        step, [(torch.randn(2, 4), torch.randn(n, 4), [r.random() for _ in range(n)]) for n in numbers(3, 6)], state=w
    )


def _iterated(container, begin, change):
    """Iterators that the program makes itself, of what is changed while they are under way."""

    def step(x):
        going = begin(container)
        next(going)
        change(container, len(container))
        try:
            left = len(list(going))
        except RuntimeError as error:
            left = len(str(error))
        return x * left

    return Program(step, [(torch.ones(2),)] * 6, state=container)


def _put(container, n):
    container[f"n{n}"] = n


@program(speculated=0)
def iterator_of_a_dictionary():
    return _iterated({"a": 1, "b": 2}, iter, _put)


@program(speculated=0)
def iterator_of_an_ordered_dictionary():
    return _iterated(collections.OrderedDict(a=1, b=2), iter, _put)


@program(speculated=0)
def iterator_of_a_set():
    return _iterated({1, 2}, iter, lambda container, n: container.add(n + 1))


@program(speculated=0)
def iterator_of_a_deque():
    return _iterated(collections.deque([1, 2]), iter, lambda container, n: container.append(n + 1))


@program(speculated=0)
def enumerated_dictionary():
    return _iterated({"a": 1, "b": 2}, enumerate, _put)


@program(speculated=0)
def zipped_dictionary():
    return _iterated({"a": 1, "b": 2}, lambda container: zip(container, "abcdefghijkl"), _put)


@program(speculated=0)
def dictionary_from_the_last_key_on():
    return _iterated({"a": 1, "b": 2}, reversed, _put)


@program(speculated=0)
def ordered_dictionary_made_by_native_code():
    def step(x):
        made = collections.OrderedDict.fromkeys("abc")
        going = iter(made)
        made.pop(next(going))
        try:
            return x * len(next(going))
        except RuntimeError as error:
            return x * len(str(error))

    return Program(step, [(torch.ones(2),)] * 6)
