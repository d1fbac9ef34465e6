"""The ``__dict__`` of classes, classes registered with abstract ones, and objects that get another ``__dict__``."""

import abc
import collections.abc

import torch
from torch import nn

from tests.programs.harness import Program, program


def scaled(factor, before=None, *more):
    """A training step whose loss is multiplied by what ``factor`` finds."""
    model = nn.Linear(3, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        opt.zero_grad()
        loss = model(x).pow(2).mean() * factor(*more)
        loss.backward()
        opt.step()
        return loss.item()

    return Program(step, [(torch.randn(4, 3),) for _ in range(26)], before or {})


class Settings:
    rate = 2.0
    extra = 1.0

    def half(self):
        return 0.5

    @staticmethod
    def double():
        return 2.0

    @property
    def third(self):
        return 0.3


def setting(name, value):
    return lambda: setattr(Settings, name, value)


def removing(name):
    return lambda: delattr(Settings, name)


@program(speculated=14, compiles=4)
def whether_a_class_itself_has_a_name():
    def factor():
        return 2.0 if "reported" in Settings.__dict__ else 1.0 if "reported" not in vars(Settings) else 0.0

    return scaled(factor, {8: setting("reported", 1), 16: removing("reported")})


@program(speculated=12, compiles=4)
def what_a_class_has_under_a_name():
    def factor():
        return Settings.__dict__["rate"] * vars(Settings).get("reported", 1.0)

    return scaled(factor, {8: setting("rate", 3.0), 16: setting("reported", 0.5)})


@program(speculated=12, compiles=4)
def what_a_class_has_no_more():
    def factor():
        try:
            return Settings.__dict__["extra"]
        except KeyError:
            return 5.0

    return scaled(factor, {8: removing("extra"), 16: setting("extra", 2.0)})


@program(speculated=12, compiles=6)
def all_numbers_of_a_class():
    def factor():
        return sum(value for name, value in vars(Settings).items() if isinstance(value, float))

    return scaled(factor, {8: setting("reported", 3.0), 16: setting("rate", 0.5)})


@program(speculated=12, compiles=6)
def the_names_of_a_class():
    def factor():
        return sum(1.0 for name in Settings.__dict__ if not name.startswith("_")) + len(vars(Settings)) / 100

    return scaled(factor, {8: setting("reported", 3.0), 16: removing("reported")})


@program(speculated=12, compiles=6)
def functions_out_of_a_class():
    one = Settings()

    def factor():
        shown = Settings.__dict__
        return shown["half"](one) * shown["double"].__func__() * shown["third"].fget(one)

    changes = {
        8: setting("half", lambda self: 0.25),
        14: setting("double", staticmethod(lambda: 3.0)),
        20: setting("third", property(lambda self: 0.1)),
    }
    return scaled(factor, changes)


@program(speculated=20)
def a_class_that_the_step_writes():
    def factor():
        Settings.rate = Settings.__dict__["rate"] + 0.1
        return Settings.__dict__["rate"] if "rate" in Settings.__dict__ else 0.0

    return scaled(factor, {})


@program(refused="asks for parts of a mappingproxy that was there before the call")
def all_of_a_class_that_the_step_writes():
    def factor():
        Settings.rate = Settings.rate + 0.1
        return sum(value for value in vars(Settings).values() if isinstance(value, float))

    return scaled(factor, {})


class Kind(abc.ABC):
    """To be registered for."""


class Candidate:
    """Of no kind in the beginning."""


@program(speculated=14, compiles=4)
def an_object_whose_class_is_registered():
    one = Candidate()
    return scaled(lambda: 2.0 if isinstance(one, Kind) else 1.0, {10: lambda: Kind.register(Candidate)})


@program(speculated=14, compiles=4)
def a_new_object_whose_class_is_registered():
    return scaled(lambda: 2.0 if isinstance(Candidate(), (int, Kind)) else 1.0, {10: lambda: Kind.register(Candidate)})


@program(speculated=14, compiles=4)
def a_class_that_is_registered():
    return scaled(lambda: 2.0 if issubclass(Candidate, Kind) else 1.0, {10: lambda: Kind.register(Candidate)})


@program(speculated=14, compiles=4)
def a_class_that_becomes_a_mapping():
    one, kind = Candidate(), collections.abc.Mapping
    return scaled(lambda: 2.0 if isinstance(one, kind) else 1.0, {10: lambda: kind.register(Candidate)})


@program(speculated=14, compiles=4)
def numbers_that_become_of_a_kind():
    return scaled(lambda number: 2.0 if isinstance(number, Kind) else 1.0, {10: lambda: Kind.register(int)}, 3)


def with_namespace(**held):
    one = Candidate()
    one.__dict__.update(held)

    def replace(**held):
        return lambda: setattr(one, "__dict__", held)

    return one, replace


@program(speculated=14, compiles=4)
def an_object_with_another_namespace():
    one, replace = with_namespace(rate=2.0)
    return scaled(lambda: one.rate, {8: replace(rate=3.0), 16: replace(rate=0.5)})


@program(speculated=12, compiles=4)
def an_object_with_more_in_another_namespace():
    one, replace = with_namespace(rate=2.0)
    changes = {8: replace(rate=2.0, reported=3.0), 16: replace(rate=2.0)}
    return scaled(lambda: one.rate * getattr(one, "reported", 1.0), changes)


@program(speculated=14, compiles=4)
def an_argument_with_another_namespace():
    one, replace = with_namespace(rate=2.0)
    return scaled(lambda given: given.rate, {8: replace(rate=3.0), 16: replace(rate=0.5)}, one)


@program(speculated=14, compiles=4)
def objects_that_share_a_namespace():
    one, replace = with_namespace(rate=2.0)
    other = Candidate()
    other.__dict__ = one.__dict__
    return scaled(lambda: one.rate + other.rate, {8: lambda: setattr(other, "rate", 3.0), 16: replace(rate=0.5)})
