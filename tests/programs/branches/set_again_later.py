"""Variables that an arm sets, and a later branch sets again to the very same value: which of the two is meant later?"""

import torch

from tests.programs.harness import Program, program

RUN_ONE_IN = 3
FIRST, SECOND = torch.ones(3), torch.zeros(3)


def rows(seed, count=120):
    made = torch.Generator().manual_seed(seed)
    return [(torch.randn(3, 3, generator=made),) for _ in range(count)]


def numbers(x):
    n = 3
    for row in x:
        if row[0] > 0.7:
            n = 5
            if row[1] > 0:
                n = 7
    return n, x * n


def tensors(x):
    kept, unset = SECOND, 1
    for row in x:
        if row[0] > 0.7:
            kept = FIRST
            if row[1] > 0.5:
                del unset
    try:
        return kept * x, kept + unset
    except UnboundLocalError:
        return kept - 1


def behind_a_loop(x):
    n = 0
    for row in x:
        if row[0] > 0.5:
            n = 1
    if x[0, 1] > 0:
        n = 1
    m = 0
    for row in x:
        if row[1] > 1:
            m = n
    return n, m, x * n


def single_branches(x):
    n, kept = 3, SECOND
    if x[0, 0] > 0:
        n, kept = 5, FIRST
    if x[1, 0] > 0:
        n, kept = 5, FIRST
    if x[2, 0] > 0.5:
        n = 3
    return n, kept + 1, x * n


def while_loops(x):
    n, i = 3, 0
    while i < 3:
        if x[i, 0] > 0.7:
            n = 5
            if x[i, 1] > 0:
                n = 7
        i += 1
    return n, x * n


@program(speculated=60, compiles=30)
def numbers_set_in_each_iteration():
    return Program(numbers, rows(6))


@program(speculated=60, compiles=30)
def numbers_set_in_each_iteration_again():
    return Program(numbers, rows(5))


@program(speculated=60, compiles=30)
def tensors_from_before():
    return Program(tensors, rows(1), state=(FIRST, SECOND))


@program(speculated=60, compiles=30)
def tensors_from_before_again():
    return Program(tensors, rows(3), state=(FIRST, SECOND))


@program(speculated=60, compiles=30)
def numbers_used_in_a_later_loop():
    return Program(behind_a_loop, rows(1, 160))


@program(speculated=60, compiles=30)
def numbers_of_single_branches():
    return Program(single_branches, rows(2), state=(FIRST, SECOND))


@program(speculated=60, compiles=30)
def numbers_of_while_loops():
    return Program(while_loops, rows(3))


@program(speculated=0, compiles=30)
def numbers_that_only_states_of_later_branches_hold():
    def step(x):
        n, m = 3, 2
        z, y = FIRST, x[0] * 2
        if x[1][0] > 0.7:
            m = m
        for r in x:
            if r[1] > -0.4:
                if r[2] > 0:
                    z = z + 1
                    y = z + 1
                else:
                    z = y
                if r[2] > 0:
                    n = n
                else:
                    z = z
            if r[2] > -0.4:
                m = 2
                if r[2] > -0.4:
                    z, y = y, z
        for r in x:
            z = SECOND
        return n, m, x * n, z * 2, y - 1, f"{n}{m}"

    return Program(step, rows(21, 70), state=(FIRST, SECOND))
