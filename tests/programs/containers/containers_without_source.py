"""Containers whose methods are written in Python and never entered: made by ``exec``, or by a library that is left
native. Their operators are the container's own, not those of the builtin type below it."""

from __future__ import annotations

import enum

import torch

from tests.programs.harness import Program, program

SOURCE = """
class Noting:
    called = []

class Table(dict):
    def __setitem__(self, key, value):
        Noting.called.append(("set", key))
        dict.__setitem__(self, key, value * 2)
    def __getitem__(self, key):
        Noting.called.append(("get", key))
        return dict.__getitem__(self, key) + 1
    def __delitem__(self, key):
        Noting.called.append(("del", key))
        dict.pop(self, key, None)
    def __contains__(self, key):
        Noting.called.append(("in", key))
        return True
    def __len__(self):
        return 7
    def __iter__(self):
        return iter((1, 2))
    def __or__(self, other):
        return 5
    def __eq__(self, other):
        return True

class Row(list):
    def __setitem__(self, key, value):
        Noting.called.append(("set", key))
        list.__setitem__(self, key, value * 2)
    def __getitem__(self, key):
        Noting.called.append(("get", key))
        return list.__getitem__(self, key) + 1
    def __len__(self):
        return 7
    def __bool__(self):
        return False
    def __add__(self, other):
        return 5
    def __iadd__(self, other):
        Noting.called.append("iadd")
        return self

class Bag(set):
    def __contains__(self, key):
        return True
    def __len__(self):
        return 7
    def __iter__(self):
        return iter((1, 2))
    def __or__(self, other):
        return 5
"""


def made():
    namespace = {"__name__": "without_source"}
    exec(SOURCE, namespace)
    return [namespace[name] for name in ("Noting", "Table", "Row", "Bag")]


def calls():
    return [(torch.ones(3) * i,) for i in range(8)]


@program(speculated=0)
def dictionary_of_its_own_kind():
    noting, table, _, _ = made()
    held = table({0: 1})

    def step(x):
        held[1] = 3
        del held[4]
        found = "no" in held
        return x * held[1] + held[0], found, len(held), [*held], held | {}, held == 3, list(noting.called)

    return Program(step, calls(), state=(held, noting))


@program(speculated=0)
def dictionary_made_in_the_step():
    noting, table, _, _ = made()

    def step(x):
        held = table({0: 1})
        held[1] = 3
        return x * held[1] + held[0], 9 in held, len(held), sum(key for key in held), len(noting.called)

    return Program(step, calls(), state=(noting,))


@program(speculated=0)
def list_of_its_own_kind():
    noting, _, row, _ = made()
    held = row([1, 2, 3])

    def step(x):
        nonlocal held
        held[1] = 3
        held += [4]
        return x * held[1], len(held), not held, held + [1], list(noting.called)

    return Program(step, calls(), state=(held, noting))


@program(speculated=0)
def set_of_its_own_kind():
    _, _, _, bag = made()
    held = bag([3])

    def step(x):
        return x * len(held), 9 in held, [*held], held | {1}

    return Program(step, calls(), state=(held,))


@program(speculated=0)
def members_through_the_namespace_of_an_enum():
    def step(x):
        class Color(enum.Enum):
            _ignore_ = "names"
            names = vars()
            names["RED"] = 1
            for i in range(2, 4):
                names[f"COLOR_{i}"] = i
            del i

        return x * len(Color.__members__), [each.name for each in Color], isinstance(Color.RED, Color)

    return Program(step, calls())
