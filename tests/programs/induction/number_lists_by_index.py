"""Loops that subscript lists of numbers and flags by the iteration index: actions, weights, masks, schedules."""

import random

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 32  # Each takes a second or more: a loop or a recursive function is compiled for any trip count or tree.

N = 24


def sizes(least, most, seed=0, number=N):
    drawn = random.Random(seed)
    return [drawn.randint(least, most) for _ in range(number)]


def flags(number, seed, share=0.4):
    drawn = random.Random(seed)
    return [drawn.random() < share for _ in range(number)]


def reals(number, seed):
    drawn = random.Random(seed)
    return [drawn.random() for _ in range(number)]


class Trainer:
    def __init__(self, *modules):
        self.opt = torch.optim.SGD([p for m in modules for p in m.parameters()], lr=0.05)
        self.modules = modules
        self.log = []

    def update(self, loss):
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()


def sequences(of, more=0):
    """Sequences of changing lengths, each with a list as long; or longer now and then."""
    return [(torch.randn(3, t, 4), of(t + (i % (more + 1)), i)) for i, t in enumerate(sizes(4, 12))]


@program(speculated=21, compiles=1, close=1e-5)
def states_thrown_away_by_flags():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x, done):
        h = x.new_zeros(x.size(0), 6)
        for t in range(x.size(1)):
            if done[t]:
                h = torch.zeros_like(h)
            h = cell(x[:, t], h)
        return o.update(h.pow(2).mean())

    return Program(step, sequences(flags), state=o)


@program(speculated=20, compiles=1, close=1e-5)
def actions_pick_probabilities():
    cell, head = nn.GRUCell(4, 6), nn.Linear(6, 3)
    o = Trainer(cell, head)

    def step(x, actions):
        h, loss = x.new_zeros(3, 6), 0.0
        for t in range(x.size(1)):
            h = cell(x[:, t], h)
            loss = loss - torch.log_softmax(head(h), -1)[0, actions[t]]
        return o.update(loss)

    return Program(step, sequences(lambda n, seed: sizes(0, 2, seed, n)), state=o)


@program(speculated=20, compiles=1, close=1e-5)
def weights_of_losses():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x, weights):
        h, loss = x.new_zeros(3, 6), 0.0
        for t in range(x.size(1)):
            h = cell(x[:, t], h)
            loss = loss + h.pow(2).mean() * weights[t]
        return o.update(loss)

    return Program(step, sequences(reals), state=o)


@program(speculated=21, compiles=1, close=1e-5)
def a_list_that_is_longer_than_the_loop():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x, skipped):
        h = x.new_zeros(x.size(0), 6)
        for t in range(x.size(1)):
            if not skipped[t]:
                h = cell(x[:, t], h)
        return o.update(h.pow(2).mean() + 0 * cell.weight_ih.sum())

    return Program(step, sequences(flags, more=3), state=o)


@program(speculated=21, compiles=1, close=1e-5)
def a_flag_in_a_variable():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x, used):
        h = x.new_zeros(x.size(0), 6)
        for t in range(x.size(1)):
            use = used[t]
            new = cell(x[:, t], h)
            h = new if use else h
        return o.update(h.pow(2).mean() + 0 * cell.weight_ih.sum())

    return Program(step, [(torch.randn(3, 8, 4), flags(8, i)) for i in range(N)], state=o)


@program(speculated=21, compiles=1, close=1e-5)
def flags_by_enumeration():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x, used):
        h, count = x.new_zeros(x.size(1), 6), 0
        for t, row in enumerate(x.unbind(0)):
            if used[t]:
                h = cell(row, h)
                count += 1
        return o.update(h.pow(2).mean() + 0 * cell.weight_ih.sum()), count

    return Program(step, [(x.transpose(0, 1), used) for x, used in sequences(flags)], state=o)


@program(speculated=21, compiles=1, close=1e-5)
def a_mask_that_is_a_tensor_by_enumeration():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x, mask):
        h = x.new_zeros(x.size(1), 6)
        for t, row in enumerate(x.unbind(0)):
            if mask[t]:
                h = cell(row, h)
        return o.update(h.pow(2).mean() + 0 * cell.weight_ih.sum())

    calls = [(x.transpose(0, 1), torch.tensor(used)) for x, used in sequences(flags)]
    return Program(step, calls, state=o)


@program(speculated=20, compiles=1, close=1e-5)
def numbers_that_are_kept_and_added_up():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x, rewards):
        h, total = x.new_zeros(3, 6), 0
        for t in range(x.size(1)):
            h = cell(x[:, t], h)
            total += rewards[t]
            o.log.append(rewards[t])
        return o.update(h.pow(2).mean()), total

    return Program(step, sequences(reals), state=o)


@program(speculated=0, compiles=9, close=1e-5)
def a_list_that_iterations_change():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x, weights):
        h = x.new_zeros(3, 6)
        for t in range(x.size(1)):
            h = cell(x[:, t], h) * weights[t]
            weights[t] = weights[t] * 0.5
        return o.update(h.pow(2).mean())

    return Program(step, sequences(reals), state=o)


@program(speculated=8, compiles=5, close=1e-5)
def numbers_that_are_sizes():
    layer = nn.Linear(4, 4)
    o = Trainer(layer)

    def step(x, widths):
        out = 0.0
        for t in range(len(widths)):
            out = out + layer(x[: widths[t]]).mean()
        return o.update(out)

    return Program(step, [(torch.randn(9, 4), sizes(2, 6, i, t)) for i, t in enumerate(sizes(3, 6))], state=o)


@program(speculated=21, compiles=1, close=1e-5)
def a_sum_of_iterations_in_which_tensors_decide():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x):
        h, loss, total = x.new_zeros(3, 6), 0.0, 0
        for t in range(x.size(1)):
            if x[:, t].sum() > 0:
                h = cell(x[:, t], h)
            loss = loss + h.pow(2).mean()
            total += x[:, t].mean().detach()
        return o.update(loss + 0 * cell.weight_ih.sum()), total

    return Program(step, [(x,) for x, _ in sequences(flags)], state=o)


@program(speculated=0, compiles=9, close=1e-5)
def a_sum_to_which_some_iterations_add():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x):
        h, loss = x.new_zeros(3, 6), 0.0
        for t in range(x.size(1)):
            h = cell(x[:, t], h)
            if x[:, t].sum() > 2:
                loss = loss + h.pow(2).mean()
        o.update(h.pow(2).mean())
        return loss.item() if isinstance(loss, torch.Tensor) else loss

    return Program(step, [(x,) for x, _ in sequences(flags)], state=o)


@program(speculated=21, compiles=1, close=1e-5)
def numbers_fetched_in_each_iteration():
    cell = nn.GRUCell(4, 6)
    o = Trainer(cell)

    def step(x):
        h, loss = x.new_zeros(3, 6), 0.0
        for t in range(x.size(1)):
            h = cell(x[:, t], h)
            loss = loss + F.relu(h).mean() * x[:, t].mean().item()
            h = h * h.norm().item()
        return o.update(loss)

    return Program(step, [(x,) for x, _ in sequences(flags)], state=o)


@program(speculated=21, compiles=1, close=1e-5)
def a_sum_in_both_branches():
    layer = nn.Linear(4, 4)
    o = Trainer(layer)

    def step(x, added):
        h, loss = x.new_zeros(3, 4), 0.0
        for t in range(x.size(1)):
            h = layer(h).tanh() + x[:, t]
            if added[t]:
                loss = loss + h.pow(2).mean()
            else:
                loss = loss - h.mean()
        return o.update(loss)

    return Program(step, sequences(flags), state=o)


@program(speculated=0, compiles=9)
def a_sum_that_is_a_number_on_a_way_that_raises():
    """Where the first iteration takes the way that needs a tensor, the program raises."""

    def step(x, added):
        h, loss = torch.zeros(3, 4), 0.0
        for t in range(x.size(1)):
            h = h.tanh() + x[:, t]
            if added[t]:
                h = h + loss.detach()
            loss = loss + h.mean()
        return loss

    return Program(step, sequences(lambda n, seed: [seed % 7 == 6, *flags(n - 1, seed)]))


@program(speculated=12, compiles=3)
def lists_that_are_too_short_or_of_other_numbers():
    def step(x, weights):
        h = torch.zeros(3, 4)
        for t in range(x.size(1)):
            h = h.tanh() + x[:, t] * weights[t]
        return h

    def of(number, seed):
        whole = reals(number, seed)
        return whole[:-1] if seed % 5 == 4 else [int(9 * w) for w in whole] if seed % 4 == 3 else whole

    return Program(step, sequences(of))


@program(speculated=0, compiles=9)
def a_flag_that_is_carried():
    def step(x, used):
        h, before = torch.zeros(3, 4), False
        for t in range(x.size(1)):
            use = used[t]
            if use and not before:
                h = h * 2
            h = h.tanh() + x[:, t]
            before = use
        return h, before

    return Program(step, sequences(flags))


def sentences(count=18, most=9):
    return [[random.randrange(most) for _ in range(random.randint(2, 7))] for _ in range(count)]


@program(speculated=11, compiles=1)
def words_as_a_tensor():
    """A tensor of a list of any length: the host makes it."""
    table = nn.Embedding(9, 4)

    def step(words, x):
        for row in table(torch.tensor(words)):
            x = torch.tanh(x + row)
        return x.detach(), torch.LongTensor(words).sum(), len(words)

    return Program(step, [(words, torch.randn(4)) for words in sentences()], state=table)


@program(speculated=9, compiles=2)
def numbers_of_each_kind_as_tensors():
    def step(numbers, weights, flags):
        made = torch.tensor(numbers)
        made += 1
        made[0] = 0
        as_numbers = torch.tensor(flags, dtype=torch.float32), torch.tensor(numbers, dtype=torch.bool)
        return made, torch.as_tensor(weights), torch.FloatTensor(numbers), torch.tensor(flags), as_numbers, numbers[0]

    calls = [(s, [random.random() for _ in s], [random.random() < 0.5 for _ in s]) for s in sentences()]
    return Program(step, calls)


@program(speculated=6, compiles=3)
def lists_that_become_others():
    def step(numbers):
        try:
            return torch.tensor(numbers) * 2
        except (TypeError, ValueError, RuntimeError) as error:
            return type(error).__name__

    others = [[1.5, 2, 3], [], [True, False], [2**40, 1], ["a"], [2**70], [[1], [2, 3]], [[1, 2], [3, 4]]]
    found = sentences(24)
    found[12:20] = others
    return Program(step, [(numbers,) for numbers in found])


@program(speculated=8, compiles=1)
def a_list_that_the_step_has_written():
    held = {"recent": [1, 2]}

    def step(x):
        before = torch.tensor(held["recent"])
        held["recent"].append(len(held["recent"]))
        now = torch.tensor(held["recent"])
        held["recent"] = held["recent"][-5:]
        return x * now.sum(), before, torch.tensor(held["recent"])

    return Program(step, [(torch.randn(3),) for _ in range(16)], state=held)
