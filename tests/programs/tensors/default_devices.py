"""The default device of new tensors, and other modes that see calls of torch."""

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.programs.harness import Program, program


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.adam = torch.optim.Adam(self.parameters())

    def train_on(self, x):
        self.adam.zero_grad()
        noise = torch.randn(4, device="cpu") + torch.full_like(x[0, :1], 0.5)
        loss = (self.layer(x) + noise).pow(2).mean()
        loss.backward()
        self.adam.step()
        return loss.item()


def batches():
    return [(torch.randn(2, 3),) for _ in range(10)]


@program(compiles=1, reported="default device cpu")
def in_force_around_the_step():
    net = Net()
    return Program(net.train_on, batches(), state=net, around=lambda number: torch.device("cpu"))


@program(compiles=1)
def in_force_within_the_step():
    net = Net()

    def step(x):
        with torch.device("cpu"):
            scale = torch.ones(2, 1)
        return net.train_on(x * scale)

    return Program(step, batches(), state=net)


@program(compiles=1)
def another_one_within_the_step():
    """Tensors without contents tell sizes."""
    net = Net()

    def step(x):
        with torch.device("meta"):
            sizes = torch.zeros(4, 2).t().shape
        with torch.device("cpu"):
            mask = torch.ones(sizes)
        return net.train_on(x * mask[:, :3]), tuple(sizes)

    return Program(step, batches(), state=net)


@program(speculated=6)
def another_one_from_some_call_on():
    net = Net()

    def step(x):
        return net.train_on(x), torch.zeros(3).device

    devices = ["cpu"] * 5 + ["meta"] * 7
    calls = [(torch.randn(2, 3),) for _ in devices]
    return Program(step, calls, state=net, around=lambda number: torch.device(devices[number]))


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@program(refused="the step runs under a TorchFunctionMode (Counting)")
def a_mode_that_counts():
    net, counting = Net(), Counting()
    return Program(net.train_on, batches(), state=(net, counting), around=lambda number: counting)


@program(refused="the step enters a mode (Counting)")
def a_mode_that_the_step_enters():
    net, counting = Net(), Counting()

    def step(x):
        with counting:
            made = x * 2
        return net.train_on(made)

    return Program(step, batches(), state=(net, counting))


class Dispatched(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@program(refused="the step enters a mode (Dispatched)")
def a_dispatch_mode_that_the_step_enters():
    net, seen = Net(), Dispatched()

    def step(x):
        with seen:
            made = x * torch.rand(3)
        return net.train_on(made), seen.names[-2:]

    return Program(step, batches(), state=net)


@program(refused="the default device is set inside the step")
def set_within_the_step():
    net = Net()

    def step(x):
        torch.set_default_device("meta")
        sizes = torch.zeros(2, 3).shape
        torch.set_default_device(None)
        return net.train_on(x), tuple(sizes)

    return Program(step, batches(), state=net)
