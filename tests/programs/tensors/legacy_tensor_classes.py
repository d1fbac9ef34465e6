"""Tensors made by legacy classes: ``torch.FloatTensor``, ``Variable``."""

import random
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Variable

from tests.programs.harness import Program, program

with warnings.catch_warnings(action="ignore"):
    torch.tensor([np.ones(1)])  # torch warns once that this is slow


class Trainer:
    def __init__(self, *shape):
        self.net = nn.Linear(*shape)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def batches(count=10, rows=4):
    return [(torch.randn(rows, 3),) for _ in range(count)]


@program(speculated=6, compiles=3)
def of_lists():
    t = Trainer(3, 2)

    def step(x):
        labels = torch.LongTensor([random.randrange(2) for _ in range(4)])
        weights = torch.FloatTensor([1, 2.5, random.random(), 0]) + torch.Tensor((True, 0, 1.5, 2))
        flags = torch.BoolTensor([True, False, False, True])
        loss = F.cross_entropy(t.net(x), labels, reduction="none")
        rows = torch.DoubleTensor(range(4)) * torch.ByteTensor([[1, 2, 3, 4]])
        return t.update((loss * weights)[flags].sum()), rows, torch.HalfTensor([]), torch.IntTensor([1.5, 2])

    return Program(step, batches(), state=t)


@program(speculated=7, compiles=1)
def of_sizes():
    t = Trainer(3, 2)

    def step(x):
        noise = torch.FloatTensor(4, 3).uniform_(0, 1)
        like = torch.Tensor(x.size()).zero_() + torch.Tensor().sum() + torch.DoubleTensor(3).fill_(2)
        return t.update(t.net(x + noise).pow(2).mean()), like, torch.LongTensor(2).zero_()

    return Program(step, batches(), state=t)


@program(speculated=7, compiles=1)
def of_numbers_from_tensors():
    t = Trainer(3, 2)

    def step(x):
        chosen = torch.LongTensor([int(x[0, 0] > 0), 1, 0, 1])
        scale = torch.Tensor([x.sum().item(), 1.0])
        return t.update(F.cross_entropy(t.net(x) * scale, chosen)), torch.FloatTensor([x[0, 0], x[1, 1]])

    return Program(step, batches(), state=t)


@program(speculated=7, compiles=1)
def of_tensors():
    """They share the memory of what they are made of, and pass on gradients."""
    t = Trainer(3, 2)

    def step(x):
        y = x * 2
        other = torch.Tensor(y)
        other.add_(1)
        return t.update(torch.FloatTensor(t.net(y)).pow(2).mean()), y, other, torch.LongTensor(torch.LongTensor([1, 2]))

    return Program(step, batches(), state=t)


@program(speculated=7, compiles=1)
def of_arrays():
    t = Trainer(3, 2)

    def step(x):
        states = [np.random.rand(3) for _ in range(4)]
        rows = (
            torch.FloatTensor(states) + torch.Tensor(np.random.rand(3)) + torch.tensor([[states[0], states[1]]])[0, 1]
        )
        return t.update(t.net(x * rows.float()).pow(2).mean()), rows, torch.FloatTensor(np.array([[1, 2]]))

    return Program(step, batches(), state=t)


@program(speculated=7, compiles=1)
def variables():
    t = Trainer(3, 2)

    def step(x):
        x, y = Variable(x), Variable(torch.LongTensor([0, 1, 1, 0]), requires_grad=False)
        mixed = Variable(0.5 * x, requires_grad=True)
        slopes = torch.autograd.grad(t.net(mixed).sum(), mixed, create_graph=True)[0]
        x.add_(1)
        held = Variable(t.net.weight, True)
        return t.update(F.cross_entropy(t.net(x), y) + (slopes.norm(2, 1) - 1).pow(2).mean()), held.detach() + 1

    return Program(step, batches(), state=t)


@program(speculated=7, compiles=1)
def variables_that_cannot_have_gradients():
    def step(x):
        try:
            Variable(torch.LongTensor([1]), requires_grad=True)
        except RuntimeError as error:
            return x + 1, str(error)
        return x

    return Program(step, batches())


@program(speculated=6, compiles=8)
def lists_of_other_lengths_and_kinds():
    def step(x, numbers):
        return x.sum() + torch.Tensor(numbers).sum(), torch.Tensor(len(numbers)).shape

    kinds = [[1, 2], [1.5, 2], (1, 2, 3), torch.Size([2]), torch.ones(2)]
    return Program(step, [(torch.randn(3), kinds[n % 4 if n % 4 != 3 else 4]) for n in range(20)])


@program(speculated=7, compiles=1)
def the_kinds_of_numpys_numbers():
    """``torch.tensor`` looks for the kind of what it is given, in lists as well."""

    def step(x):
        array = np.random.rand(3)
        one, rows = np.random.rand(1), [np.random.rand(1), np.random.rand(1)]
        kinds = torch.tensor([array[0], 2.0]), torch.tensor([np.float32(array[1]), 1]), torch.tensor(array.mean())
        shapes = torch.tensor([one]), torch.tensor([rows, rows]), torch.as_tensor([array.sum(), array[0]])
        mixed = torch.tensor([x.sum(), array[0]]), torch.tensor([[x[0, 0].item(), array[1]]])
        return kinds, shapes, mixed, torch.tensor(np.float64(2.0) * array.max(), dtype=torch.float32) + x

    return Program(step, batches())


@program(speculated=4, compiles=5)
def a_list_of_numpys_numbers_that_grows():
    rewards = []

    def step(x):
        rewards.append(np.random.rand() * np.float32(2))
        if len(rewards) > 4:
            del rewards[:]
            return None
        return x.mean() - torch.tensor(rewards).mean(), torch.tensor([r * 2 for r in rewards], dtype=torch.float)

    return Program(step, batches(30), state=rewards)
