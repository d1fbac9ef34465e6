"""Functions that compute only with arrays and numbers: the host makes such a call as a whole, with all its loops."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from tests.programs.harness import Program, program


def share(one, other):
    return np.minimum(one, other).sum(-1) / np.maximum(np.maximum(one, other).sum(-1), 1e-6)


def thinned(boxes, limit):
    """A loop that turns as often as the contents have it."""
    order = list(range(len(boxes)))
    kept = []
    while order:
        first = order.pop(0)
        kept.append(first)
        order = [n for n in order if share(boxes[first], boxes[n]) < limit]
    return np.array(kept)


class Model:
    def __init__(self):
        self.net = nn.Linear(3, 4)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def batches(count=14):
    return [(torch.randn(6, 3),) for _ in range(count)]


@program(speculated=8, compiles=3)
def suppression():
    model = Model()

    def step(x):
        scores = model.net(x)
        kept = thinned(np.abs(scores.detach().numpy()), 0.6)
        weights = torch.from_numpy(np.bincount(kept, minlength=6).astype(np.float32))
        return model.update((scores.pow(2).mean(1) * weights).sum()), len(kept)

    return Program(step, batches(20), state=model)


def sorted_in_place(array):
    array.sort()
    array[0] = 0.0
    return array


@program(speculated=9, compiles=2)
def array_written_by_the_function():
    model = Model()

    def step(x):
        scores = model.net(x)
        array = scores.detach().numpy().copy().ravel()
        first = float(array[0])
        before = array.sum()
        sorted_in_place(array)
        return model.update(scores.mean()), first, float(before), float(array[0]), array[1:3] * 2

    return Program(step, batches(12), state=model)


def noisy(array, scale):
    return array + np.random.normal(0.0, scale, array.shape).astype(np.float32)


@program(speculated=9, compiles=2)
def drawing_random_numbers():
    model = Model()

    def step(x):
        scores = model.net(x)
        goal = torch.from_numpy(noisy(scores.detach().numpy(), 0.5))
        return model.update((scores - goal).pow(2).mean()), np.random.random()

    return Program(step, batches(12), state=model)


seen = []


def reporting(array):
    print(f"sum {array.sum():.3f}")
    return array * 2


def remembering(array):
    seen.append(len(array))
    return array * 3


@program(speculated=9, compiles=2)
def functions_that_reach_further_are_looked_into():
    model = Model()

    def step(x):
        array = x.numpy()
        total = torch.from_numpy(reporting(array)).sum() + torch.from_numpy(remembering(array)).sum()
        return model.update(model.net(x).sum() * total / 100)

    return Program(step, batches(12), state=(model, seen))


def factor(array):
    return array * 2


def scaled(array):
    return factor(array)


@program(speculated=6, compiles=3)
def a_function_within_is_bound_to_another():
    def other(array):
        return array * 5

    def rebind():
        global factor
        factor = other

    def step(x):
        return torch.from_numpy(scaled(x.numpy())) + 1

    return Program(step, batches(14), before={7: rebind})


def inverse(array):
    return 1 / int(array[0])


@program(speculated=5, compiles=3)
def function_that_raises():
    def step(x):
        try:
            return torch.full((2,), inverse(x.numpy()))
        except ZeroDivisionError as error:
            return str(error)

    return Program(step, [(torch.tensor([float(n)]),) for n in [3, 1, 2, 4, 1, 5, 0, 2, 3, 2, 4, 1]])


def counted(array):
    return sum(1 for value in array.tolist() if value > 0), [n for n in range(3)]


@program(speculated=9, compiles=2)
def numbers_and_lists_come_back():
    def step(x):
        positive, places = counted(x.numpy()[0])
        return x * positive, places

    return Program(step, batches(12))


history = []


@program(speculated=9, compiles=2)
def array_made_after_an_append():
    """The result of the operation behind the append is used, whatever became of the append's."""

    def step(x):
        array = x.numpy()
        history.append(len(array))
        return x * torch.from_numpy(array * 3).sum()

    return Program(step, batches(12))
