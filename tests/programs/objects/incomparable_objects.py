"""Objects that cannot be compared: watching compares none. C methods called on objects that override them."""

from __future__ import annotations

import functools
import io

import torch

from tests.programs.harness import Program, program


def calls():
    return [(torch.ones(3) * i,) for i in range(10)]


@program(speculated=0)
def keys_that_only_compare_with_their_like():
    key = functools.cmp_to_key(lambda a, b: b - a)

    def step(x):
        k = key(10)
        return x + (k < key(3))

    return Program(step, calls())


@program()
def called_objects_that_cannot_be_compared():
    class Callee:
        def __call__(self, x):
            return x + 1

        def __eq__(self, other):
            raise ValueError("not to be compared")

    callee = Callee()

    def step(x):
        return callee(x)

    return Program(step, calls())


@program(speculated=0)
def streams_in_the_step():
    class Out(io.StringIO):
        def truncate(self, size=None):
            self.seek(size)
            io.StringIO.truncate(self)

    def step(x):
        out = Out()
        out.write("abc")
        out.truncate(0)
        out.write("d")
        return x, out.getvalue()

    return Program(step, calls())
