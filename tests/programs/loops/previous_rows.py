"""Loops that carry the row of one iteration to the next: teacher forcing, differences, bigrams."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.branches.branches_in_loops import Net, sequences
from tests.programs.harness import Program, program
from tests.programs.loops.lookups_in_loops import words

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


@program(speculated=17, compiles=1, close=1e-5)
def a_decoder_that_is_given_the_last_word():
    net = Net(nn.Embedding(11, 4), nn.GRUCell(4, 4), nn.Linear(4, 11))
    table, cell, out = net.layers

    def step(text):
        h, before, loss = torch.zeros(text.shape[0], 4), torch.zeros(text.shape[0], dtype=torch.long), 0.0
        for word in text.t():
            h = cell(table(before), h)
            loss = loss + F.cross_entropy(out(h), word)
            before = word
        return net.update(loss)

    return Program(step, words(2, 5, 12), state=net)


@program(speculated=15, compiles=2, close=1e-5)
def differences_of_rows():
    net = Net()

    def step(xs):
        before, total = xs[0], 0.0
        for x in xs[1:]:
            total = total + net.layers[0](x - before).square().sum()
            before = x
        return net.update(total)

    return Program(step, sequences(20), state=net)


@program(speculated=17, compiles=1, close=1e-5)
def gradients_through_the_row_before():
    net = Net(nn.Embedding(11, 4), nn.Bilinear(4, 4, 1))
    table, score = net.layers

    def step(text):
        before, total = torch.ones(text.shape[0], 4), 0.0
        for x in table(text).transpose(0, 1):
            total = total + score(x, before).sigmoid().sum()
            before = x
        return net.update(total)

    return Program(step, words(2, 5, 12), state=net)


@program(speculated=1, compiles=6, close=1e-5)
def around_in_a_circle():
    net = Net()

    def step(xs):
        rows = xs.unbind(0)
        before, total = rows[-1], 0.0
        for x in rows:
            total = total + net.layers[0](x - before).square().sum()
            before = x
        return net.update(total)

    return Program(step, sequences(20), state=net)


@program(speculated=1, compiles=6, close=1e-5)
def the_last_row_is_used_afterwards():
    net = Net()

    def step(xs):
        before, total = torch.zeros(2, 4), 0.0
        for x in xs:
            total = total + net.layers[0](x - before).square().sum()
            before = x
        return net.update(total + net.layers[0](before).sum())

    return Program(step, sequences(20), state=net)


@program(speculated=1, compiles=6, close=1e-5)
def a_beginning_of_another_kind():
    net = Net()

    def step(xs):
        before, total = torch.zeros(1, 4), 0.0
        for x in xs:
            total = total + net.layers[0](x - before).square().sum()
            before = x
        return net.update(total)

    return Program(step, sequences(20), state=net)


@program(speculated=1, compiles=6, close=1e-5)
def a_beginning_of_another_dtype():
    net = Net(nn.Embedding(11, 4))

    def step(text):
        before, total = torch.zeros(text.shape[0]), 0.0
        for word in text.t():
            total = total + (net.layers[0](word).sum(1) * before).sum()
            before = word
        return net.update(total)

    return Program(step, words(2, 5, 12), state=net)


@program(speculated=1, compiles=6, close=1e-5)
def two_rows_before():
    net = Net()

    def step(xs):
        first = second = torch.zeros(2, 4)
        total = 0.0
        for x in xs:
            total = total + net.layers[0](x - 2 * second + first).square().sum()
            first, second = second, x
        return net.update(total)

    return Program(step, sequences(20), state=net)


@program(speculated=1, compiles=6, close=1e-5)
def rows_that_are_changed_in_place():
    net = Net()

    def step(xs):
        before, total = torch.zeros(2, 4), 0.0
        for x in xs.clone():
            total = total + net.layers[0](x - before).square().sum()
            before = x.mul_(2)
        return net.update(total)

    return Program(step, sequences(20), state=net)
