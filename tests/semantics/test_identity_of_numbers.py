"""``is`` between numbers: of small integers there is one object each, of others it depends on how they came to be."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from torchjanus import speculate

HOLDER = SimpleNamespace(k=3, f=1.5, text="abc")
LISTED = [3, 4]
THREE = 3


def with_a_constant(x, n):
    return x * 2, n is THREE, n is not THREE


def read_twice(x, n):
    other = n
    return x, n is other, [n][0] is n, HOLDER.k is HOLDER.k, HOLDER.f is HOLDER.f, HOLDER.text is HOLDER.text


def read_elsewhere(x, n):
    return x, n is HOLDER.k, n is LISTED[0], n is LISTED[1]


def with_a_size(x, n):
    return x, x.shape[0] is n


def with_other_things(x, n):
    return x, n is None, n is True, n is torch, n is HOLDER


def computed(x, n):
    return x, isinstance(n, int) and (n + 0) is n, isinstance(n, int) and (n * 2 // 2) is n


def decides(x, n):
    return x * 2 if n is THREE else x * 3


@pytest.mark.parametrize(
    "step", [with_a_constant, read_twice, read_elsewhere, with_a_size, with_other_things, computed, decides]
)
def test_small_numbers_are_what_they_are(step):
    fast = speculate(step, executor="replay")
    for n in (3, 3, 3, 3, 4, 5, 3, 4, 3, None, True, 3, 3, 2.5, 3, 200, -5):
        expected, found = step(torch.ones(3), n), fast(torch.ones(3), n)
        assert repr(found) == repr(expected), n
    assert fast.statistics().speculated >= 7


def test_equal_numbers_that_may_be_two_objects_are_refused():
    large = [1000]

    def step(x, n):
        return x * 2 if n is large[0] else x * 3

    fast = speculate(step, executor="replay")
    for n in (large[0],) * 6 + (int("1000"), 7, large[0]):
        assert torch.equal(step(torch.ones(3), n), fast(torch.ones(3), n))
    assert any("by identity" in str(refusal) for refusal in fast.refusals)


NAN = float("nan")
ASKED_OF_NAN = {
    "in a list": lambda n, held: n in held,
    "counted": lambda n, held: held.count(n),
    "equal lists": lambda n, held: [n] == held,
    "equal tuples": lambda n, held: (n,) == (held[0],),
    "ordered lists": lambda n, held: [n, 1] < [held[0], 2],
    "is": lambda n, held: n is held[0],
    "a set of two": lambda n, held: len({n, held[0]}),
    "in a set": lambda n, held: n in {held[0]},
    "a key": lambda n, held: {held[0]: 1}.get(n, 2),
}


@pytest.mark.parametrize("asked", ASKED_OF_NAN.values(), ids=list(ASKED_OF_NAN))
@pytest.mark.parametrize("begins", [NAN, 1.0])
def test_nan_is_found_where_it_is_the_same_object(asked, begins):
    """Containers ask whether two elements are one object, and only then whether they are equal."""
    held = [begins]

    def step(x, n):
        return x * 2, asked(n, held)

    def outcomes(fn):
        found = []
        for number in (begins,) * 5 + (NAN, NAN, float("nan"), 2.0, NAN):
            held[0] = begins if number is begins else NAN
            found.append(fn(torch.ones(1), number)[1])
        return found

    assert outcomes(speculate(step, executor="replay")) == outcomes(step)
