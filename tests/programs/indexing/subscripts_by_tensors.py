"""Subscripts by tensors of one integer: ``scores[t, word]``, which are views in eager."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.branches.branches_in_loops import Net
from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def rows(calls=20, length=5):
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(length, 4, generator=generator), torch.randint(4, (length,), generator=generator))
        for _ in range(calls)
    ]


def rows_of_any_number():
    generator = torch.Generator().manual_seed(6)
    lengths = torch.randint(5, 12, (20,), generator=generator).tolist()
    return [(torch.randn(n, 4, generator=generator), torch.randint(4, (n,), generator=generator)) for n in lengths]


@program(speculated=17, compiles=1)
def the_score_of_one_class():
    net = Net()

    def step(x, y):
        scores = F.log_softmax(net.layers[0](x), -1)
        return net.update(-scores[0, y[0]] - scores[-1][y[-1]])

    return Program(step, rows(), state=net)


@program(speculated=17, compiles=1)
def a_transition_between_classes():
    net = Net()
    net.table = nn.Parameter(torch.randn(4, 4))
    net.opt.add_param_group({"params": [net.table]})

    def step(x, y):
        total = net.layers[0](x).logsumexp(-1).sum()
        for t in range(1, len(y)):
            total = total - net.table[y[t - 1], y[t]]
        return net.update(total)

    return Program(step, rows(), state=net)


@program(speculated=17, compiles=1, close=1e-5)
def a_conditional_random_field():
    net = Net()
    net.table = nn.Parameter(torch.randn(4, 4))
    net.opt.add_param_group({"params": [net.table]})

    def step(x, y):
        scores = net.layers[0](x)
        alpha, gold = scores[0], scores[0, y[0]]
        for t in range(1, x.shape[0]):
            alpha = torch.logsumexp(alpha[:, None] + net.table, 0) + scores[t]
            gold = gold + net.table[y[t - 1], y[t]] + scores[t, y[t]]
        return net.update(torch.logsumexp(alpha, 0) - gold)

    return Program(step, rows_of_any_number(), state=net)


@program(speculated=17, compiles=1)
def rows_columns_and_new_dimensions():
    net = Net()

    def step(x, y):
        h = net.layers[0](x)
        parts = h[y[0]], h[:, y[1]], h[None, y[2], ..., 1:], h[..., y[3]], h[y[0], None, 1:3], h[y[1] - 4, y[2].int()]
        return net.update(sum(part.square().sum() * (n + 1) for n, part in enumerate(parts))), [p.shape for p in parts]

    return Program(step, rows(), state=net)


@program(speculated=17, compiles=1)
def an_argmax_as_a_subscript():
    net = Net()

    def step(x, y):
        h = net.layers[0](x)
        best = h[:, 0].argmax()
        return net.update(h[best].square().sum() + h[best, h[best].argmin()]), best

    return Program(step, rows(), state=net)


@program(speculated=10, compiles=2)
def some_out_of_range():
    net = Net()

    def step(x, y):
        h = net.layers[0](x)
        try:
            return net.update(h[0, y[0]].square())
        except IndexError as error:
            return type(error).__name__

    calls = rows()
    calls[9][1][0], calls[14][1][0] = 4, -5
    return Program(step, calls, state=net)


@program(speculated=17, compiles=1)
def a_clone_of_the_part_leaves():
    def step(x, y):
        return x[y[0]].clone(), x.exp()[y[1]].clone()

    return Program(step, rows())


@program(refused="picked by a tensor, leaves the step")
def a_part_of_what_stays_leaves():
    def step(x, y):
        return x.exp()[y[1]]

    return Program(step, rows())


@program(refused="picked by a tensor, leaves the step")
def a_part_of_an_argument_leaves():
    def step(x, y):
        return x[y[0]]

    return Program(step, rows())


@program(refused="picked by a tensor, leaves the step")
def the_part_and_the_whole_leave():
    def step(x, y):
        h = x.exp()
        return h, h[y[0]][1:]

    return Program(step, rows())


@program(speculated=17, compiles=1)
def the_part_is_changed():
    def step(x, y):
        h = x.exp()
        h[y[0]].add_(1)
        return h.sum()

    return Program(step, rows())


@program(refused="picked by a tensor, is used when one of the two has been changed")
def the_whole_is_changed_while_the_part_is_in_use():
    def step(x, y):
        h = x.exp()
        part = h[y[0]]
        view = part[1:]
        h.mul_(2)
        return view.sum()

    return Program(step, rows())


@program(refused="picked by a tensor, is used when one of the two has been changed")
def a_changed_part_is_asked_for_a_number():
    def step(x, y):
        h = x.exp()
        part = h[y[0], 0]
        h.mul_(2)
        return part.item()

    return Program(step, rows())


@program(speculated=17, compiles=1)
def the_whole_is_changed_afterwards():
    def step(x, y):
        h = x.exp()
        total = h[y[0]].sum()
        h.mul_(2)
        return total, h

    return Program(step, rows())
