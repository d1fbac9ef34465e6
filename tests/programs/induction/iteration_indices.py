"""Loops of changing length whose iterations use their index: as a subscript, in a comparison, counted from one."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.branches.branches_in_loops import Net, sequences
from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.


@program(speculated=17, compiles=2)
def the_next_element_as_target():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h, loss = torch.zeros(2, 4), 0.0
        for t in range(xs.shape[0] - 1):
            h = net.layers[0](xs[t], h)
            loss = loss + (h - xs[t + 1]).square().mean()
        return net.update(loss)

    return Program(step, sequences(low=5, high=12), state=net)


@program(speculated=19, compiles=1)
def from_the_second_element_on():
    net = Net(nn.Linear(4, 4))

    def step(xs):
        scores = torch.log_softmax(net.layers[0](xs), -1)
        total = scores[0]
        for t in range(1, xs.shape[0]):
            later = F.pad(total[:, :-1], (1, 0), value=-1e30)
            total = torch.logsumexp(torch.stack([total, later]), 0) + scores[t]
        return net.update(-total[:, -1].mean())

    return Program(step, sequences(low=5, high=12), state=net)


@program(speculated=19, compiles=1)
def rows_that_are_indexed_further():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(xs.shape[0]):
            h = net.layers[0](xs[t], h) * xs[t, 0, 1:2] + xs[t, :, None, 3]
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=1)
def shorter_sequences_in_a_batch():
    net = Net(nn.GRUCell(4, 4))
    lengths = torch.tensor([9, 4])

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(xs.shape[0]):
            h = torch.where((t < lengths)[:, None], net.layers[0](xs[t], h), h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=1)
def the_number_as_a_factor():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h, total = torch.zeros(2, 4), torch.zeros(())
        for t in range(xs.shape[0]):
            h = net.layers[0](xs[t], h)
            total = total + h.square().sum() * (t + 1) - h.sum() / (t + 1) + (3 - h.mean())
        return net.update(total)

    return Program(step, sequences(), state=net)


@program(speculated=19, compiles=1)
def another_factor_in_the_first_iteration():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h, factor = torch.zeros(2, 4), 5
        for x in xs:
            h = net.layers[0](x * factor, h)
            factor = 2
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=99)
def decisions_by_the_number():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(xs.shape[0]):
            h = net.layers[0](xs[t], h)
            if t + 1 == 7:
                h = h * 2
        return net.update(h.sum())

    return Program(step, sequences(low=3, high=10), state=net)


@program(speculated=17, compiles=1)
def beams_that_a_tensor_ends():
    cell, words, scores = nn.GRUCell(8, 16), nn.Embedding(10, 8), nn.Linear(16, 10)

    def step(xs):
        hidden, token, score = torch.zeros(3, 16), torch.zeros(3, dtype=torch.long), torch.zeros(3)
        with torch.no_grad():
            for _ in range(xs.shape[0]):
                hidden = cell(words(token), hidden)
                score, best = (score[:, None] + scores(hidden).log_softmax(-1)).view(-1).topk(3)
                token, hidden = best % 10, hidden[best // 10]
                if (token == 9).all():
                    break
        return score.max().item(), token.tolist()

    return Program(step, sequences())


@program(speculated=19, compiles=1)
def the_element_before():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(1, xs.shape[0]):
            h = net.layers[0](xs[t] - xs[t - 1], h) * (t - 1)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=0, compiles=6)  # the first iteration takes the last element
def the_element_before_the_first_too():
    net = Net(nn.GRUCell(4, 4))

    def step(xs):
        h = torch.zeros(2, 4)
        for t in range(xs.shape[0]):
            h = net.layers[0](xs[t] - xs[t - 1], h)
        return net.update(h.sum())

    return Program(step, sequences(), state=net)


@program(speculated=8, compiles=6)
def elements_from_the_other_end():
    net, table = Net(nn.GRUCell(4, 4)), torch.randn(20, 2, 4)

    def step(xs):
        h, place = torch.zeros(2, 4), 20
        for t in range(xs.shape[0]):
            place -= 1
            h = net.layers[0](xs[t] + table[19 - t] + table[place], h)
        return net.update(h.sum()), place

    return Program(step, sequences(), state=net)
