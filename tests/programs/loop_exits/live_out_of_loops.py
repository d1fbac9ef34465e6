"""What is live-out of a loop in which tensors decide: variables that may still hold values from before the call."""

import torch

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

COUNTS = (5, 4, 6, 3, 7, 2, 1, 5, 2, 1, 0, 3, 1, 2, 8, 1, 2, 4) * 2


def numbers():
    return [(torch.randn(3), torch.randn(3), n) for n in COUNTS]


@program(speculated=8, compiles=16)
def the_best_or_what_was_given():
    def step(x, y, n):
        best = y
        for _ in range(n):
            x = torch.tanh(x) * 1.5
            if x.sum() > best.sum():
                best = x
        return best, x

    return Program(step, numbers())


@program(speculated=10, compiles=16)
def what_was_given_stays_beside_it():
    def step(x, y, n):
        best = y
        for _ in range(n):
            x = torch.tanh(x) * 1.5
            if x.sum() > 0:
                best = x
        return best, y

    return Program(step, numbers())


@program(speculated=12, compiles=10)
def one_is_taken_from_the_other():
    def step(x, y, n):
        best = y
        for _ in range(n):
            x = torch.tanh(x) * 1.5
            if x.sum() > best.sum():
                best = x
        return torch.sub(y, best), torch.sub(best, y), torch.sub(best, x)

    return Program(step, numbers())


@program(speculated=5, compiles=16)
def two_variables_that_are_set_by_turns():
    def step(x, y, n):
        best, worst = y, y
        for _ in range(n):
            x = torch.tanh(x) * 1.5
            if x.sum() > best.sum():
                best = x
            else:
                worst = x
        return {"best": best, "worst": worst, "y": y}

    return Program(step, numbers())


@program(speculated=5, compiles=16)
def in_a_list_with_what_was_given():
    def step(x, y, n):
        best = y
        for _ in range(n):
            x = torch.tanh(x) * 1.5
            if x.sum() > best.sum():
                best = x
        return [y, best, x]

    return Program(step, numbers())
