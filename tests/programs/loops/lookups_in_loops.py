"""Embedding lookups in each iteration, which are hoisted out of the loop, and loops over computed tensors."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.branches.branches_in_loops import Net
from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


def words(rows, low, high, count=20, most=11):
    generator = torch.Generator().manual_seed(3)
    lengths = torch.randint(low, high + 1, (count,), generator=generator).tolist()
    return [(torch.randint(most, (rows, length), generator=generator),) for length in lengths]


@program(speculated=17, compiles=1, close=1e-5)
def a_language_model_by_hand():
    net = Net(nn.Embedding(11, 4), nn.GRUCell(4, 4), nn.Linear(4, 11))
    table, cell, decoder = net.layers

    def step(text):
        h, outputs = torch.zeros(text.shape[0], 4), []
        for t in range(text.shape[1] - 1):
            h = cell(table(text[:, t]), h)
            outputs.append(h)
        scores = decoder(torch.stack(outputs, 1))
        return net.update(F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()))

    return Program(step, words(2, 30, 30), state=net)


@program(speculated=17, compiles=1)
def texts_of_any_length():
    net = Net(nn.Embedding(11, 4), nn.GRUCell(4, 4))
    table, cell = net.layers

    def step(text):
        h = torch.zeros(text.shape[0], 4)
        for t in range(text.shape[1]):
            h = cell(table(text[:, t]), h)
        return net.update(h.square().sum())

    return Program(step, words(2, 5, 12), state=net)


@program(speculated=17, compiles=1)
def one_word_after_the_other():
    net = Net(nn.Embedding(11, 4, padding_idx=0), nn.GRUCell(4, 4))
    table, cell = net.layers

    def step(text):
        h, seen = torch.zeros(text.shape[0], 4), []
        for word in text.t():
            x = table(word)
            h = cell(x, h)
            seen.append(x.detach().sum().item())
        return net.update(h.square().sum()), seen

    return Program(step, words(2, 5, 12), state=net)


@program(speculated=17, compiles=1, close=1e-5)
def the_table_is_the_decoder_too():
    net = Net(nn.Embedding(11, 4), nn.GRUCell(4, 4))
    table, cell = net.layers

    def step(text):
        h, loss = torch.zeros(text.shape[0], 4), 0.0
        for word in text.t():
            loss = loss + F.cross_entropy(h @ table.weight.t(), word)
            h = cell(table(word), h)
        return net.update(loss)

    return Program(step, words(2, 5, 12), state=net)


@program(speculated=17, compiles=1)
def the_last_word_is_carried_on():
    net = Net(nn.Embedding(11, 4), nn.Linear(8, 4))
    table, layer = net.layers

    def step(text):
        before, loss = torch.zeros(text.shape[0], 4), 0.0
        for word in text.t():
            x = table(word)
            loss = loss + layer(torch.cat([before, x], 1)).square().mean()
            before = x
        return net.update(loss)

    return Program(step, words(2, 5, 12), state=net)


@program(speculated=1, compiles=8)  # the table changes in each iteration
def a_table_whose_rows_are_bounded():
    net = Net(nn.Embedding(11, 4, max_norm=0.5), nn.GRUCell(4, 4))
    table, cell = net.layers

    def step(text):
        h = torch.zeros(text.shape[0], 4)
        for word in text.t():
            h = cell(table(word), h)
        return net.update(h.square().sum())

    return Program(step, words(2, 5, 12), state=net)


def other_words():
    return words(2, 5, 12)


@program(speculated=17, compiles=1)
def the_columns_of_a_product():
    net = Net(nn.Embedding(11, 4), nn.GRUCell(4, 4))
    table, cell = net.layers

    def step(text):
        h = torch.zeros(text.shape[0], 4)
        for x in torch.tanh(table(text)).transpose(0, 1):
            h = cell(x, h)
        return net.update(h.square().sum())

    return Program(step, other_words(), state=net)


@program(speculated=17, compiles=1)
def parts_of_a_tensor():
    net = Net(nn.Embedding(11, 4), nn.GRUCell(4, 4))
    table, cell = net.layers

    def step(text):
        h = torch.zeros(text.shape[0], 4)
        for word, x in zip(torch.unbind(input=text, dim=1), table(text).unbind(1)):
            h = cell(x, h) * (word > 2)[:, None]
        return net.update(h.square().sum())

    return Program(step, other_words(), state=net)


@program(speculated=17, compiles=1)
def columns_with_their_numbers():
    net = Net(nn.Embedding(11, 4), nn.GRUCell(4, 4))
    table, cell = net.layers

    def step(text):
        h = torch.zeros(text.shape[0], 4)
        for t, word in enumerate(text.t()):
            h = cell(table(word), h) / (t + 1)
        return net.update(h.square().sum())

    return Program(step, other_words(), state=net)
