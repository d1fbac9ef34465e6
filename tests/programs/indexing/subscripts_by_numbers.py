"""Tensors subscripted by Python numbers that change from call to call: one graph, as long as no view is needed."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from tests.programs.harness import Program, program

NUMBERS = [0, 1, 2, 1, 0, -1, 2, -3, 1, 0, 2, 2]


@program(speculated=9, compiles=2)
def element_by_action():
    net = nn.Linear(4, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x, action):
        loss = -F.log_softmax(net(x), -1)[action]
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return Program(step, [(torch.randn(4), n) for n in NUMBERS], state=(net, opt))


@program(speculated=9, compiles=2)
def elements_by_a_list_of_numbers():
    net = nn.Linear(4, 3)

    def step(states, actions):
        loss = 0.0
        for turn in range(len(actions)):
            loss = loss + net(states[turn])[actions[turn]]
        net.zero_grad()
        loss.backward()
        return loss.item()

    calls = [(torch.randn(2, 4), [n, NUMBERS[-1 - place]]) for place, n in enumerate(NUMBERS)]
    return Program(step, calls, state=net)


@program(speculated=9, compiles=2)
def among_slices_and_new_axes():
    weight = torch.randn(2, 3, 4, requires_grad=True)

    def step(n, k):
        weight.grad = None
        out = weight[:, n, None].sum() + weight[..., n].pow(2).mean() + weight[1, n, 1:3].sum() + weight[0, n, k]
        out.backward()
        return out.detach(), weight[None, :, n].detach() * 1

    return Program(step, [(n, n % 2) for n in NUMBERS], state=weight)


@program(speculated=9, compiles=2)
def zeros_keep_their_signs():
    weight = torch.randn(3, 2, requires_grad=True)

    def step(n, x):
        weight.grad = None
        (weight[n] * x).sum().backward()
        return 1 / weight.grad

    return Program(step, [(n, torch.tensor([-0.0, 1.0])) for n in NUMBERS], state=weight)


@program(speculated=7, compiles=3)
def out_of_range_in_the_end():
    weight = torch.randn(3, 2)

    def step(n):
        try:
            return weight[n] * 2
        except IndexError as error:
            return str(error)

    return Program(step, [(n,) for n in [0, 1, 2, 1, 0, 2, 1, 3, 0, 2, -4, 1]])


@program(speculated=11, compiles=1)
def row_changed_through_its_view():
    table = torch.zeros(3, 2)

    def step(n, x):
        row = table[n]
        row += x
        return table.sum()

    calls = [(n % 2, torch.randn(2)) for n in range(14)]
    return Program(step, calls, state=table)


@program(speculated=6, compiles=8)
def table_changed_while_a_row_of_it_is_shown():
    table = torch.zeros(3, 2)

    def step(n, x):
        row = table[n]
        table.add_(1.0)
        return (row * x).sum()

    calls = [(n % 2, torch.randn(2)) for n in range(14)]
    return Program(step, calls, state=table)


@program(speculated=6, compiles=8)
def row_that_leaves_the_step():
    table = torch.randn(3, 2)

    def step(n):
        return table[n]

    return Program(step, [(n % 2,) for n in range(14)], state=table)


@program(speculated=9, compiles=2)
def parameters_thawed_and_frozen_in_the_step():
    judge, maker = nn.Linear(3, 1), nn.Linear(2, 3)
    opts = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (judge, maker)]

    def step(x, real):
        made = maker(x)
        for p in judge.parameters():
            p.requires_grad_(True)
        opts[0].zero_grad()
        (judge(made.detach()) - judge(real)).mean().backward()
        opts[0].step()
        judge.requires_grad_(False)
        opts[1].zero_grad()
        (-judge(made)).mean().backward()
        opts[1].step()

    return Program(step, [(torch.randn(5, 2), torch.randn(5, 3)) for _ in range(12)], state=(judge, maker, opts))


@program(speculated=7, compiles=3)
def gradient_of_a_thawed_tensor_adds_up():
    weight = torch.randn(3)

    def step(x):
        before = (weight * 2).sum()
        weight.requires_grad_(True)
        (weight * x).sum().backward()
        weight.requires_grad_(False)
        return before

    return Program(step, [(torch.randn(3),) for _ in range(12)], state=weight)


@program(speculated=9, compiles=1)
def cross_entropy_with_logits():
    net = nn.Linear(4, 2)

    def step(x, y, weight):
        scores = net(x)
        loss = F.binary_cross_entropy_with_logits(scores, y)
        loss = loss + F.binary_cross_entropy_with_logits(scores, torch.ones_like(y), weight, reduction="sum")
        loss = loss + F.binary_cross_entropy_with_logits(scores, y, pos_weight=weight)
        net.zero_grad()
        loss.backward()
        return loss.detach()

    calls = [(torch.randn(5, 4), torch.rand(5, 2), torch.rand(2)) for _ in range(12)]
    return Program(step, calls, state=net)


@program(speculated=9, compiles=1)
def gradient_asked_of_an_argument():
    def step(x):
        x.requires_grad_()
        (x * x).sum().backward()
        return x.grad * 2

    return Program(step, [(torch.randn(3, 2),) for _ in range(12)])


@program(speculated=9, compiles=2)
def parameters_frozen_once_and_for_all():
    net = nn.Linear(3, 2)

    def step(x):
        net.weight.requires_grad_(False)
        net.zero_grad()
        net(x).sum().backward()
        return net.bias.grad * 1

    return Program(step, [(torch.randn(4, 3),) for _ in range(14)], state=net)
