"""Slots of objects that are read, written and deleted by their descriptors' own methods."""

import types

import torch

from tests.programs.harness import Program, program


class Slim:
    __slots__ = ("a",)

    def __init__(self):
        self.a = 1


class Sequence:
    """Only its length and its items."""

    def __init__(self):
        self.parts = [1, 2, 3]

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, index):
        return self.parts[index]


def inputs():
    return [(torch.ones(2),)] * 10


@program(speculated=7)
def read_and_written():
    one, member = Slim(), Slim.a

    def step(x):
        one.a += 1
        member.__set__(one, member.__get__(one) + 1)
        return x + one.a

    return Program(step, inputs(), state=one)


@program(speculated=7)
def by_the_descriptors_class():
    one, member = Slim(), Slim.a

    def step(x):
        one.a += 1
        types.MemberDescriptorType.__set__(member, one, 2 * one.a)
        return x + types.MemberDescriptorType.__get__(member, one, Slim)

    return Program(step, inputs(), state=one)


@program(speculated=7)
def deleted_and_made_anew():
    one, member = Slim(), vars(Slim)["a"]

    def step(x):
        held = one.a
        member.__delete__(one)
        there = hasattr(one, "a")
        member.__set__(one, held + 1)
        return x + one.a + there

    return Program(step, inputs(), state=one)


@program(speculated=7)
def of_an_object_that_the_step_makes():
    def step(x):
        one = Slim()
        Slim.a.__set__(one, x * 2)
        return one.a + 1

    return Program(step, inputs())


@program(speculated=4, compiles=2)
def gone_through_backwards_at_another_length():
    held = Sequence()

    def step(x, more):
        if more:
            held.parts.append(4)
        return x * len(list(reversed(held))) + sum(reversed(held))

    return Program(step, [(torch.ones(2), number == 5) for number in range(10)], state=held)
