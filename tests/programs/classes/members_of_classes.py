"""Members of classes with state of their own: descriptors, partials, bound methods, functions of properties."""

from __future__ import annotations

import functools

import torch

from tests.programs.harness import Program, program


def _changed(step, change):
    return Program(step, [torch.ones(2)] * 10, before={6: change, 8: change})


@program(speculated=7, compiles=4)
def a_native_method_in_a_variable():
    t = {"n": 1}
    g = t.get

    def step(x):
        return x * g("n")

    def change():
        t.update(n=t["n"] + 1)

    return _changed(step, change)


@program(speculated=7, compiles=4)
def a_native_method_in_a_partial():
    t = {"n": 1}
    g = functools.partial(t.get, "n")

    def step(x):
        return x * g()

    def change():
        t.update(n=t["n"] + 1)

    return _changed(step, change)


@program(speculated=7, compiles=4)
def a_native_method_in_a_partial_of_a_class():
    t = {"missing": 1}

    class A:
        __getattr__ = functools.partial(t.get)

    a = A()

    def step(x):
        return x * a.missing

    def change():
        t.update(missing=t["missing"] + 1)

    return _changed(step, change)


@program(speculated=7, compiles=4)
def an_object_under_a_special_name():
    class F:
        k = 1

        def __init__(s):
            s.n = 1

        def __call__(s, *a):
            return s.n

    held = F()

    class A:
        __len__ = held

    a = A()

    def step(x):
        return x * len(a)

    def change():
        held.n += 1

    return _changed(step, change)


@program(speculated=7, compiles=4)
def an_object_in_a_property():
    class F:
        def __init__(s):
            s.n = 1

        def __call__(s, *a):
            return s.n

    held = F()

    class A:
        p = property(held)

    a = A()

    def step(x):
        return x * a.p

    def change():
        held.n += 1

    return _changed(step, change)


@program(speculated=7, compiles=4)
def an_object_in_static_and_class_methods():
    class F:
        def __init__(s):
            s.n = 1

        def __call__(s, *a):
            return s.n

    held = F()

    class A:
        p = staticmethod(held)
        q = classmethod(held)

    a = A()

    def step(x):
        return x * a.p() * a.q() * A.p()

    def change():
        held.n += 1

    return _changed(step, change)


@program(speculated=7, compiles=4)
def bound_methods_of_another_object():
    class F:
        def __init__(s):
            s.n = 1

        def m(s, *a):
            return s.n

    held = F()

    class A:
        __call__ = held.m
        other = held.m

    a = A()

    def step(x):
        return x * a() * a.other()

    def change():
        held.n += 1

    return _changed(step, change)


@program(speculated=7, compiles=4)
def a_bound_method_in_a_property():
    class F:
        def __init__(s):
            s.n = 1

        def m(s, *a):
            return s.n

    held = F()

    class A:
        p = property(held.m)

    a = A()

    def step(x):
        return x * a.p

    def change():
        held.n += 1

    return _changed(step, change)


@program(speculated=7, compiles=4)
def a_descriptor_with_a_state():
    class F:
        def __init__(s):
            s.n = 1

        def __get__(s, o, t):
            return s.n

    held = F()

    class A:
        p = held

    a = A()

    def step(x):
        return x * a.p * A.p

    def change():
        held.n += 1

    return _changed(step, change)


@program(speculated=7, compiles=4)
def a_partial_method_of_an_object():
    class F:
        def __init__(s):
            s.n = 1

        def __call__(s, *a):
            return s.n

    held = F()

    class A:
        p = functools.partialmethod(held)

    a = A()

    def step(x):
        return x * a.p()

    def change():
        held.n += 1

    return _changed(step, change)


@program(speculated=7, compiles=4)
def a_partial_method_with_a_list():
    held = [1]

    class A:
        def f(self, h):
            return h[0]

        p = functools.partialmethod(f, held)

    a = A()

    def step(x):
        return x * a.p()

    def change():
        held[0] += 1

    return _changed(step, change)


@program(speculated=7, compiles=4)
def descriptors_of_a_metaclass():
    class F:
        def __init__(s):
            s.n = 1

        def __get__(s, o, t):
            return s.n

    held = F()

    class M(type):
        p = held
        q = property(lambda c: held.n)

    class A(metaclass=M):
        pass

    def step(x):
        return x * A.p * A.q

    def change():
        held.n += 1

    return _changed(step, change)


@program(speculated=3, compiles=4)
def another_partial_in_the_class():
    t = {"n": 1}

    class A:
        __getattr__ = functools.partial(lambda n, _: n, 1)

    a = A()

    def step(x):
        return x * a.missing

    k = [1]

    def change():
        k[0] += 1
        A.__getattr__ = functools.partial(lambda n, _: n, k[0])

    return _changed(step, change)


@program(speculated=3, compiles=4)
def another_property_in_the_class():
    class A:
        p = property(functools.partial(lambda n, _: n, 1))

    a = A()

    def step(x):
        return x * a.p

    k = [1]

    def change():
        k[0] += 1
        A.p = property(functools.partial(lambda n, _: n, k[0]))

    return _changed(step, change)


@program(speculated=7, compiles=4)
def a_class_method_over_a_property():
    class A:
        n = 1

        @classmethod
        @property
        def p(cls):
            return cls.n

    a = A()

    def step(x):
        return x * a.p * A.p

    def change():
        A.n += 1

    return _changed(step, change)


@program(speculated=7, compiles=4)
def a_class_with_items():
    class A:
        n = 1

        def __class_getitem__(cls, k):
            return cls.n + k

    def step(x):
        return x * A[1]

    def change():
        A.n += 1

    return _changed(step, change)


@program(speculated=3, compiles=4)
def bytes_of_an_object():
    class A:
        n = 1

        def __bytes__(s):
            return b"b" * s.n

    a = A()

    def step(x):
        return x * len(bytes(a))

    def change():
        A.n += 1

    return _changed(step, change)
