"""Iterations that decide without computing: by fetched numbers, by tensors from before the call, by random numbers."""

import random

import torch

from tests.programs.harness import Program, program


@program(speculated=0, compiles=8)
def fetched_elements_compared_with_labels():
    def step(x, labels):
        correct = 0
        for a, b in zip(x.unbind(), labels, strict=True):
            if a.item() == b:
                correct += 1
        return correct

    calls = [(torch.randint(3, (4,)), [random.randrange(3) for _ in range(4)]) for _ in range(10)]
    return Program(step, calls)


@program(speculated=0, compiles=8)
def tensors_of_a_list_asked():
    def step(flags):
        count = 0
        for flag in flags:
            if flag:
                count += 1
        return count

    return Program(step, [(list((torch.rand(4) > 0.5).unbind()),) for _ in range(10)])


@program(speculated=0, compiles=8)
def nothing_but_chance():
    def step(x):
        count = 0
        for _ in range(5):
            if random.random() < 0.5:
                count += 1
        return x.shape[0] + count

    return Program(step, [(torch.rand(4),) for _ in range(10)])
