"""Python numbers that are sizes, offsets or widths, as symbols of one graph: random crops, curricula."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.changes.shapes import Trainer
from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


def pictures(calls=24, side=9):
    return [(torch.randn(3, 1, side, side),) for _ in range(calls)]


def with_numbers(least, most, calls=24, shape=(6, 5)):
    draw = random.Random(4)
    return [(torch.randn(*shape), draw.randint(least, most)) for _ in range(calls)]


def convolution(side=6):
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * (side - 2) ** 2, 3))
    return Trainer(net)


@program(speculated=21, compiles=1)
def crops_at_random_places():
    t = convolution()

    def step(x):
        i, j = random.randint(0, 3), random.randint(0, 3)
        return t.update(t.model(x[:, :, i : i + 6, j : j + 6]).square().mean())

    return Program(step, pictures(), state=t)


@program(speculated=19, compiles=3)
def crops_and_flips():
    t = convolution()

    def step(x):
        if random.random() < 0.5:
            x = x.flip(3)
        i = random.randrange(4)
        return t.update(t.model(x[:, :, i : i + 6, 1:7]).square().mean())

    return Program(step, pictures(), state=t)


@program(speculated=21, compiles=1)
def the_first_rows():
    t = Trainer()

    def step(x, n):
        return t.update(t.model(x[:n]).square().mean())

    return Program(step, with_numbers(2, 6), state=t)


@program(speculated=21, compiles=1)
def a_window_whose_ends_both_move():
    t = Trainer()

    def step(x, n):
        return t.update(t.model(x[n : 2 * n + 1]).square().sum()), n * x[0, 0].item()

    return Program(step, with_numbers(1, 3, shape=(9, 5)), state=t)


@program(speculated=21, compiles=1)
def tensors_made_by_a_number():
    t = Trainer()

    def step(x, n):
        mask = torch.tril(torch.ones(n, n))
        noise = torch.zeros(n, 5) + torch.arange(n)[:, None]
        return t.update((mask @ t.model(noise)).square().mean() + t.model(x).mean() * n)

    return Program(step, with_numbers(2, 7), state=t)


@program(speculated=19, compiles=2)
def views_by_a_number():
    t = Trainer()

    def step(x, n):
        part = x.narrow(0, 0, 2 * n).reshape(n, 2, 5).mean(1)
        return t.update(t.model(part).square().mean())

    return Program(step, with_numbers(1, 3), state=t)


@program(speculated=21, compiles=1)
def a_length_that_the_model_keeps():
    t = Trainer()
    t.length = 2

    def step(x):
        t.length = 2 + (t.length + 1) % 5
        return t.update(t.model(x[: t.length]).square().mean())

    return Program(step, [(torch.randn(7, 5),) for _ in range(24)], state=t)


@program(speculated=21, compiles=1)
def batch_and_number_both_change():
    t = Trainer()
    draw = random.Random(3)
    calls = [(torch.randn(draw.randint(3, 8), 7, 5), draw.randint(2, 6)) for _ in range(24)]

    def step(x, n):
        return t.update(t.model(x[:, :n]).square().mean())

    return Program(step, calls, state=t)


@program(speculated=21, compiles=1)
def padding_by_a_number():
    t = Trainer()

    def step(x, n):
        return t.update(t.model(F.pad(x, (0, 0, n, 1))).square().mean())

    return Program(step, with_numbers(0, 4), state=t)


@program(speculated=19, compiles=2)
def from_the_end():
    t = Trainer()

    def step(x, n):
        return t.update(t.model(x[-n:]).square().mean())

    return Program(step, with_numbers(1, 5), state=t)


@program(speculated=9, compiles=8)
def numbers_below_zero_and_beyond_the_end():
    t = Trainer()
    numbers = [2, 3, 4, 5, 2, -1, -2, 3, 9, 12, 4, 0, 1, 2**62 + 1, 3, -(2**62), 5, 2, 3, 4]

    def step(x, n):
        return t.update(t.model(x[:n]).sum())

    return Program(step, [(torch.randn(6, 5), n) for n in numbers], state=t)


@program(speculated=7, compiles=1)
def a_number_of_another_type():
    t = Trainer()
    numbers = [2, 3, 4, 5, True, 3, None, 2, 4, 2.0, 3, 2, 5]

    def step(x, n):
        try:
            return t.update(t.model(x[:n]).sum())
        except TypeError as error:
            return type(error).__name__

    return Program(step, [(torch.randn(6, 5), n) for n in numbers], state=t)


@program(speculated=21, compiles=1)
def writes_to_a_window():
    t = Trainer()
    t.memory = torch.zeros(12, 3)

    def step(x, n):
        out = t.model(x)
        t.memory[n : n + 6] = out.detach()
        return t.update(out.square().mean()), t.memory.sum()

    return Program(step, with_numbers(0, 6), state=t)


@program(speculated=18, compiles=2)
def a_ring_of_the_last_losses():
    t = Trainer()
    t.ring, t.at = torch.zeros(8, 6), 0

    def step(x):
        losses = t.model(x).square().mean(1)
        t.ring[t.at] = losses.detach()
        t.at = (t.at + 1) % 8
        return t.update(losses.mean()), t.ring[: t.at].mean()

    return Program(step, [(torch.randn(6, 5),) for _ in range(24)], state=t)


@program(speculated=21, compiles=1)
def a_window_that_leaves_the_step():
    t = Trainer()

    def step(x, n):
        part = x[n : n + 2]
        t.update(t.model(part).square().mean())
        return part

    return Program(step, with_numbers(0, 4), state=t)


@program(speculated=17, compiles=3)
def minibatches_of_a_changing_size():
    t = Trainer()

    def step(x, n):
        return [t.update(t.model(x[i : i + n]).square().mean()) for i in range(0, len(x), n)]

    return Program(step, with_numbers(2, 4, shape=(12, 5)), state=t)


@program(speculated=21, compiles=1)
def pictures_are_made_smaller():
    t = Trainer(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 3)))

    def step(x):
        side = random.choice((5, 6, 7, 8))
        x = F.interpolate(x, size=(side, side), mode="bilinear", align_corners=False)
        return t.update(t.model(x).square().mean())

    return Program(step, pictures(), state=t)


@program(speculated=21, compiles=1)
def the_best_of_a_changing_number():
    t = Trainer()

    def step(x, n):
        return t.update(t.model(x).flatten().topk(n).values.mean())

    return Program(step, with_numbers(2, 6), state=t)


@program(speculated=21, compiles=1)
def positions_that_have_an_embedding():
    model = nn.ModuleDict({"e": nn.Embedding(20, 5), "out": nn.Linear(5, 3)})
    t = Trainer(model)

    def step(x, n):
        h = model["e"](torch.arange(n)) + model["e"](torch.arange(n, 2 * n))
        return t.update(model["out"](h + x[0]).square().mean())

    return Program(step, with_numbers(2, 8), state=t)


@program(speculated=4, compiles=6)
def a_shape_error_is_eagers():
    t = Trainer()

    def step(x, n):
        return t.update(t.model(x.view(n, -1)[:, :5]).square().mean())

    calls = [(torch.randn(6, 10), n) for n in (2, 3, 6, 4, 2, 3, 5, 6, 12, 2, 3, 6)]

    return Program(step, calls, state=t)


@program(speculated=4, compiles=8)
def splits_into_parts_of_changing_size():
    """How many parts there are depends on the size: each size has a graph of its own."""
    x = torch.randn(20, 3)

    def step(size):
        total = torch.zeros(())
        for part in x.split(size * 2):
            total = total + part.tanh().sum()
        return total

    return Program(step, [(2 + call % 3,) for call in range(18)])


@program(speculated=4, compiles=8)
def as_many_rows_as_a_number_says():
    """The rows are not treated alike, so that the loop over them is unrolled for each number of rows."""

    def step(count):
        first, *others = torch.rand(count + 1, 3).unbind()
        first = first * 2 + sum(others[1:])
        return first, others[0]

    return Program(step, [(2 + call % 3,) for call in range(18)])
