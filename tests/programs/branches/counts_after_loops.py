"""Numbers that arms have counted, used after the loop: beside a size of the call, as a key, as the index of an item."""

import random

import torch

from tests.programs.harness import Program, program

RUN_ONE_IN = 6
MANY = 40


def rows():
    return [(torch.randn(3 + call % 4, 3),) for call in range(MANY)]


def equal_rows():
    return [(torch.randn(4, 3),) for _ in range(MANY)]


def by_tensors(xs):
    count, total = 0, torch.zeros(3)
    for t in range(xs.size(0)):
        total = total + xs[t]
        if total.sum() > 0:
            total = total * 0.5
            count += 1
    return count, total


def by_chance(xs):
    count, total = 0, torch.zeros(3)
    for t in range(xs.size(0)):
        total = total + xs[t]
        if random.random() < 0.5:
            total = total * 0.5
            count += 1
    return count, total


@program(speculated=25, compiles=4)
def share_of_the_iterations():
    def step(xs):
        count, total = by_tensors(xs)
        return count / xs.size(0), total

    return Program(step, rows())


@program(speculated=25, compiles=4)
def share_of_equal_iterations():
    def step(xs):
        count, total = by_tensors(xs)
        return count / xs.size(0), total

    return Program(step, equal_rows())


@program(speculated=20, compiles=8)
def share_of_what_chance_took():
    log = {}

    def step(xs):
        count, total = by_chance(xs)
        log["forced"] = count / xs.size(0)
        log["forced times"] = count
        return total

    return Program(step, rows(), state=(log, random))


@program(speculated=20, compiles=12)
def shares_of_both_ways():
    def step(xs):
        count, total = by_chance(xs)
        others = xs.size(0) - count
        return count / xs.size(0), others / xs.size(0), count / xs.size(0), total

    return Program(step, equal_rows(), state=random)


@program(speculated=20, compiles=12)
def a_filled_tensor():
    def step(xs):
        count, total = by_tensors(xs)
        return torch.full((2,), count / xs.size(0)), total

    return Program(step, rows())


@program(speculated=3, compiles=20)
def size_by_count():
    def step(xs):
        count, total = by_tensors(xs)
        return xs.size(0) / (count + 1), total

    return Program(step, rows())


@program(speculated=3, compiles=20)
def size_by_count_that_may_be_none():
    def step(xs):
        count, _ = by_tensors(xs)
        try:
            return xs.size(0) / count
        except ZeroDivisionError:
            return None

    return Program(step, rows())


@program(speculated=3, compiles=20)
def a_key_of_an_old_dictionary():
    lengths = {}

    def step(xs):
        count, total = by_tensors(xs)
        lengths[count] = xs.size(0)
        return total

    return Program(step, rows(), state=lengths)


@program(speculated=3, compiles=20)
def a_key_that_chance_gives():
    lengths = {}

    def step(xs):
        count, total = by_chance(xs)
        lengths[count] = xs.size(0)
        return total

    return Program(step, equal_rows(), state=(lengths, random))


@program(speculated=3, compiles=20)
def a_key_of_a_new_dictionary():
    def step(xs):
        count, total = by_chance(xs)
        found = {5: 1}
        found[count] = xs.size(0)
        found[xs.size(0)] = count
        return found, total

    return Program(step, equal_rows(), state=random)


@program(speculated=3, compiles=20)
def an_item_of_a_new_list():
    def step(xs):
        count, total = by_chance(xs)
        found = [7] * 9
        found[count] = xs.size(0) + 10
        return found, total

    return Program(step, equal_rows(), state=random)


@program(speculated=3, compiles=20)
def a_tensor_in_a_new_list():
    def step(xs):
        count, total = by_chance(xs)
        found = [xs] * 9
        found[count] = total
        return found

    return Program(step, equal_rows(), state=random)


@program(speculated=3, compiles=20)
def an_item_that_is_deleted():
    def step(xs):
        count, total = by_chance(xs)
        found = {number: number for number in range(9)}
        del found[count]
        return found, xs.size(0), total

    return Program(step, equal_rows(), state=random)


@program(speculated=3, compiles=20)
def a_slice_that_is_deleted():
    def step(xs):
        count, total = by_tensors(xs)
        found = [*range(9)]
        del found[:count]
        return found, xs.size(0), total

    return Program(step, rows())
