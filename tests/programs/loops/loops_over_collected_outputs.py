"""Loops over the collected outputs of earlier loops, zipped with rows of tensors: one graph for all trip counts."""

import random

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.

CALLS = 16
SERVED = CALLS - 4


def model_and_training():
    model = nn.Linear(4, 4)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)

    def train(loss):
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.item()

    return model, train


def made(body):
    model, train = model_and_training()
    lengths = (7, 12, 5, 9, 11, 4, 18, 6, 8, 11, 13, 10, 3, 7, 15, 11)
    return Program(body(model, train), [(torch.randn(n, 4), torch.randn(n, 4)) for n in lengths], state=model)


@program(speculated=SERVED, close=1e-5)
def outputs_of_a_loop_gone_through():
    def body(model, train):
        def step(x, y):
            outs, total = [], 0
            for a in x:
                outs.append(model(a).sum())
            for out in outs:
                total = total + out * 2
            return train(total * 0.01)

        return step

    return made(body)


@program(speculated=SERVED, close=1e-5)
def outputs_beside_the_rows_of_targets():
    def body(model, train):
        def step(x, y):
            outs, total = [], 0
            for a in x:
                outs.append(torch.tanh(model(a)))
            for out, b in zip(outs, y):
                total = total + (out - b).pow(2).sum()
            return train(total * 0.01)

        return step

    return made(body)


@program(speculated=SERVED, close=1e-5)
def losses_in_a_comprehension():
    def body(model, train):
        def step(x, y):
            outs = [torch.tanh(model(a)) for a in x]
            losses = [(out - b).pow(2).mean() for out, b in zip(outs, y)]
            return train(sum(losses) / len(losses))

        return step

    return made(body)


@program(speculated=SERVED, close=1e-5)
def rows_of_targets_beside_the_outputs():
    def body(model, train):
        def step(x, y):
            outs, total = [model(a) for a in x], 0
            for b, out in zip(y, outs):
                total = total + (out * b).sum()
            return train(total * 0.01)

        return step

    return made(body)


@program(speculated=SERVED, close=1e-5)
def weights_made_for_as_many():
    def body(model, train):
        def step(x, y):
            outs, total = [], 0
            for a in x:
                outs.append(model(a).sum())
            weights = torch.rand(len(outs))
            for out, weight in zip(outs, weights):
                total = total + out * weight
            return train(total * 0.01)

        return step

    return made(body)


@program(speculated=SERVED, close=1e-5)
def three_of_them_and_a_number():
    def body(model, train):
        def step(x, y):
            outs, sums, total = [torch.tanh(model(a)) for a in x], [b.sum() for b in y], 0
            for number, (out, some, b) in enumerate(zip(outs, sums, y)):
                total = total + (out * b).sum() * some * number
            return train((total + sum(outs).sum()) * 0.01)

        return step

    return made(body)


@program(speculated=SERVED, close=1e-5)
def stacked_again():
    """The log-probabilities of an episode, weighed by its returns."""

    def body(model, train):
        def step(x, y):
            logs, losses = [], []
            for _ in range(random.randrange(5, 20)):
                logs.append(torch.softmax(model(torch.randn(4)), dim=-1)[0].log())
            returns = torch.rand(len(logs))
            for log, reward in zip(logs, returns):
                losses.append(-log * reward)
            return train(torch.stack(losses).sum() * 0.1)

        return step

    return made(body)


@program(speculated=SERVED, close=1e-5)
def negated_and_stacked():
    def body(model, train):
        def step(x, y):
            logs = []
            for _ in range(random.randrange(5, 20)):
                logs.append(torch.softmax(model(torch.randn(4)), dim=-1)[0].log())
            return train(torch.stack([-log * 2 for log in logs]).mean())

        return step

    return made(body)


@program(speculated=SERVED, close=1e-5)
def outputs_beside_the_rows_of_targets_as_many():
    def body(model, train):
        def step(x, y):
            outs = [model(a) for a in x]
            losses = [(out - b).pow(2).mean() for out, b in zip(outs, y, strict=True)]
            return train(sum(losses) / len(losses))

        return step

    return made(body)


def keyed(loop):
    """Behind a loop over a tensor its length is a key, and what the step does next depends on it."""

    def body(model, train):
        def step(x, y):
            total = loop(model, x, y)
            known = {x.shape[0]: 1}
            return train(total * (0.01 if 11 in known else 0.02))

        return step

    return made(body)


@program(speculated=1, compiles=16)
def length_as_a_key_behind_a_loop():
    def loop(model, x, y):
        total = 0
        for a in x:
            total = total + model(a).sum()
        return total

    return keyed(loop)


@program(speculated=1, compiles=16)
def length_as_a_key_behind_rows_of_two():
    def loop(model, x, y):
        total = 0
        for a, b in zip(x, y):
            total = total + (model(a) * b).sum()
        return total

    return keyed(loop)


@program(speculated=1, compiles=16)
def length_as_a_key_behind_iterations_that_tensors_decide():
    def loop(model, x, y):
        total = 0
        for a in x:
            total = total + model(a).sum()
            if total > 3:
                total = total * 0.5
        return total

    return keyed(loop)


@program(speculated=1, compiles=16, slow=True)
def length_as_a_key_behind_iterations_that_a_tensor_ends():
    def loop(model, x, y):
        total = 0
        for a in x:
            total = total + model(a).abs().sum()
            if total > 30:
                break
        return total

    return keyed(loop)
