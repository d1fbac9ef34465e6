"""Truth values used as numbers, or deciding only whether something is counted; and those that only seem to."""

import torch

from tests.programs.harness import CALLS, Program, program


def vectors(calls=CALLS, width=3):
    return [(torch.randn(width),) for _ in range(calls)]


@program()
def truths_of_tensors_added_up():
    counts = {"up": 0}

    def step(x):
        n = 0
        n += (x[0] > 0).item()
        n -= int(x[1] > 0)
        n = n + 2 * (x[2] > 0).item()
        counts["up"] += (x.sum() > 0).item()
        return n, float((x[0] > x[1]).item()), x * n

    return Program(step, vectors(), state=counts)


@program(speculated=4, compiles=8)
def counted_where_it_holds():
    def step(x):
        n, share, low = 0, -0.0, 5
        if x[0] > 0:
            n += 1
        if (x[1] > 0).item():
            share += 0.25
        if x[2].item() < 0.1:
            low -= 2
        return n, share, low, [n] * 2, f"{n}"

    return Program(step, vectors())


@program()
def counted_in_a_loop():
    def step(rows):
        hits = total = 0
        for row in rows:
            total += row.sum().item()
            if row.argmax() == 1:
                hits += 1
        return hits, total, hits / len(rows)

    return Program(step, [(torch.randn(4 + n % 3, 3),) for n in range(CALLS)])


@program(speculated=3, compiles=8)
def truths_that_meet_no_numbers():
    class Sum:
        def __init__(self):
            self.seen = []

        def __radd__(self, other):
            self.seen.append(type(other).__name__)
            return other

        def __add__(self, other):
            return type(other) is bool

    def step(x):
        some = [1, 2] * (x[0] > 9).item()
        mask = (x > 0) + (x[1] < 9).item()
        text = "ab" * (x[1] > 9).item()
        return (
            some,
            mask,
            text,
            Sum() + (x[0] < 9).item(),
            (x[1] < 9).item() + Sum().seen.__len__(),
            x * (x[0] < 9).item(),
        )

    return Program(step, vectors())


@program(speculated=0, compiles=8)
def a_count_without_a_value():
    def step(x, sure):
        if sure:
            n = 0
        if x.sum() > 0:
            n += 1
        return n if sure or x.sum() > 0 else "none"

    return Program(step, [(torch.randn(3), k % 3 > 0) for k in range(CALLS)])


@program(speculated=0, compiles=8)
def names_that_mean_something_else():
    def step(x):
        int = lambda value: (value, type(value).__name__)
        n = "a"
        if x[0] > 9:
            n += 1
        a, b = int((x[1] < 9).item()), int(x[1].item() < 9)
        return n, a, b

    return Program(step, vectors())


@program(speculated=8, compiles=12)
def counts_that_decide():
    def step(x):
        n = 0
        if x[0] > 0:
            n += 1
        if x[1] > 0:
            n += 1
        return x * 2 if n == 2 else x + n

    return Program(step, vectors(16))


@program(speculated=0, compiles=8)
def sizes_that_are_compared():
    def step(x):
        n = 1 + (x.shape[0] == 3)
        if x[0] > 9:
            n += 1
        found = x[x > 0]
        return torch.zeros(n + (len(found) > 1)), x * n

    return Program(step, [(torch.randn(3 + k % 2),) for k in range(CALLS)])


@program()
def numbers_that_are_compared():
    class State:
        epoch = 0

    state = State()

    def step(x, limit):
        state.epoch += 1
        warm = 0.1 * (state.epoch < 4) + 1
        n = 0
        if state.epoch > limit:
            n += 1
        return x * warm, n, int(state.epoch == 3)

    return Program(step, [(torch.randn(3), k % 2 + 3) for k in range(CALLS)], state=state)
