"""Generators of the program's own that are asked for batches between two updates: what they may see of the step."""

import random

import numpy as np
import torch
from torch import nn

from tests.programs.harness import CALLS, Program, program

SEEN = {"scale": 1.0}
asked = 0


class Source:
    def __init__(self):
        self.scale, self.served = 1.0, 0


def trained(batches, then):
    """Two updates in each call, with a batch asked for before each. ``then``: what the step changes after each."""
    model = nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def step(number):
        total = 0.0
        for _ in range(2):
            x = torch.from_numpy(next(batches))
            opt.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            opt.step()
            total += loss.item()
            then(loss)
        return total

    return Program(step, [(number,) for number in range(CALLS)], state=model)


def drawn():
    return np.random.randn(5, 4).astype("float32")


@program()
def batches_of_numpy():
    def batches():
        centers = [1.0, -1.0, 0.5]
        while True:
            yield np.stack([drawn()[0] * centers[np.random.randint(3)] for _ in range(5)])

    source, losses = Source(), []

    def then(loss):
        source.served += 1
        losses.append(loss.item())

    return trained(batches(), then)


@program()
def batches_chosen_by_random():
    rows = np.random.randn(20, 4).astype("float32")

    def batches():
        while True:
            yield rows[[random.randrange(20) for _ in range(5)]]

    source = Source()

    def then(loss):
        source.scale *= 0.5

    return trained(batches(), then)


REFUSED = "native-call-"


@program(refused=REFUSED)
def batch_depends_on_a_global():
    def batches():
        while True:
            yield drawn() * asked

    def then(loss):
        global asked
        asked += 1

    return trained(batches(), then)


@program(refused=REFUSED)
def batch_depends_on_a_global_of_a_helper():
    def scale():
        return asked

    def batches():
        while True:
            yield drawn() * scale()

    def then(loss):
        global asked
        asked += 1

    return trained(batches(), then)


@program(refused=REFUSED)
def batch_depends_on_a_dictionary():
    def batches():
        while True:
            yield drawn() * np.float32(SEEN["scale"])

    def then(loss):
        SEEN["scale"] += 1.0

    return trained(batches(), then)


@program(refused=REFUSED)
def batch_depends_on_an_attribute():
    source = Source()

    def batches():
        while True:
            yield drawn() * np.float32(source.scale)

    def then(loss):
        source.scale += 1.0

    return trained(batches(), then)


@program(refused=REFUSED)
def batch_depends_on_a_list():
    losses = []

    def batches():
        while True:
            yield drawn() * np.float32(len(losses))

    def then(loss):
        losses.append(loss.item())

    return trained(batches(), then)


@program(refused=REFUSED)
def batch_depends_on_a_variable():
    scale = 1.0

    def batches():
        while True:
            yield drawn() * np.float32(scale)

    def then(loss):
        nonlocal scale
        scale += 1.0

    return trained(batches(), then)


@program(refused=REFUSED)
def batch_depends_on_any_attribute():
    source = Source()

    def batches():
        while True:
            yield drawn() * np.float32(vars(source)["scale"])

    def then(loss):
        source.scale += 1.0

    return trained(batches(), then)


@program(refused="that it was not given")
def batch_depends_on_a_weight():
    model = nn.Linear(4, 3)
    opt = torch.optim.SGD(model.parameters(), 0.1)

    def batches():
        while True:
            yield drawn() * model.weight.detach().mean().item()

    source = batches()

    def step(number):
        for _ in range(2):
            x = torch.from_numpy(next(source))
            opt.zero_grad()
            model(x).pow(2).mean().backward()
            opt.step()
        return model.weight.detach().clone()

    return Program(step, [(number,) for number in range(CALLS)], state=model)
