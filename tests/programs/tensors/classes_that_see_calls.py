"""Tensors of classes with a `__torch_function__` of their own: they see the program's calls, and no others."""

import collections

import torch
import torch.nn.functional as F
from torch import nn

from tests.programs.harness import CALLS, Program, program

LAYOUT = "a tensor of type Counting with layout torch.strided is read"


class Counting(torch.Tensor):
    """Counts the calls of torch that it sees."""

    seen = collections.Counter()

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        whose = getattr(getattr(func, "__self__", None), "__name__", "")
        Counting.seen[f"{whose}.{getattr(func, '__name__', func)}"] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def inputs(count=CALLS + 4):
    return [(torch.randn(4, 3),) for _ in range(count)]


def counted():
    return sorted(Counting.seen.items())


@program(refused=LAYOUT)
def a_parameter():
    weight = nn.Parameter(torch.randn(2, 3).as_subclass(Counting))
    opt = torch.optim.SGD([weight], 0.1)

    def step(x):
        loss = F.linear(x, weight).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return float(loss), counted()

    return Program(step, inputs(), state=(weight, opt, Counting))


@program(refused=LAYOUT)
def a_parameter_of_a_module():
    net = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    net[0].weight = nn.Parameter(net[0].weight.detach().as_subclass(Counting))

    def step(x):
        net.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            net[0].weight -= 0.1 * net[0].weight.grad
        return counted()

    return Program(step, inputs(), state=(net, Counting))


@program(refused=LAYOUT)
def an_argument():
    net = nn.Linear(3, 2)
    opt = torch.optim.SGD(net.parameters(), 0.1)

    def step(x):
        loss = net(x).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return counted()

    return Program(step, [(x.as_subclass(Counting),) for (x,) in inputs()], state=(net, opt, Counting))


@program(refused="Tensor.as_subclass inside the step")
def made_in_the_step():
    weight = nn.Parameter(torch.randn(3, 3))
    opt = torch.optim.SGD([weight], 0.1)

    def step(x):
        Counting.seen.clear()
        y = (x.as_subclass(Counting) @ weight).relu()
        loss = y.pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        return type(loss).__name__, counted(), loss.as_subclass(torch.Tensor).item()

    return Program(step, inputs(), state=(weight, opt, Counting))


@program(refused="a new Counting leaves the step")
def returned_and_kept():
    net, kept = nn.Linear(3, 2), []

    def step(x):
        y = (net(x).detach() + 1).as_subclass(Counting)
        kept.append(y)
        return y * 2, counted()

    return Program(step, inputs(), state=(net, kept, Counting))


@program(refused=LAYOUT)
def asked_for_its_length_and_numbers():
    mean, above = torch.zeros(3).as_subclass(Counting), [0]

    def step(x):
        with torch.no_grad():
            mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        if mean.sum().item() > 0:
            above[0] += 1
        return mean.shape, mean.max().item(), len(mean), str(mean.dtype), counted()

    return Program(step, inputs(), state=(mean, above, Counting))


@program(refused=LAYOUT)
def compared_as_a_whole():
    last = torch.zeros(4, 3).as_subclass(Counting)

    def step(x):
        same = torch.equal(last, x), last.allclose(x), torch.allclose(x, last, atol=10.0)
        last.copy_(x)
        return same, counted()

    return Program(step, inputs(), state=(last, Counting))


@program(refused=LAYOUT)
def behind_a_hook():
    weight = nn.Parameter(torch.randn(3).as_subclass(Counting))
    weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))

    def step(x):
        (x @ weight).sum().backward()
        with torch.no_grad():
            weight.sub_(weight.grad)
        weight.grad = None
        return counted()

    return Program(step, inputs(), state=(weight, Counting))
