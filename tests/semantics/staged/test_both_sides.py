"""Each kind of branch and loop, staged, against eager on ten inputs that take both sides of every decision."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch

from tests.semantics.staged.checking import agree
from torchjanus import Protocols, Rep, Site, virtualize
from torchjanus.tracegraph.graph import is_merged, walk

X = torch.ones(3)
VECTORS = ([1.0, 2.0, 3.0], [-1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [4.0, -9.0, 1.0], [-3.0, 5.0, -0.5])
INPUTS = [(torch.tensor(v), n) for v, counts in zip(VECTORS, ((0, 3), (1, 5), (2, 0), (2, 7), (6, 1)), strict=True)
          for n in counts]  # fmt: skip


class Sides(Protocols):
    """Which ways each decision goes, and how many iterations each loop over a range has."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: dict[tuple[int, int], set[bool]] = defaultdict(set)
        self.lengths: dict[tuple[int, int], set[int]] = defaultdict(set)

    def branch(self, at: Site, value: Any) -> bool:
        decision = super().branch(at, value)
        if at.file == __file__:
            self.taken[at.line, at.column].add(decision)
        return decision

    def not_(self, at: Site, value: Any) -> bool:
        result = super().not_(at, value)
        self.taken[at.line, at.column].add(result)
        return result

    def iterate(self, at: Site, iterable: Any) -> Any:
        if isinstance(iterable, range):
            self.lengths[at.line, at.column].add(len(iterable))
        return super().iterate(at, iterable)


def if_elif_else(x, n):
    if x.sum() > 3:
        x = x * n
    elif n > 1:
        x = x + 1
    else:
        x = -x
    return x


def if_without_else(x, n):
    y = x
    if x[0] > 0:
        y = y - n
    return y + x


def if_expression(x, n):
    return x * (2 if n > 2 else 3) if x[0] > 0 else x - n


def while_numbers(x, n):
    steps = 0
    while n > 0:
        n -= 2
        steps += 1
    return x * steps, n


def while_tensor(x, n):
    while x.abs().sum() > 2:
        x = x / 2
    return x + n


def for_range(x, n):
    for k in range(n):
        x = x * 0.5 + k
    return x


def for_in_for(x, n):
    total = x
    for k in range(n):
        for j in range(k):
            total = total + x * j
    return total


def and_(x, n):
    return x + 1 if x[0] > 0 and n > 1 else x


def or_(x, n):
    return x + 1 if x[1] > 0 or n > 4 else x


def not_of(x, n):
    if not x.sum() > 0:
        n = n + 10
    return x * n


def values_of_and_or(x, n):
    m = n and n - 1
    k = m or 7
    return x * k


def chained(x, n):
    return x * 2 if 0 < n < 5 else x


def comprehension(x, n):
    return torch.stack([row * 2 if row > 0 else row - n for row in x])


def comprehension_filter(x, n):
    return sum([row * 2 for row in x if row > 0 if row < 3], torch.zeros(())) + n


def early_return(x, n):
    if n > 3:
        return x * n
    y = x + 1
    if y.sum() < 0:
        return -y
    return y / 2


def return_in_a_loop(x, n):
    for k in range(n):
        if x.sum() > 4 + k:
            return x - k
        x = x + 1
    return -x


def break_(x, n):
    k = 0
    while k < n:
        if x.sum() > 5:
            break
        x = x + 1
        k += 1
    else:
        x = x * 100
    return x, k


def continue_(x, n):
    for k in range(n):
        if k % 2 == 0:
            continue
        x = x + k
    return x


def break_and_continue(x, n):
    total = torch.zeros(())
    for k in range(n):
        if x[0] < k:
            continue
        if k > 2:
            break
        total = total + x.sum() * k
    return total


PROGRAMS = {
    if_elif_else: "switch", if_without_else: "switch", if_expression: "switch", while_numbers: "loop",
    while_tensor: "loop", for_range: "loop", for_in_for: "loop", and_: "switch", or_: "switch", not_of: "switch",
    values_of_and_or: "switch", chained: "switch", comprehension: "switch", comprehension_filter: "switch",
    early_return: "switch", return_in_a_loop: "loop", break_: "loop", continue_: "loop", break_and_continue: "loop",
}  # fmt: skip


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_both_sides(fn):
    sides = Sides()
    for args in INPUTS:
        virtualize(fn, sides)(*args)
    assert all(len(ways) == 2 for ways in sides.taken.values()), sides.taken
    assert all({0, 1} < lengths for lengths in sides.lengths.values()), sides.lengths
    assert sides.taken or sides.lengths
    staged = agree(fn, (X, Rep(int)), *INPUTS)
    assert PROGRAMS[fn] in {node.kind for node in walk(staged.graph.body) if is_merged(node)}
