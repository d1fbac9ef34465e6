"""``match`` statements and assignment expressions on staged values; variables that an iteration may not set."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import torchjanus
from tests.semantics.staged.checking import agree, grads_agree
from torchjanus import Rep

KNOWN = (torch.ones(2), Rep(int))
ROWS = ([1.0, 2.0], [-1.0, -2.0], [1.0, -1.0], [3.0, 1.0], [0.0, 0.0], [0.0, 1.0])
INPUTS = [(torch.tensor(row), n) for n in (0, 1, 2, 3, 4, 7, 9) for row in ROWS]


@dataclass
class Point:
    x: torch.Tensor
    y: int


class Kind:
    LOW, HIGH = 1, 4


def literals(x, n):
    match n:
        case 0:
            return x
        case 1 | 2:
            y = x * 2
        case k if k > 5:
            y = x - k
        case _:
            y = x + n
    return y


def dotted_names(x, n):
    match n:
        case Kind.LOW:
            x = x * 2
        case Kind.HIGH:
            x = x * 3
    return x


def truths(x, n):
    match n > 2:
        case True:
            return x
        case _:
            return x * 2


def pairs(x, n):
    match (n, x.sum()):
        case (0, s):
            return s
        case (1, s) if s > 0:
            return s * 2
        case (a, s) if s < 0:
            return s * a
        case (a, b):
            return a + b


def classes_of_numbers(x, n):
    match n:
        case bool() | float():
            return x
        case int(k) if k > 2:
            return x * k
        case int() as q:
            return x - q


def classes_of_objects(x, n):
    match Point(x.sum(), n), x:
        case Point(y=0), _:
            return x
        case Point(s, 1 | 2), z:
            return z * s
        case Point(x=s, y=k), z if s > k:
            return z - s
        case (Point(), z):
            return z * 0


def tensors(x, n):
    match x.sum():
        case 0:
            return x + 5
        case s if s > 1:
            return x * s
        case _:
            return x


def lists_of_unknown_length(x, n):
    kept = [one for one in x if one > 0]
    match kept:
        case []:
            return x.sum()
        case [one]:
            return one * 10
        case [first, *rest, last] if first > last:
            return first + len(rest)
        case [first, second, *_]:
            return first * second
    return x.sum()


def mappings(x, n):
    match {"kind": n, "x": x}:
        case {"kind": 0}:
            return x
        case {"kind": 1, "x": y} | {"kind": 3, "x": y}:
            return y * 2
        case {"other": y}:
            return y
        case _:
            return x - 1


def within_a_loop(x, n):
    total, k = x.sum() * 0, 0
    for k in range(n):
        match k % 3:
            case 0:
                continue
            case 1:
                total = total + k
            case 2 if total > 20:
                break
            case r:
                total = total * 2 + r
    return total, k


def alternatives_that_bind(x, n):
    match (n, x[0]), (n + 1, x[1]):
        case ((0, a), (_, b)) | ((_, b), (2 | 5, a)):
            return a - b
        case _:
            return x.sum()


def raising(x, n):
    match n:
        case 0 | 2:
            raise ValueError("even")
        case 1:
            return x
    return x * n


def is_true(x, n):
    known = n > 2
    if known is True:
        return x
    if n is None or known is None:
        return x * 5
    return x * 2 if (x.sum() > 0).item() is not False else x * 3


def walrus_within_and(x, n):
    if n > 1 and (m := x.sum()) > 0:
        return m * 2
    return x.sum() - 1


def walrus_within_or(x, n):
    out = []
    for k in range(n):
        if (t := x * k).sum() > 1 or (u := t - 1).sum() < -3:
            out.append(t.sum())
        else:
            out.append(u.sum())
    return out


def walrus_within_a_conditional(x, n):
    a = (b := n + 1) if n > 2 else (b := x.sum().item() * 2)
    return a, b


def walrus_of_a_while(x, n):
    k, s = 0, x.sum()
    while k < n and (s := x.sum()) < 20:
        x = x * 2 + 1
        k += 1
    return k, s


def walrus_of_a_while_alone(x, n):
    while (size := x.abs().sum()) > 0.5:
        x = x * 0.5
        if n > 5:
            continue
        x = x - x * 0.1
    return x, size


def walrus_of_an_inner_function(x, n):
    def inner(z):
        if n > 1 and (q := z * n).sum() > 0:
            return q
        return z

    return inner(x)


def found_before(x, n):
    """What an iteration leaves unset was set by an earlier one."""
    for k in range(n):
        if x.sum() > k:
            found = k
    return found


def one_of_two(x, n):
    for k in range(n):
        if x.sum() > k:
            best = x * k
        elif k == 3:
            other = x - k
            x = x + 5
    return best, other


def found_in_a_loop_within(x, n):
    for k in range(n):
        for j in range(k):
            if (x * j).sum() > 3:
                found = k + j
        x = x * 1.1
    return found


def found_and_used(x, n):
    for k in range(n):
        if k % 3 == 0:
            last = x * (k + 1)
        x = x * 0.5 + last
    return x


PROGRAMS = [
    literals, dotted_names, truths, pairs, classes_of_numbers, classes_of_objects, tensors, lists_of_unknown_length,
    mappings, within_a_loop, alternatives_that_bind, raising, is_true, walrus_within_and, walrus_within_or,
    walrus_within_a_conditional, walrus_of_a_while, walrus_of_a_while_alone, walrus_of_an_inner_function, found_before,
    one_of_two, found_in_a_loop_within, found_and_used,
]  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_both_sides(fn):
    agree(fn, KNOWN, *INPUTS)


def test_gradients():
    def f(x, n):
        match n:
            case 0:
                x = x * x
            case k if (s := x.sum()) > k:
                x = x.sin() * s
        return x.sum()

    known = (torch.ones(2, requires_grad=True), Rep(int))
    grads_agree(f, known, *((x.clone().requires_grad_(), n) for x, n in INPUTS))


def staged_reason(fn):
    with pytest.raises(torchjanus.NotStaged) as caught:
        torchjanus.staged(fn)(*KNOWN)
    refusal = caught.value.refusal
    assert refusal.place.line > fn.__code__.co_firstlineno and refusal.remedy
    return refusal.reason


def rest_of_a_mapping(x, n):
    match {"kind": n}:
        case {"kind": 0, **rest}:
            return x
    return x * 2


def set_of_what_is_kept(x, n):
    return len({k for k in range(3) if k < n})


def dictionary_of_what_is_kept(x, n):
    return len({k: x for k in range(3) if k < n})


def generator_of_what_is_kept(x, n):
    return sum(k for k in range(3) if k < n)


def two_numbers_as_objects(x, n):
    m = n + 1
    return x if m is n else x * 2


REFUSED = {
    rest_of_a_mapping: "staged-decision", set_of_what_is_kept: "staged-decision",
    dictionary_of_what_is_kept: "staged-decision", generator_of_what_is_kept: "staged-decision",
    two_numbers_as_objects: "staged-value",
}  # fmt: skip


@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_refused(fn):
    assert staged_reason(fn) == REFUSED[fn]
