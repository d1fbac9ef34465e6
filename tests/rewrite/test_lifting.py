"""Lifted code, natively and under the identity semantics, does what Python does.

PYTEST_DONT_REWRITE: what it makes of assertions has other messages.
"""

from __future__ import annotations

import contextlib

import pytest
import torch

from torchjanus.rewrite.hooks import using
from torchjanus.rewrite.hooks.lifted import lifted_form
from torchjanus.semantics.protocols.imperative import Imperative


def loops(n, k=3):
    s = 0
    out = []
    for i, j in enumerate(range(n)):
        if i % 2 == 0 and j != 4:
            continue
        if i > 7:
            break
        with torch.no_grad():
            if i == 6 and k == 99:
                return "early", i
            s += i
        t = s
        out.append(t if t % 3 else -t)
    else:
        s += 1000
    while True:
        s += 1
        if 0 < s < 20 or s % 5 == 0:
            break
    return s, out, [a * b for a, b in zip(out, out, strict=True) if a if b > 0]


def errors(n):
    log = []
    try:
        for q in [1, 2, n]:
            if q == 5:
                return "five", log
            if q > 3:
                raise ValueError(q)
            log.append(q)
        del q
    except ValueError as e:
        log.append(str(e))
    else:
        log.append("none")
    finally:
        log.append("end")
    return log


def unset(n):
    if n > 3:
        y = 1
    return y


def closures(n):
    total = 0

    def add(k):
        nonlocal total
        if k > 1:
            total += k
        return total

    made = [lambda x, k=k: x + k for k in range(n) if k % 2]
    for f in made:
        add(f(1))
    return total, [f(2) for f in made]


def classes(n):
    class A:
        for name in ("a", "b"):
            if name == "b":
                break

        def m(self):
            return 1

    class B(A):
        def m(self):
            if n > 3:
                return super().m() + 1
            return 0

    return B().m(), B.name


def generators(n):
    def numbers():
        for k in range(n):
            if k == 2:
                continue
            got = yield k
            if got:
                return

    return list(numbers()), sum(k for k in numbers() if k % 2)


def nested_finally(n):
    log = []
    for k in range(n):
        with contextlib.suppress(KeyError):
            try:
                if k == 1:
                    continue
                if k == 3:
                    break
                {}[k]
            finally:
                log.append(k)
    return log


def matched(n):
    match n:
        case 0:
            return "zero"
        case int() if n > 5:
            found = "large"
        case _:
            found = "small"
    return found


def asserted(n):
    assert n < 4, f"{n} is large"
    return n


def else_of_while(n):
    while n > 2:
        n -= 1
        if n == 4:
            break
    else:
        return "ended"
    return n


CASES = [
    loops, errors, unset, closures, classes, generators, nested_finally, matched, asserted, else_of_while,
]  # fmt: skip


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as error:
        return isinstance(error, NameError) or type(error), None if isinstance(error, NameError) else str(error)


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_lifted_code_does_what_python_does(fn):
    lifted = lifted_form(fn)
    assert lifted.__code__ is not fn.__code__
    for n in range(10):
        expected = outcome(fn, n)
        assert outcome(lifted, n) == expected
        with using(Imperative()):
            assert outcome(lifted, n) == expected


def test_arguments():
    for k in (3, 99):
        assert lifted_form(loops)(9, k) == loops(9, k)
