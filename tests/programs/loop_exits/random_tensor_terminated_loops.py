"""Loops that draw random numbers until a tensor terminates them: sampling up to an end token, random walks."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

CALLS = 24


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cell, self.out = nn.Embedding(6, 8), nn.GRUCell(8, 8), nn.Linear(8, 6)

    def forward(self, word, h):
        h = self.cell(self.words(word), h)
        return self.out(h), h


def firsts():
    return [(torch.randint(1, 6, (1,)),) for _ in range(CALLS)]


@program(speculated=16, compiles=4, slow=True)
def sampled_until_a_word_says_stop():
    model = Words()

    @torch.no_grad()
    def step(word):
        h, length = torch.zeros(1, 8), 0
        while True:
            logits, h = model(word, h)
            word = torch.multinomial(F.softmax(logits, -1), 1)[0]
            if word.item() == 0:
                break
            length += 1
        return h, length

    return Program(step, firsts(), state=model)


@program(speculated=16, compiles=2)
def sampled_up_to_a_limit():
    model = Words()

    @torch.no_grad()
    def step(word):
        h = torch.zeros(1, 8)
        for _ in range(12):
            logits, h = model(word, h)
            word = torch.multinomial(F.softmax(logits / 0.8, -1), 1)[0]
            if word == 0:
                break
        return h, torch.rand(())

    return Program(step, firsts(), state=model)


@program(speculated=14, compiles=4)
def what_was_sampled():
    model = Words()

    @torch.no_grad()
    def step(word):
        h, said = torch.zeros(1, 8), []
        for _ in range(5):
            logits, h = model(word, h)
            word = torch.multinomial(F.softmax(logits, -1), 1)[0]
            if word.item() == 0:
                break
            said.append(word.item())
        return said

    return Program(step, firsts(), state=model)


@program(speculated=18, compiles=1)
def a_walk_until_it_leaves():
    def step(x):
        place = torch.zeros(2)
        while place.abs().max() < 2:
            place = place + 0.5 * torch.randn(2) + 0.1 * x
        return place, torch.rand(1)

    return Program(step, [(torch.randn(2),) for _ in range(CALLS)])


@program(speculated=16, compiles=2)
def with_dropout_and_an_average():
    average, drop = torch.zeros(3), nn.Dropout(0.4)

    def step(x):
        with torch.no_grad():
            h = x
            while h.norm() > 0.5:
                h = 0.8 * drop(h) + 0.01
        average.mul_(0.9).add_(h, alpha=0.1)
        return h

    return Program(step, [(torch.randn(3) * 4,) for _ in range(CALLS)], state=average)


@program(speculated=0)
def with_gradients():
    weight = nn.Parameter(torch.tensor(0.7))
    opt = torch.optim.SGD([weight], lr=0.01)

    def step(x):
        h = x
        while h.norm() > 0.5:
            h = weight * h * torch.rand(3)
        opt.zero_grad()
        h.sum().backward()
        opt.step()
        return h.detach()

    return Program(step, [(torch.rand(3) * 4 + 1,) for _ in range(CALLS)], state=weight)


@program(speculated=14, compiles=3)
def training_on_what_was_sampled():
    model, scale = Words(), nn.Parameter(torch.ones(()))
    opt = torch.optim.SGD([scale], lr=0.05)

    def step(word):
        with torch.no_grad():
            h = torch.zeros(1, 8)
            for _ in range(9):
                logits, h = model(word, h)
                word = torch.multinomial(F.softmax(logits, -1), 1)[0]
                if word == 0:
                    break
        loss = (scale * h + 0.1 * torch.randn(1, 8)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item(), word.item()

    return Program(step, firsts(), state=scale)
