"""Numbers whose class depends on values, `min(1, rate)`, `2 ** n`, `rate ** 0.5`: dtypes and texts show the class."""

import collections

import torch

from tests.programs.harness import Program, program

RATES = (0.0, 0.1, 0.2, 0.3, 0.8, 1.2, 0.4, 1.5, 0.9, 1.0, 0.1, 2.0)


def over(step, count=24, **more):
    return Program(step, [(torch.arange(4), RATES[k % len(RATES)]) for k in range(count)], **more)


@program(speculated=13, compiles=12)
def schedules_that_reach_an_integer():
    state = {"rate": 0.0}

    def step(x, start):
        state["rate"] = min(1, state["rate"] + 0.1)
        rate = max(state["rate"], 0)
        return x * rate, type(rate).__name__, isinstance(rate, int), torch.tensor(rate), max(0, 1 - start)

    return over(step, state=state)


@program(speculated=15, compiles=12)
def tensors_made_of_the_smaller_one():
    def step(x, rate):
        return torch.full((2,), min(1, rate)), torch.where(x > 2, max([rate, 1]), 2), torch.tensor([1, min(rate, 1)])

    return over(step)


@program(speculated=13, compiles=12)
def flags_among_numbers():
    def step(x, rate):
        large, count = x.sum().item() > 5, int(rate * 2)
        return max(large, count), str(min(count, rate > 0.5)), x * max(count, rate > 0.5), max([large, count, 0.5])

    return over(step)


@program(speculated=13, compiles=12)
def powers_with_negative_exponents():
    def step(x, rate):
        power = 2 ** (int(rate * 5) - 2)
        return x * power, type(power).__name__, torch.tensor(pow(2, int(rate * 5) - 2)), str(power)

    return over(step, 36)


@program(speculated=8, compiles=12)
def powers_of_negative_numbers():
    def step(x, rate):
        root = (rate - 0.5) ** 0.5
        return x * root, type(root).__name__, (rate - 0.5) ** 3, pow(rate - 0.5, 1.5)

    return over(step)


@program(speculated=12, compiles=12)
def extremes_of_kept_numbers():
    kept, latest = list(range(1, 11)), collections.deque([1] * 9, maxlen=10)

    def step(x, rate):
        kept.append(rate * 6)
        latest.append(1)
        found = min(kept), max(kept), type(min(kept)).__name__, x * max(kept), x * min(latest)
        kept.pop()
        return found

    return over(step, state=(kept, latest))


@program(speculated=10, compiles=12)
def best_of_a_loop():
    def step(x, rate):
        best, least = 0, 1
        for row in x * rate:
            best, least = max(best, row.item()), min(least, best)
        return torch.tensor(best), type(best).__name__, best, torch.tensor(least)

    return over(step, 36)
