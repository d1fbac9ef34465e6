"""Loops of changing length that append to a tensor: ``words = torch.cat([words, word], 1)``."""

import random

import torch
from torch import nn
from torch.nn import functional

from tests.programs.harness import Program, program

RUN_ONE_IN = 20  # Each takes seconds: it is served only after many of its loops or calls have been merged.

N = 14
H = 4


def numbers(least, most, seed=0):
    drawn = random.Random(seed)
    return [drawn.randint(least, most) for _ in range(N)]


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.cell, self.out = nn.Embedding(9, H), nn.GRUCell(H, H), nn.Linear(H, 9)

    def forward(self, word, h):
        h = self.cell(self.words(word), h)
        return self.out(h), h


def prompts(least=3, most=9):
    return [(torch.randint(9, (2, 2)), n) for n in numbers(least, most)]


@program(speculated=10, compiles=1)
def words_one_after_the_other():
    model = Words()

    @torch.no_grad()
    def step(words, n):
        h = torch.zeros(2, H)
        for _ in range(n):
            scores, h = model(words[:, -1], h)
            words = torch.cat([words, scores.argmax(-1, keepdim=True)], dim=1)
        return words, h

    return Program(step, prompts(), state=model)


@program(speculated=10, compiles=1)
def words_drawn_by_chance():
    model = Words()

    @torch.no_grad()
    def step(words, n):
        h = torch.zeros(2, H)
        for _ in range(n):
            scores, h = model(words[:, -1:].squeeze(1), h)
            words = torch.cat((words, torch.multinomial(scores.softmax(-1), 1)), -1)
        return words

    return Program(step, prompts(), state=model)


@program(speculated=10, compiles=1, close=1e-4)
def losses_that_train():
    model = Words()
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def step(words):
        h, losses = torch.zeros(2, H), torch.zeros(1)
        for t in range(words.size(0) - 1):
            scores, h = model(words[t], h)
            losses = torch.cat([losses, functional.cross_entropy(scores, words[t + 1]).view(1)])
        opt.zero_grad()
        losses.pow(2).mean().backward()
        opt.step()
        return losses.detach(), losses.shape[0]

    return Program(step, [(torch.randint(9, (n, 2)),) for n in numbers(4, 9)], state=[model, opt])


@program(speculated=0, compiles=4)
def iterations_look_at_all_words():
    model = Words()

    @torch.no_grad()
    def step(words, n):
        h = torch.zeros(2, H)
        for _ in range(n):
            scores, h = model(words[:, -1], h + words.sum())
            words = torch.cat([words, scores.argmax(-1, keepdim=True)], dim=1)
        return words

    return Program(step, prompts(), state=model)


@program(speculated=0, compiles=4)
def iterations_ask_how_many_words():
    model = Words()

    @torch.no_grad()
    def step(words, n):
        h = torch.zeros(2, H)
        for _ in range(n):
            scores, h = model(words[:, -1], h)
            if words.size(1) > 6:
                h = h * 0.5
            words = torch.cat([words, scores.argmax(-1, keepdim=True)], dim=1)
        return words

    return Program(step, prompts(), state=model)


@program(speculated=0, compiles=4)
def a_shorter_row_is_returned():
    model = Words()

    @torch.no_grad()
    def step(words, n):
        h, before = torch.zeros(2, H), words
        for _ in range(n):
            scores, h = model(words[:, -1], h)
            before, words = words, torch.cat([words, scores.argmax(-1, keepdim=True)], dim=1)
        return before, words

    return Program(step, prompts(), state=model)


@program(speculated=0, compiles=4)
def the_last_word_is_changed():
    model = Words()

    @torch.no_grad()
    def step(words, n):
        h = torch.zeros(2, H)
        for _ in range(n):
            scores, h = model(words[:, -1], h)
            words = torch.cat([words, scores.argmax(-1, keepdim=True)], dim=1)
            words[:, -1] = 1
        return words

    return Program(step, prompts(), state=model)
