"""Sequences of different lengths, packed for recurrent layers and padded again."""

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pack_sequence, pad_packed_sequence

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

LENGTHS = (
    [3, 5, 2, 4],
    [6, 1, 2, 4],
    [2, 2, 7, 3],
    [3, 5, 2, 4],
    [5, 5, 5, 5],
    [1, 1, 9, 1],
    [4, 3, 2, 1],
    [2, 8, 8, 2],
)


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.words = nn.Embedding(9, 3, padding_idx=0)
        self.layer = layer
        self.out = nn.Linear(layer.hidden_size * (1 + layer.bidirectional), 2)
        self.sgd = torch.optim.SGD(self.parameters(), lr=0.1)

    def train_on(self, values):
        self.sgd.zero_grad()
        loss = self.out(values).pow(2).mean()
        loss.backward()
        self.sgd.step()
        return loss.item()


def batches(ordered=False, as_list=False, lengths=LENGTHS):
    calls = []
    for some in lengths:
        some = sorted(some, reverse=True) if ordered else some
        words = torch.randint(1, 9, (len(some), max(some)))
        words[torch.arange(max(some))[None] >= torch.tensor(some)[:, None]] = 0
        calls.append((words, list(some) if as_list else torch.tensor(some)))
    return calls


@program(speculated=5, compiles=1)
def last_states_of_sorted_ones():
    net = Net(nn.LSTM(3, 4, batch_first=True))

    def step(words, lengths):
        packed = pack_padded_sequence(net.words(words), lengths, batch_first=True)
        _, (h, _) = net.layer(packed)
        return net.train_on(h[-1])

    return Program(step, batches(ordered=True), state=net)


@program(speculated=5, compiles=1)
def padded_again():
    net = Net(nn.LSTM(3, 4, batch_first=True))

    def step(words, lengths):
        packed = pack_padded_sequence(net.words(words), lengths, batch_first=True, enforce_sorted=False)
        out, _ = net.layer(packed)
        out, known = pad_packed_sequence(out, batch_first=True)
        mask = torch.arange(out.size(1))[None] < known[:, None]
        return net.train_on(out * mask[..., None]), known, out.shape[1]

    return Program(step, batches(), state=net)


@program(speculated=5, compiles=1)
def layers_in_both_directions_with_dropout():
    net = Net(nn.GRU(3, 4, num_layers=2, bidirectional=True, dropout=0.3))

    def step(words, lengths):
        packed = pack_padded_sequence(net.words(words.t()), lengths, enforce_sorted=False)
        out, h = net.layer(packed)
        out, _ = pad_packed_sequence(out, padding_value=-1.0)
        return net.train_on(out), h.detach()

    return Program(step, batches(), state=net)


@program(speculated=5, compiles=1)
def lengths_that_the_step_computes():
    net = Net(nn.RNN(3, 4, batch_first=True))

    def step(words, _):
        lengths = (words != 0).sum(1)
        packed = pack_padded_sequence(net.words(words), lengths, batch_first=True, enforce_sorted=False)
        _, h = net.layer(packed)
        return net.train_on(h[0])

    return Program(step, batches(), state=net)


@program(speculated=5, compiles=1)
def lengths_in_a_list():
    net = Net(nn.LSTM(3, 4, batch_first=True, bias=False))

    def step(words, lengths):
        packed = pack_padded_sequence(net.words(words), lengths, batch_first=True, enforce_sorted=False)
        out, _ = net.layer(packed)
        out, _ = pad_packed_sequence(out, batch_first=True, total_length=10)
        return net.train_on(out.amax(1))

    return Program(step, batches(as_list=True), state=net)


@program(speculated=5, compiles=1)
def states_that_are_carried_on():
    net = Net(nn.LSTM(3, 4, batch_first=True))
    carried = [torch.zeros(1, 4, 4), torch.zeros(1, 4, 4)]

    def step(words, lengths):
        packed = pack_padded_sequence(net.words(words), lengths, batch_first=True, enforce_sorted=False)
        out, (h, c) = net.layer(packed, (carried[0], carried[1]))
        carried[:] = [h.detach(), c.detach()]
        out, _ = pad_packed_sequence(out, batch_first=True)
        return net.train_on(out.sum(1))

    return Program(step, batches(), state=(net, carried))


@program(speculated=5, compiles=1)
def elements_as_they_are_packed():
    net = Net(nn.GRU(3, 4, batch_first=True))

    def step(words, lengths):
        packed = pack_padded_sequence(net.words(words), lengths, batch_first=True, enforce_sorted=False)
        out, _ = net.layer(packed)
        return net.train_on(out.data), packed.batch_sizes, len(packed.batch_sizes)

    return Program(step, batches(), state=net)


@program(speculated=5, compiles=1)
def without_gradients():
    net = Net(nn.LSTM(3, 4, batch_first=True)).eval()

    @torch.no_grad()
    def step(words, lengths):
        packed = pack_padded_sequence(net.words(words), lengths, batch_first=True, enforce_sorted=False)
        out, (h, c) = net.layer(packed)
        return pad_packed_sequence(out, batch_first=True)[0], h, c

    return Program(step, batches(), state=net)


@program(speculated=7, compiles=2)
def batches_of_any_size():
    net = Net(nn.LSTM(3, 4, batch_first=True))

    def step(words, lengths):
        packed = pack_padded_sequence(net.words(words), lengths, batch_first=True, enforce_sorted=False)
        out, _ = net.layer(packed)
        out, _ = pad_packed_sequence(out, batch_first=True)
        return net.train_on(out.mean(1))

    return Program(step, batches(lengths=(*LENGTHS, [2, 5], [4, 4, 1], [3], [5, 6, 2, 1, 8])), state=net)


@program(speculated=4, compiles=3)
def lengths_that_torch_refuses():
    """Not sorted, none, longer than the batch is, as many as there are not."""
    net = Net(nn.LSTM(3, 4, batch_first=True))

    def step(words, lengths, ordered):
        packed = pack_padded_sequence(net.words(words), lengths, batch_first=True, enforce_sorted=ordered)
        _, (h, _) = net.layer(packed)
        return net.train_on(h[-1])

    words = torch.randint(1, 9, (3, 4))
    calls = [(words, torch.tensor([4, 3, 2]), True) for _ in range(5)]
    calls += [
        (words, torch.tensor(some), True) for some in ([2, 3, 4], [4, 2, 0], [5, 3, 2], [3, 3, 1], [4, 2], [2, 1, 1])
    ]
    calls += [
        (words, torch.tensor(some), False)
        for some in ([2, 3, 4], [1, 1, 1], [3, 4, 1], [2, 2, 4], [2, 0, 1], [1, 5, 1])
    ]
    return Program(step, calls, state=net)


@program(speculated=5)
def packed_before_the_call():
    net = Net(nn.LSTM(3, 4))

    def step(packed):
        out, _ = net.layer(packed)
        return net.train_on(pad_packed_sequence(out)[0])

    def packed(*lengths):
        return (pack_sequence([torch.randn(n, 3) for n in lengths], enforce_sorted=False),)

    return Program(step, [packed(3, 5, 2), packed(4, 1, 1), *(packed(2, 4, 3) for _ in range(8))], state=net)
