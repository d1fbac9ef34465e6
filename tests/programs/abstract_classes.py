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


@program(refused="registers a class with an abstract one")
def registers_one():
    Shape, Square, Foreign = shapes()
    foreign = Foreign()

    def step(x):
        Shape.register(Foreign)
        return x + isinstance(foreign, Shape)

    return Program(step, calls(), state=(Shape, Square, Foreign))


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
