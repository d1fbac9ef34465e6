"""Objects that say of themselves that they are of another class, by a ``__class__`` of their own: they are what their
type is, and the program alone asks what they say."""

from __future__ import annotations

import abc
import types

import pytest
import torch

import torchjanus


def no_change():
    pass


def class_prop_tuple():
    class R1:
        pass

    class P:
        n = 0

        @property
        def __class__(s):
            P.n += 1
            return R1 if P.n % 2 else int

    p = P()

    def step(x):
        return x * (isinstance(p, (str, R1)) + 2 * isinstance(p, (P,)) + 4 * isinstance(p, int)) + P.n

    return step, lambda: P.n, no_change


def class_prop_abc():
    class R1(abc.ABC):
        pass

    class R2(R1):
        pass

    class P:
        k = R2

        @property
        def __class__(s):
            return s.k

    p = P()

    def step(x):
        return x * (1 + isinstance(p, R1)) + isinstance(p, P)

    def ch():
        P.k = int if P.k is R2 else R2

    return step, lambda: 0, ch


def class_via_getattribute():
    class R:
        pass

    class P:
        def __getattribute__(s, n):
            if n == "__class__":
                return object.__getattribute__(s, "k")
            return object.__getattribute__(s, n)

    p = P()
    p.k = R

    def step(x):
        return x * (1 + isinstance(p, R))

    def ch():
        p.k = int if p.k is R else R

    return step, lambda: 0, ch


def fake_tensor_class():
    class P:
        __class__ = property(lambda s: torch.Tensor)

        def __init__(s):
            s.v = 1

        def f(s):
            s.v += 1
            return s.v

    p = P()

    def step(x):
        return x * p.f() + isinstance(p, torch.Tensor)

    return step, lambda: p.v, no_change


def fake_dict_class():
    class P:
        __class__ = property(lambda s: dict)

        def __init__(s):
            s.v = 1

        def __getitem__(s, k):
            s.v += 1
            return s.v

        def __len__(s):
            return s.v

        def __contains__(s, k):
            return True

        def __iter__(s):
            return iter([1, s.v])

    p = P()

    def step(x):
        return x * p["a"] + len(p) + (1 in p) + sum(p) + isinstance(p, dict)

    return step, lambda: p.v, no_change


def fake_module_class():
    class P:
        __class__ = property(lambda s: torch.nn.Module)

        def __init__(s):
            s.v = 1

        def __call__(s, x):
            s.v += 1
            return x * s.v

    p = P()

    def step(x):
        return p(x)

    return step, lambda: p.v, no_change


def fake_fn_class():
    class P:
        __class__ = property(lambda s: types.FunctionType)

        def __init__(s):
            s.v = 1

        def __call__(s, x):
            s.v += 1
            return x * s.v

    p = P()

    def step(x):
        return p(x)

    return step, lambda: p.v, no_change


def fake_type_class():
    class P:
        __class__ = property(lambda s: type)

        def __init__(s):
            s.v = 1

        def __call__(s, x):
            s.v += 1
            return x * s.v

        def __eq__(s, o):
            s.v += 1
            return True

        __hash__ = None

    p = P()

    def step(x):
        return p(x) + (p == 1)

    return step, lambda: p.v, no_change


def fake_int_class():
    class P:
        __class__ = property(lambda s: int)

        def __init__(s):
            s.v = 1

        def __mul__(s, o):
            s.v += 1
            return o * s.v

        def __index__(s):
            return 1

        def __bool__(s):
            s.v += 1
            return s.v % 2 == 0

    p = P()

    def step(x):
        return p * x + (3 if p else 4) + [5, 6][p]

    return step, lambda: p.v, no_change


PROGRAMS = [
    class_prop_tuple,
    class_prop_abc,
    class_via_getattribute,
    fake_tensor_class,
    fake_dict_class,
    fake_module_class,
    fake_fn_class,
    fake_type_class,
    fake_int_class,
]


def outcome(make, speculated):
    step, state, change = make()
    called = torchjanus.speculate(step, executor="replay") if speculated else step
    seen = []
    for number in range(10):
        if number in (6, 8):
            change()
        seen.append(float(called(torch.ones(()))))
    return seen, state()


@pytest.mark.parametrize("make", PROGRAMS)
def test_they_are_what_their_type_is(make):
    assert outcome(make, speculated=True) == outcome(make, speculated=False)
