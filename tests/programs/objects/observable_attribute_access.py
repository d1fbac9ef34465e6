"""Attribute access that is code of the program: watching must not run it. And members of new classes."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import types
import typing

import torch

from tests.programs.harness import CALLS, Program, program


def inputs():
    return [(torch.full((2,), float(n)), 1.0 + n % 3) for n in range(CALLS)]


class Reporting(type):
    """Counts what it is asked for that its classes do not have."""

    calls = 0
    single: dict[type, object] = {}

    def __getattr__(cls, name):
        Reporting.calls += 1
        return len(name)

    @property
    def rate(cls):
        Reporting.calls += 1
        return 0.5


class Thing(metaclass=Reporting):
    def __init__(self, held=1):
        self.held = held

    def __call__(self, x):
        return x * self.held

    def __add__(self, other):
        return self.held + other


class Part(Thing):
    factor = 2


@program()
def objects_of_a_class_that_tells():
    thing = Thing(2)

    def step(x, k):
        made = Part(3)
        return thing(x) + made.held + isinstance(thing, Part) + (made + 1), callable(thing), [thing] == [thing]

    return Program(step, inputs(), state=lambda: Reporting.calls)


@program(speculated=0)
def attributes_that_the_metaclass_tells():
    def step(x, k):
        return x * Thing.anything + Part.rate + Part.factor

    return Program(step, inputs(), state=lambda: Reporting.calls)


@program(speculated=0)
def a_class_made_by_the_metaclass():
    def step(x, k):
        made = Reporting("Made", (Thing,), {"more": 3})
        return x * made.more + made(2).held

    return Program(step, inputs(), state=lambda: Reporting.calls)


@program()
def objects_that_tell():
    class Reported:
        asked = 0

        def __getattr__(self, name):
            Reported.asked += 1
            if name.startswith("__"):
                raise AttributeError(name)
            return len(name)

        def __call__(self, x):
            return x + self.any

    reported = Reported()

    def step(x, k):
        return reported(x) * reported.other, [reported], callable(reported)

    return Program(step, inputs(), state=lambda: Reported.asked)


@program()
def properties_with_the_names_of_functions():
    class Named:
        asked = 0

        @property
        def __name__(self):
            Named.asked += 1
            return "named"

        @property
        def __self__(self):
            Named.asked += 1
            return self

        @property
        def __func__(self):
            Named.asked += 1
            return self

        def __call__(self, x):
            return x * 2

    named = Named()

    def step(x, k):
        return named(x) + sum(map(named, [1, 2])), list(filter(named, [1]))

    return Program(step, inputs(), state=lambda: Named.asked)


class Counted(abc.ABC):
    asked = 0

    @classmethod
    def __subclasshook__(cls, other):
        Counted.asked += 1
        return True if "area" in vars(other) else NotImplemented


class Read(abc.ABC):
    @classmethod
    def __subclasshook__(cls, other):
        return True if "area" in vars(other) else NotImplemented


class Shape:
    area = 1


@program(refused="by a __subclasshook__ that may change something")
def a_hook_for_subclasses_counts():
    shape = Shape()

    def step(x, k):
        return x + isinstance(shape, Counted) + issubclass(Thing, Counted) + isinstance(x, Counted)

    return Program(step, inputs(), state=lambda: Counted.asked)


@program()
def a_hook_for_subclasses_reads():
    shape = Shape()

    def step(x, k):
        return x + isinstance(shape, Read) + issubclass(Part, Read)

    return Program(step, inputs())


@program(refused="leaves the step")
def a_class_with_a_number_is_kept():
    kept = []

    def step(x, k):
        class Late:
            late = k

        kept.append(Late)
        return x * Late.late

    return Program(step, inputs(), state=lambda: [type(each.late) for each in kept])


@program(refused="leaves the step")
def an_object_of_a_class_with_a_number_is_kept():
    kept = []

    def step(x, k):
        class Late:
            late = [k, {"k": k}]
            get = staticmethod(lambda: k)
            reported = property(lambda self: k)

        kept.append(Late())
        return x * Late.late[0]

    return Program(step, inputs(), state=lambda: [(each.late, each.get(), each.reported) for each in kept])


@program(speculated=0)
def a_class_with_a_number_is_a_key():
    kept = {}

    def step(x, k):
        class Late:
            late = k

        kept[Late] = 1
        return x * Late.late

    return Program(step, inputs(), state=lambda: [type(each.late) for each in kept])


@program(speculated=0)
def a_class_made_by_type_is_kept():
    kept = []

    def step(x, k):
        made = type("Made", (), {"late": k})
        kept.append(made())
        return x * made.late

    return Program(step, inputs(), state=lambda: [type(each.late) for each in kept])


@program(speculated=0)
def a_class_that_its_metaclass_keeps():
    class Keeping(type):
        single = {}

        def __call__(cls):
            if cls not in Keeping.single:
                Keeping.single[cls] = super().__call__()
            return Keeping.single[cls]

    class Base(metaclass=Keeping):
        pass

    def step(x, k):
        class Late(Base):
            late = k

        return x * Late().late

    return Program(step, inputs(), state=lambda: [type(each.late) for each in Keeping.single])


@program(speculated=0)
def classes_made_by_calls_are_of_the_module_that_calls():
    class Meta(type):
        def __new__(cls, name, bases, space):
            return super().__new__(cls, name, bases, space)

    def step(x, k):
        made = (
            type("Made", (), {}),
            Meta("Made", (), {}),
            type.__new__(type, "Made", (Shape,), {}),
            enum.Enum("Color", "red green"),
            typing.NamedTuple("Pair", [("a", int)]),
            collections.namedtuple("Pair", "a b"),
            dataclasses.make_dataclass("Record", ["a"]),
            types.new_class("Made"),
            type("Made", (), {"__module__": "elsewhere"}),
        )
        return x * k, ["here" if each.__module__ == __name__ else each.__module__ for each in made]

    return Program(step, inputs())
