"""Loops whose iterations branch on random numbers of the host, drawn in program order: scheduled sampling."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

MANY = 24
WORDS, WIDTH = 7, 6


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WORDS)
        self.opt = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.5)
        self.calls = 0

    def update(self, given, wanted):
        loss = F.cross_entropy(given.reshape(-1, WORDS), wanted.reshape(-1))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def sentences(calls=MANY, lengths=(5,)):
    return [(torch.randint(0, WORDS, (3, lengths[n % len(lengths)])),) for n in range(calls)]


def seeded(step):
    """Runs of the step, in eager and otherwise, draw the same."""
    random.seed(3)
    np.random.seed(3)
    return step


def sampled(net, words, draw):
    h, x, outs = torch.zeros(3, WIDTH), words[:, 0], []
    for t in range(1, words.shape[1]):
        h = net.cell(net.words(x), h)
        out = net.out(h)
        outs.append(out)
        x = words[:, t] if draw() else out.argmax(1)
    return torch.stack(outs, 1)


@program(speculated=21, compiles=2)
def sampling():
    net = Decoder()

    def step(words):
        return net.update(sampled(net, words, lambda: random.random() < 0.5), words[:, 1:])

    return Program(seeded(step), sentences(), state=(net, random))


@program(speculated=20, compiles=2)
def sampling_of_any_length():
    net = Decoder()

    def step(words):
        return net.update(sampled(net, words, lambda: random.random() < 0.5), words[:, 1:])

    return Program(seeded(step), sentences(lengths=(5, 7, 6, 8, 9, 5, 4)), state=(net, random))


@program(speculated=20, compiles=2)
def sampling_into_a_tensor():
    net = Decoder()

    def step(words):
        length = words.shape[1]
        outs = torch.zeros(length, 3, WORDS)
        h, x = torch.zeros(3, WIDTH), words[:, 0]
        for t in range(1, length):
            h = net.cell(net.words(x), h)
            out = net.out(h)
            outs[t] = out
            teacher = random.random() < 0.4
            best = out.argmax(1)
            x = words[:, t] if teacher else best
        return net.update(outs[1:].transpose(0, 1), words[:, 1:])

    return Program(seeded(step), sentences(lengths=(5, 7, 6)), state=(net, random))


@program(speculated=20, compiles=2)
def sampling_into_columns():
    net = Decoder()

    def step(words):
        outs = torch.empty(3, words.shape[1], WORDS)
        outs[:, 0] = 0.0
        h, x = torch.zeros(3, WIDTH), words[:, 0]
        for t in range(1, words.shape[1]):
            h = net.cell(net.words(x), h)
            outs[:, t] = net.out(h)
            x = words[:, t] if random.random() < 0.4 else outs_of(net, h)
        return net.update(outs[:, 1:], words[:, 1:])

    return Program(seeded(step), sentences(), state=(net, random))


def outs_of(net, h):
    with torch.no_grad():
        return net.out(h).argmax(1)


@program(speculated=19, compiles=3)
def sampling_less_and_less():
    net = Decoder()

    def step(words):
        net.calls += 1
        ratio = max(0.2, 0.7 - 0.01 * net.calls)
        return net.update(sampled(net, words, lambda: ratio > random.random()), words[:, 1:])

    return Program(seeded(step), sentences(), state=(net, random))


@program(speculated=20, compiles=2)
def sampling_by_numpy():
    net = Decoder()

    def step(words):
        return net.update(sampled(net, words, lambda: np.random.rand() < 0.5), words[:, 1:])

    return Program(seeded(step), sentences(), state=net)


@program(speculated=20, compiles=2)
def sampling_by_an_integer():
    net = Decoder()

    def step(words):
        return net.update(sampled(net, words, lambda: random.randint(0, 2) == 1), words[:, 1:])

    return Program(seeded(step), sentences(), state=(net, random))


@program(speculated=20, compiles=2)
def sampling_by_a_generator_of_its_own():
    net = Decoder()
    draws = random.Random(5)

    def step(words):
        return net.update(sampled(net, words, lambda: not draws.random() < 0.5), words[:, 1:])

    return Program(step, sentences(), state=net)


@program(speculated=20, compiles=3)
def one_of_three_inputs():
    net = Decoder()

    def step(words):
        h, x, outs = torch.zeros(3, WIDTH), words[:, 0], []
        for t in range(1, words.shape[1]):
            h = net.cell(net.words(x), h)
            out = net.out(h)
            outs.append(out)
            chance = random.random()
            if chance < 0.4:
                x = words[:, t]
            elif chance < 0.7:
                x = out.argmax(1)
            else:
                x = torch.zeros_like(x)
        return net.update(torch.stack(outs, 1), words[:, 1:])

    return Program(seeded(step), sentences(), state=(net, random))


@program(speculated=18, compiles=3)
def a_tensor_decides_behind_the_draws():
    """The draws of a call that is made by Python after all are not drawn again."""
    net = Decoder()

    def step(words):
        outs = sampled(net, words, lambda: random.random() < 0.5)
        if words[0, 0] == 3:
            outs = outs * 0.5
        return net.update(outs, words[:, 1:])

    return Program(seeded(step), sentences(lengths=(5, 6)), state=(net, random))


@program(speculated=20, compiles=2)
def drawn_before_and_behind():
    net = Decoder()

    def step(words):
        scale = 1 + random.random()
        outs = sampled(net, words, lambda: random.random() < 0.5)
        noise = random.gauss(0, 0.1)
        return net.update(outs * scale + noise, words[:, 1:])

    return Program(seeded(step), sentences(), state=(net, random))


@program(speculated=20, compiles=2)
def printed_behind_the_draws():
    net = Decoder()

    def step(words):
        outs = sampled(net, words, lambda: random.random() < 0.5)
        loss = net.update(outs, words[:, 1:])
        print(f"{loss:.4f}")
        return loss

    return Program(seeded(step), sentences(), state=(net, random))


@program(speculated=0, compiles=99)
def the_number_itself_is_used():
    net = Decoder()

    def step(words):
        h, x, outs = torch.zeros(3, WIDTH), words[:, 0], []
        for t in range(1, words.shape[1]):
            h = net.cell(net.words(x), h)
            chance = random.random()
            out = net.out(h) * (1 + chance)
            outs.append(out)
            x = words[:, t] if chance < 0.5 else out.argmax(1)
        return net.update(torch.stack(outs, 1), words[:, 1:])

    return Program(seeded(step), sentences(), state=(net, random))


@program(speculated=0, compiles=99)
def not_drawn_in_each_iteration():
    net = Decoder()

    def step(words):
        h, x, outs = torch.zeros(3, WIDTH), words[:, 0], []
        for t in range(1, words.shape[1]):
            h = net.cell(net.words(x), h)
            outs.append(net.out(h))
            x = words[:, t]
            if h[0, 0] > 0 and random.random() < 0.5:
                x = outs[-1].argmax(1)
        return net.update(torch.stack(outs, 1), words[:, 1:])

    return Program(seeded(step), sentences(), state=(net, random))


@program(speculated=20, compiles=2)
def gradients_flow_through_what_is_chosen():
    net = Decoder()

    def step(words):
        h, outs = torch.zeros(3, WIDTH), []
        for t in range(1, words.shape[1]):
            h = net.cell(net.words(words[:, t - 1]), h)
            if random.random() < 0.5:
                h = h * 0.5
            else:
                h = torch.relu(h) + 0.1
            outs.append(net.out(h))
        return net.update(torch.stack(outs, 1), words[:, 1:])

    return Program(seeded(step), sentences(lengths=(5, 6)), state=(net, random))


@program(speculated=20, compiles=3)
def ways_that_cost_more():
    net = Decoder()

    def step(words):
        h, given, outs = torch.zeros(3, WIDTH), net.words(words[:, 0]), []
        for t in range(1, words.shape[1]):
            h = net.cell(given, h)
            out = net.out(h)
            outs.append(out)
            if random.random() < 0.5:
                given = net.words(words[:, t])
            else:
                given = torch.softmax(out, 1) @ net.words.weight
        return net.update(torch.stack(outs, 1), words[:, 1:])

    return Program(seeded(step), sentences(), state=(net, random))


@program(speculated=18, compiles=3)
def nothing_is_differentiated_that_is_not_finite():
    """What a tensor decides to be zeros, where it is not finite, has gradients that are zeros."""
    net = nn.Linear(WIDTH, WIDTH)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(xs):
        total = 0.0
        for x in xs:
            h = net(x)
            scaled = h / h.detach().abs().min().floor()
            if torch.isfinite(scaled).all():
                h = scaled * 0.1
            else:
                h = torch.zeros_like(h)
            total = total + (h * h).mean() + net.bias.sum() * 0.01
        opt.zero_grad()
        total.backward()
        opt.step()
        return total.item()

    return Program(step, [(torch.randn(4, 2, WIDTH) * 3,) for _ in range(MANY)], state=net)


@program(speculated=20, compiles=2)
def some_rows_are_turned_over():
    net = nn.Linear(WIDTH, WIDTH)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(images):
        batch = []
        for image in images:
            if random.random() < 0.5:
                image = image.flip(1)
            batch.append(image)
        loss = (net(torch.stack(batch)) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return Program(seeded(step), [(torch.randn(5, 3, WIDTH),) for _ in range(MANY)], state=(net, random))


@program(speculated=14, compiles=4)
def some_rows_are_flipped_and_returned():
    """Those that are not lie in the memory of what was given."""

    def step(images):
        batch = []
        for image in images:
            if random.random() < 0.7:
                image = image.flip(1)
            batch.append(image)
        return batch

    return Program(seeded(step), [(torch.randn(2, 3, WIDTH),) for _ in range(MANY)], state=random)


@program(speculated=6, compiles=5)
def as_long_as_the_lesson():
    """How many iterations there are is the size of a part that the step takes of its argument."""
    cell, head = nn.GRUCell(3, 4), nn.Linear(4, 3)
    lesson = {"length": 3, "calls": 0}

    def step(sequence):
        sequence = sequence[: lesson["length"]]
        h, x, loss = sequence.new_zeros(2, 4), sequence[0], 0.0
        for t in range(1, len(sequence)):
            h = cell(x, h)
            y = head(h)
            loss = loss + (y - sequence[t]).square().mean()
            x = sequence[t] if random.random() < 0.6 else y.detach()
        loss.backward()
        for parameter in (*cell.parameters(), *head.parameters()):
            parameter.grad = None
        lesson["calls"] += 1
        lesson["length"] = 3 + lesson["calls"] % 4
        return loss.item()

    return Program(step, [(torch.randn(8, 2, 3),) for _ in range(20)], state=(cell, head, lesson))
