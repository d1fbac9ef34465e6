"""Attributes that were missing when asked for, and exist later: of classes, modules, tensors, library objects."""

import enum
import io
import random
import sys
import threading
import types
import typing

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


def asking(thing, before=None):
    """A training step whose rate is an attribute, which comes, changes and goes."""
    model = nn.Linear(3, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean() * getattr(thing, "reported", 1.0)
        if hasattr(thing, "extra"):
            loss = loss + model.weight.sum()
        loss.backward()
        opt.step()
        return loss.item()

    def put(name, value):
        return lambda: setattr(thing, name, value)

    changes = {
        6: put("reported", 2.0),
        11: put("reported", 3.0),
        16: put("extra", True),
        21: lambda: delattr(thing, "reported"),
    }
    return Program(step, [(torch.randn(4, 3),) for _ in range(26)], before or changes)


@program(speculated=12, compiles=6)
def of_a_class():
    return asking(type("Settings", (), {}))


@program(speculated=12, compiles=6)
def of_a_class_of_modules():
    return asking(type("Layer", (nn.Module,), {}))


@program(speculated=12, compiles=6)
def of_a_metaclass():
    class Meta(type):
        pass

    return asking(Meta("Settings", (), {}))


@program(speculated=12, compiles=6)
def of_an_enumeration():
    class Mode(enum.Enum):
        FAST = 1

    return asking(Mode)


@program(speculated=12, compiles=6)
def of_a_module():
    return asking(types.ModuleType("settings"))


@program(speculated=12, compiles=6)
def of_a_tensor():
    return asking(torch.zeros(2))


@program(speculated=12, compiles=6)
def of_a_parameter():
    return asking(nn.Parameter(torch.zeros(2)))


@program(speculated=12, compiles=6)
def of_a_dataset():
    return asking(torch.utils.data.TensorDataset(torch.ones(2)))


@program(speculated=12, compiles=6)
def of_a_generator_of_numbers():
    return asking(random.Random(3))


@program(speculated=12, compiles=6)
def of_a_thread():
    return asking(threading.Thread(name="one"))


@program(speculated=12, compiles=6)
def of_what_each_thread_has():
    return asking(threading.local())


@program(speculated=12, compiles=6)
def of_a_text_file():
    return asking(io.StringIO())


@program(speculated=12, compiles=6)
def of_a_text():
    return asking(type("Name", (str,), {})("settings"))


@program(speculated=12, compiles=6)
def of_slots():
    return asking(type("Settings", (), {"__slots__": ("extra", "reported")})())


@program(speculated=12, compiles=3)
def no_decay_by_a_mark_on_parameters():
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 1))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter.no_decay = True

    def step(x):
        loss = model(x).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                decay = 0.0 if getattr(parameter, "no_decay", False) else 0.1
                parameter -= 0.1 * (parameter.grad + decay * parameter)
                parameter.grad = None
        return loss.item()

    def mark():
        model[1].weight.no_decay = True

    return Program(step, [(torch.randn(4, 3),) for _ in range(24)], {10: mark})


@program(speculated=12, compiles=3)
def a_tensor_that_carries_its_rate():
    weight = torch.ones(3, requires_grad=True)
    weight.rate = 0.1

    def step(x):
        loss = (weight * x).sum().pow(2)
        loss.backward()
        with torch.no_grad():
            weight.sub_(weight.rate * weight.grad)
        weight.grad = None
        return loss.item()

    def put(value):
        return lambda: setattr(weight, "rate", value)

    return Program(step, [(torch.randn(3),) for _ in range(24)], {8: put(0.05), 14: put(0.025)})


@program(speculated=12, compiles=3)
def of_a_protocol():
    @typing.runtime_checkable
    class Scaled(typing.Protocol):
        def scale(self, x): ...

    class Plain:
        pass

    weight = torch.ones(3, requires_grad=True)

    def step(x):
        loss = (weight * x).sum()
        if isinstance(Plain(), Scaled):
            loss = loss * 2
        loss.backward()
        return loss.item(), weight.grad.sum().item()

    def learn():
        Plain.scale = lambda self, x: x

    return Program(step, [(torch.randn(3),) for _ in range(20)], {8: learn})


@program(speculated=12, compiles=4)
def the_bytes_of_a_bytearray():
    weight, held = torch.ones(3, requires_grad=True), bytearray(b"abc")

    def step(x):
        loss = (weight * x).sum() * held[0]
        loss.backward()
        return loss.item(), bytes(held), len(held)

    def put():
        held.extend(b"z")
        held[0] = 99

    return Program(step, [(torch.randn(3),) for _ in range(20)], {8: put, 13: put})


@program(speculated=12, compiles=3)
def modules_that_are_asked_for():
    weight = torch.ones(3, requires_grad=True)

    def step(x):
        loss = (weight * x).sum()
        if hasattr(sys, "a_flag_of_this_test"):
            loss = loss * 2
        loss.backward()
        return loss.item()

    def put():
        sys.a_flag_of_this_test = True

    def take():
        del sys.a_flag_of_this_test

    return Program(step, [(torch.randn(3),) for _ in range(20)], {8: put, 14: take})
