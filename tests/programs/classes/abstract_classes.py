"""Abstract classes: what is asked of them, and classes that are registered with them."""

from __future__ import annotations

import abc

import torch

from tests.programs.harness import Program, program


def shapes():
    class Shape(abc.ABC):
        asked = 0

        @abc.abstractmethod
        def area(self):
            return 1

    class Square(Shape):
        def __init__(self, side):
            self.side = side

        def area(self):
            return super().area() + self.side

    class Foreign:
        side = 3

    return Shape, Square, Foreign


def calls():
    return [(torch.ones(3) * i,) for i in range(10)]


@program()
def asks_for_abstract_classes():
    Shape, Square, Foreign = shapes()
    square, foreign = Square(2), Foreign()

    def step(x):
        return x * square.area() + isinstance(square, Shape) + isinstance(foreign, Shape) + issubclass(Foreign, Shape)

    return Program(step, calls(), state=(Shape, square, Foreign))


@program(speculated=5)
def asks_after_one_was_registered():
    Shape, Square, Foreign = shapes()
    foreign = Foreign()

    def step(x):
        return x + isinstance(foreign, Shape)

    return Program(step, calls(), before={5: lambda: Shape.register(Foreign)}, state=(Shape, Square, Foreign))


@program()
def registers_one():
    Shape, Square, Foreign = shapes()
    foreign = Foreign()

    def step(x):
        Shape.register(Foreign)
        return x + isinstance(foreign, Shape)

    return Program(step, calls(), state=(Shape, Square, Foreign))


@program(speculated=5)
def registers_one_in_some_calls():
    """What is no news in one call is news in another: a class that was made between them."""
    Shape, Square, Foreign = shapes()
    held = [Foreign]

    def other():
        class Other:
            side = 5

        held[0] = Other

    def step(x):
        was = issubclass(held[0], Shape)
        Shape.register(held[0])
        return x + held[0].side + was

    return Program(step, calls(), before={8: other}, state=(Shape, Square, held))


@program()
def registers_what_is_derived():
    Shape, Square, _ = shapes()
    square = Square(2)

    def step(x):
        return x * square.area() + (Shape.register(Square) is Square)

    return Program(step, calls(), state=(Shape, Square))


@program(refused="registers a class with an abstract one")
def registers_where_a_hook_counts():
    class Shape(abc.ABC):
        asked = 0

        @classmethod
        def __subclasshook__(cls, other):
            Shape.asked += 1
            return True

    class Foreign:
        side = 3

    def step(x):
        Shape.register(Foreign)
        return x + Foreign.side

    return Program(step, calls(), state=(Shape, Foreign))


@program(refused="registers a class with an abstract one")
def registers_where_the_metaclass_counts():
    class Meta(abc.ABCMeta):
        asked = 0

        def __subclasscheck__(cls, other):
            Meta.asked += 1
            return super().__subclasscheck__(other)

    class Shape(metaclass=Meta):
        pass

    class Foreign:
        side = 3

    def step(x):
        Shape.register(Foreign)
        return x + Foreign.side + Meta.asked

    return Program(step, calls(), state=(Shape, Foreign))


@program(refused="registers a class with an abstract one")
def registers_where_a_registered_one_counts():
    class Meta(type):
        asked = 0

        def __subclasscheck__(cls, other):
            Meta.asked += 1
            return False

    class Counting(metaclass=Meta):
        pass

    class Shape(abc.ABC):
        pass

    class Foreign:
        side = 3

    Shape.register(Counting)

    def step(x):
        Shape.register(Foreign)
        Shape.register(list)
        return x + Foreign.side + Meta.asked

    return Program(step, calls(), state=(Shape, Foreign, Meta, Counting))


@program()
def makes_one_that_cannot_be_made():
    Shape, Square, Foreign = shapes()

    def step(x):
        try:
            Shape()
        except TypeError:
            return x + Square(1).area()
        return x

    return Program(step, calls(), state=(Shape, Square, Foreign))
