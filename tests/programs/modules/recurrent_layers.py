"""Recurrent layers of ``torch.nn`` over sequences of changing lengths."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

N = 12


def sizes(least, most, seed=0):
    drawn = random.Random(seed)
    return [drawn.randint(least, most) for _ in range(N)]


class Trainer:
    def __init__(self, *modules):
        self.opt = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
        self.modules = modules

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def classifying(layer, width):
    """A step that classifies sequences, one after the other in a batch."""
    head = nn.Linear(width, 3)
    o = Trainer(layer, head)

    def step(x, y):
        out, last = layer(x)
        return o.update(F.cross_entropy(head(out[:, -1]), y) + last.pow(2).mean())

    calls = [
        (torch.randn(b, t, 5), torch.randint(3, (b,))) for b, t in zip(sizes(2, 6, seed=1), sizes(3, 30), strict=True)
    ]
    return Program(step, calls, state=o)


@program(speculated=9, compiles=1)
def gru_of_any_length():
    return classifying(nn.GRU(5, 6, batch_first=True), 6)


@program(speculated=9, compiles=1)
def plain_layer_of_any_length():
    return classifying(nn.RNN(5, 6, batch_first=True), 6)


@program(speculated=9, compiles=1)
def rectified_layer_of_any_length():
    return classifying(nn.RNN(5, 6, nonlinearity="relu", batch_first=True, bias=False), 6)


@program(speculated=9, compiles=1)
def layers_in_both_directions_with_dropout():
    return classifying(nn.GRU(5, 6, num_layers=2, bidirectional=True, dropout=0.2, batch_first=True), 12)


@program(speculated=9, compiles=1)
def layers_in_evaluation():
    layer = nn.GRU(5, 6, num_layers=2, dropout=0.2).eval()

    def step(x):
        with torch.no_grad():
            return layer(x)

    return Program(step, [(torch.randn(t, 4, 5),) for t in sizes(3, 30)], state=layer)


@program(speculated=9, compiles=1)
def state_kept_between_batches():
    layer = nn.GRU(5, 6, batch_first=True)
    o = Trainer(layer)
    o.state = torch.zeros(1, 4, 6)

    def step(x):
        out, last = layer(x, o.state)
        o.state = last.detach()
        return o.update(out.pow(2).mean())

    return Program(step, [(torch.randn(4, t, 5),) for t in sizes(3, 30)], state=o)


@program(speculated=8, compiles=2, close=1e-5)
def encoder_and_decoder():
    encoder, cell, out = nn.GRU(5, 6, batch_first=True), nn.GRUCell(5, 6), nn.Linear(6, 5)
    o = Trainer(encoder, cell, out)

    def step(x, y):
        _, h = encoder(x)
        h, loss, before = h[0], 0.0, torch.zeros(x.size(0), 5)
        for t in range(y.size(1)):
            h = cell(before, h)
            guess = out(h)
            loss = loss + (guess - y[:, t]).pow(2).mean()
            before = guess.detach()
        return o.update(loss)

    lengths = zip(sizes(3, 30), sizes(3, 12, seed=1), strict=True)
    return Program(step, [(torch.randn(4, t, 5), torch.randn(4, u, 5)) for t, u in lengths], state=o)


@program(speculated=9, compiles=1)
def gradients_of_the_input_only():
    layer = nn.GRU(5, 6).requires_grad_(False)
    table = nn.Embedding(9, 5)
    o = Trainer(table)

    def step(tokens):
        out, _ = layer(table(tokens))
        return o.update(out.pow(2).mean())

    return Program(step, [(torch.randint(9, (t, 4)),) for t in sizes(3, 30)], state=o)


@program(speculated=14, compiles=3)
def connectionist_temporal_classification():
    layer, out = nn.GRU(5, 6, bidirectional=True), nn.Linear(12, 7)
    opt = torch.optim.SGD([*layer.parameters(), *out.parameters()], lr=0.1)

    def step(x, targets, lengths, target_lengths):
        log_probs = F.log_softmax(out(layer(x)[0]), 2)
        loss = F.ctc_loss(log_probs, targets, lengths, target_lengths, zero_infinity=True)
        each = F.ctc_loss(log_probs, targets, lengths, target_lengths, blank=6, reduction="none")
        opt.zero_grad()
        (loss + 0.1 * each[1]).backward()
        opt.step()
        return loss.item(), each.detach()

    calls = []
    for k in range(18):
        length = 9 + k * 5 % 4
        lengths = torch.tensor([length, 9]), torch.tensor([3, 1 + k % 3])
        calls.append((torch.randn(length, 2, 5), torch.randint(1, 6, (2, 3)), *lengths))
    return Program(step, calls, state=(layer, out, opt))


@program(speculated=5)
def lengths_as_tuples():
    def step(x, targets):
        x = x.detach().requires_grad_()
        loss = nn.CTCLoss()(F.log_softmax(x, 2), targets, (9, 8), (3, 2))
        loss.backward()
        return loss.detach(), x.grad

    return Program(step, [(torch.randn(9, 2, 5), torch.randint(1, 5, (2, 3))) for _ in range(8)])


@program(speculated=9, compiles=1)
def gates_with_gaps_between_their_rows():
    """The layer adds to gates in place; what it computes of 16 numbers at a time depends on where the rows lie."""
    layer, cell = nn.GRU(5, 16, batch_first=True), nn.GRUCell(16, 16)
    o = Trainer(layer, cell)

    def step(x):
        out, last = layer(x)
        h = cell(out[:, 0], last[0])
        return out.detach(), h.detach(), o.update(h.pow(2).mean() + out.mean())

    return Program(step, [(torch.randn(3, 4, 5),) for _ in range(N)], state=o)


@program(speculated=9, compiles=1)
def parts_that_are_changed_in_place():
    def step(x):
        a, b, c = (x * 2).unsafe_chunk(3, 1)
        a.add_(b)
        late = b.sigmoid()
        b.mul_(a).exp_()
        c.sub_(a).tanh_()
        p, q = (x + 1).split(24, 1)
        p += q
        r = p.sigmoid()
        q *= r
        return a.sigmoid(), late, b.log1p(), c.exp(), p.tanh(), q.sin(), r + p

    return Program(step, [(torch.randn(5, 48),) for _ in range(N)])
