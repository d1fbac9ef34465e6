"""What new objects show of their class: it is from before the call, and another call may find something else."""

import collections
import enum
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import nn

from tests.programs.classes.class_dictionaries import scaled
from tests.programs.harness import program


class Settings:
    rate = 2.0
    name = "slow"
    kept: ClassVar[list[float]] = []
    counts: ClassVar[dict[str, int]] = {}
    made = 0

    def half(self):
        return 0.5

    @staticmethod
    def double():
        return 2.0

    @property
    def third(self):
        return 0.3

    @cached_property
    def fourth(self):
        return 0.25


class Further(Settings):
    def __init__(self):
        self.rate = super().rate * 2


def setting(name, value, cls=Settings):
    return lambda: setattr(cls, name, value)


@program(speculated=18, compiles=4)
def a_number():
    return scaled(lambda: Settings().rate, {8: setting("rate", 3.0), 16: setting("rate", 0.5)})


@program(speculated=12, compiles=4)
def a_text():
    factors = {"slow": 0.5, "fast": 2.0}
    return scaled(lambda: factors[Settings().name], {8: setting("name", "fast"), 16: setting("name", "slow")})


@program(speculated=12, compiles=4)
def a_method():
    before = {8: setting("half", lambda self: 0.7), 16: setting("half", lambda self: self.rate)}
    return scaled(lambda: Settings().half(), before)


@program(speculated=12, compiles=4)
def a_static_method():
    return scaled(lambda: Settings().double(), {8: setting("double", staticmethod(lambda: 3.0))})


@program(speculated=12, compiles=4)
def a_property():
    before = {8: setting("third", property(lambda self: 0.6)), 16: setting("third", 0.9)}
    return scaled(lambda: Settings().third, before)


@program(speculated=12, compiles=4)
def a_property_that_is_kept():
    return scaled(lambda: Settings().fourth, {8: setting("fourth", 0.6)})


@program(speculated=12, compiles=4)
def what_comes_with_a_class_in_between():
    return scaled(lambda: Further().half(), {8: setting("half", lambda self: 0.7, Further)})


@program(speculated=18, compiles=4)
def what_comes_before_it():
    return scaled(lambda: Further().rate, {8: setting("rate", 5.0)})


@program(speculated=12, compiles=4)
def what_is_not_there_as_yet():
    def factor():
        return getattr(Settings(), "reported", 2.0) * (3.0 if hasattr(Settings(), "reported") else 1.0)

    return scaled(factor, {8: setting("reported", 0.25)})


@program(speculated=12, compiles=6)
def a_list_that_it_fills():
    def factor():
        one = Settings()
        one.kept.append(len(one.kept) * 0.5)
        return 1.0 + one.kept[-1] / 10

    return scaled(factor)


@program(speculated=12, compiles=6)
def a_dictionary_that_it_counts_in():
    def factor():
        one = Settings()
        one.counts["calls"] = one.counts.get("calls", 0) + 1
        return 1.0 / one.counts["calls"]

    return scaled(factor)


@program(speculated=18, compiles=4)
def a_number_of_its_class_that_it_counts():
    def factor():
        one = Settings()
        type(one).made += 1
        return 1.0 / one.made

    return scaled(factor)


@dataclass
class Point:
    x: float
    y: float = 2.0
    scale: ClassVar[float] = 0.5

    def length(self):
        return (self.x + self.y) * self.scale


@program(speculated=18, compiles=4)
def what_a_dataclass_shares():
    return scaled(lambda: Point(1.0).length(), {8: setting("scale", 0.25, Point)})


Pair = collections.namedtuple("Pair", "left right")


class Summed(Pair):
    weight = 0.5

    def total(self):
        return (self.left + self.right) * self.weight


@program(speculated=18, compiles=4)
def what_a_tuple_shares():
    return scaled(lambda: Summed(1.0, 2.0).total(), {8: setting("weight", 0.25, Summed)})


class Layer(nn.Module):
    slope = 0.5

    def forward(self, x):
        return x * self.slope


@program(speculated=18, compiles=4)
def what_a_module_shares():
    return scaled(lambda: Layer()(torch.ones(())), {8: setting("slope", 0.25, Layer)})


class Slots:
    __slots__ = ("own",)
    shared = 0.5

    def __init__(self, own):
        self.own = own


@program(speculated=18, compiles=4)
def what_there_is_beside_slots():
    return scaled(lambda: Slots(2.0).own * Slots(1.0).shared, {8: setting("shared", 0.25, Slots)})


@program(speculated=12)
def of_a_class_of_the_step():
    def factor():
        class Own(Settings):
            level = 3.0

            def both(self):
                return self.level * self.rate

        return Own().both()

    return scaled(factor)


@program(speculated=12, compiles=4)
def of_a_class_made_before():
    class Local(Settings):
        level = 3.0

        def both(self):
            return self.level * self.rate

    return scaled(lambda: Local().both(), {8: setting("level", 2.0, Local)})


class Mode(enum.Enum):
    LOW = 0.5
    HIGH = 2.0


class Chooses:
    mode = Mode.LOW


@program(speculated=12, compiles=4)
def a_member_of_an_enumeration():
    return scaled(lambda: Chooses().mode.value, {8: setting("mode", Mode.HIGH, Chooses)})


class Weighted:
    weight = nn.Parameter(torch.full((2,), 0.5))


@program(speculated=12, compiles=4)
def a_tensor():
    return scaled(lambda: Weighted().weight.sum(), {8: setting("weight", torch.ones(2), Weighted)})


@program(speculated=12, compiles=6)
def what_a_local_dataclass_makes():
    """Its ``__init__`` has no source; the factory and ``__post_init__`` are the program's own."""
    box, factor = [0.5], {"by": 2.0}

    @dataclass
    class Local:
        scales: list[float] = field(default_factory=lambda: list(box))
        weight: torch.Tensor = field(default_factory=lambda: torch.ones(2) * box[0])

        def __post_init__(self):
            self.scales = [scale * factor["by"] for scale in self.scales]

    def make():
        one = Local()
        return one.scales[0] * one.weight.sum()

    return scaled(make, {8: lambda: box.__setitem__(0, 0.75), 16: lambda: factor.update(by=3.0)})
