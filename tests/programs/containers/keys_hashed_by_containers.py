"""Keys whose Python code runs when containers are built or compared: what it reads may differ at each call."""

from __future__ import annotations

import collections

import torch

from tests.programs.harness import CALLS, Program, program

NATIVE = "native code asks a Key for what only Python code answers"
NEW = "uses a new Key as a key"


class Key:
    """All have one hash, and are equal if they hold the same."""

    def __init__(self, held):
        self.held = held

    def __hash__(self):
        return 7

    def __eq__(self, other):
        return isinstance(other, Key) and self.held == other.held

    def __repr__(self):
        return f"key {self.held}"


def asked(ask):
    """A step that changes one of two keys, and asks containers that hold them."""
    number = [0]
    a, b = Key(3), Key(4)
    first, second, table, other = {a}, {b}, {a: 1}, {b: 2}

    def step(x):
        number[0] += 1
        b.held = number[0] % 4
        return x + ask(number, a, b, first, second, table, other)

    return Program(step, [(torch.ones(2),)] * CALLS, state=(number, a, b))


@program(refused=NATIVE)
def a_set_of_a_list():
    def ask(number, a, b, first, second, table, other):
        return len(set([a, b]))

    return asked(ask)


@program(refused=NATIVE)
def a_set_of_a_generator():
    def ask(number, a, b, first, second, table, other):
        return len(set(key for key in (a, b)))

    return asked(ask)


@program(refused=NATIVE)
def fromkeys():
    def ask(number, a, b, first, second, table, other):
        return len(dict.fromkeys([a, b]))

    return asked(ask)


@program(refused=NATIVE)
def a_dictionary_of_pairs():
    def ask(number, a, b, first, second, table, other):
        return len(dict([(a, 1), (b, 2)]))

    return asked(ask)


@program(refused=NATIVE)
def a_dictionary_of_zipped_keys():
    def ask(number, a, b, first, second, table, other):
        return len(dict(zip([a, b], [1, 2])))

    return asked(ask)


@program(refused=NATIVE)
def an_ordered_dictionary():
    def ask(number, a, b, first, second, table, other):
        return len(collections.OrderedDict([(a, 1), (b, 2)]))

    return asked(ask)


@program(refused=NATIVE)
def sets_united():
    def ask(number, a, b, first, second, table, other):
        return len(first | second)

    return asked(ask)


@program(refused=NATIVE)
def sets_intersected():
    def ask(number, a, b, first, second, table, other):
        return len(first & second)

    return asked(ask)


@program(refused=NATIVE)
def a_set_without_another():
    def ask(number, a, b, first, second, table, other):
        return len(first - second)

    return asked(ask)


@program(refused=NATIVE)
def what_one_of_two_sets_has():
    def ask(number, a, b, first, second, table, other):
        return len(first ^ second)

    return asked(ask)


@program(refused=NATIVE)
def a_union_with_a_list():
    def ask(number, a, b, first, second, table, other):
        return len(first.union([b]))

    return asked(ask)


@program(refused=NATIVE)
def a_union_of_a_new_set():
    def ask(number, a, b, first, second, table, other):
        return len(set().union([a, b]))

    return asked(ask)


@program(refused=NATIVE)
def a_subset():
    def ask(number, a, b, first, second, table, other):
        return first.issubset(second)

    return asked(ask)


@program(refused=NATIVE)
def disjoint():
    def ask(number, a, b, first, second, table, other):
        return first.isdisjoint([b])

    return asked(ask)


@program(refused=NATIVE)
def a_frozen_set_united():
    def ask(number, a, b, first, second, table, other):
        return len(frozenset(first) | {b})

    return asked(ask)


@program(refused=NATIVE)
def dictionaries_united():
    def ask(number, a, b, first, second, table, other):
        return len(table | other)

    return asked(ask)


@program(refused=NATIVE)
def dictionaries_equal():
    def ask(number, a, b, first, second, table, other):
        return table == {b: 1}

    return asked(ask)


@program(refused=NATIVE)
def an_item_of_a_view():
    def ask(number, a, b, first, second, table, other):
        return (b, 1) in table.items()

    return asked(ask)


@program(refused=NATIVE)
def keys_of_views_intersected():
    def ask(number, a, b, first, second, table, other):
        return len(table.keys() & other.keys())

    return asked(ask)


@program(refused=NATIVE)
def a_chained_mapping():
    def ask(number, a, b, first, second, table, other):
        return len(collections.ChainMap(table, other))

    return asked(ask)


@program(speculated=5)
def a_display():
    def ask(number, a, b, first, second, table, other):
        return len({a, b})

    return asked(ask)


@program(refused=NEW)
def a_display_of_new_keys():
    def ask(number, a, b, first, second, table, other):
        return len({Key(number[0] % 4), Key(3)})

    return asked(ask)


@program(refused=NEW)
def tuples_of_new_keys():
    def ask(number, a, b, first, second, table, other):
        return len({(Key(number[0] % 4), 1), (Key(3), 1)})

    return asked(ask)


@program(speculated=5)
def a_dictionary_display():
    def ask(number, a, b, first, second, table, other):
        return len({a: 1, b: 2})

    return asked(ask)


@program(refused=NEW)
def a_dictionary_of_new_keys():
    def ask(number, a, b, first, second, table, other):
        return len({Key(number[0] % 4): 1, Key(3): 2})

    return asked(ask)


@program(speculated=5)
def a_comprehension():
    def ask(number, a, b, first, second, table, other):
        return len({key for key in (a, b)})

    return asked(ask)


@program(refused=NEW)
def a_comprehension_of_new_keys():
    def ask(number, a, b, first, second, table, other):
        return len({Key(each * number[0] % 4) for each in range(3)})

    return asked(ask)


@program(speculated=5)
def a_dictionary_comprehension():
    def ask(number, a, b, first, second, table, other):
        return len({key: 1 for key in (a, b)})

    return asked(ask)


@program(speculated=5)
def sets_unpacked():
    def ask(number, a, b, first, second, table, other):
        return len({*first, *second})

    return asked(ask)


@program(speculated=5)
def dictionaries_unpacked():
    def ask(number, a, b, first, second, table, other):
        return len({**table, **other})

    return asked(ask)


@program(speculated=5)
def counted():
    def ask(number, a, b, first, second, table, other):
        return len(collections.Counter([a, b]))

    return asked(ask)


@program(speculated=5)
def a_key_of_a_list():
    def ask(number, a, b, first, second, table, other):
        return b in [a]

    return asked(ask)


@program(speculated=5)
def an_item_is_stored():
    def ask(number, a, b, first, second, table, other):
        made = {a: 1}
        made[b] = 2
        return len(made)

    return asked(ask)


@program(speculated=5)
def a_default_is_set():
    def ask(number, a, b, first, second, table, other):
        made = {a: 1}
        made.setdefault(b, 2)
        return len(made)

    return asked(ask)


@program(speculated=5)
def an_element_is_added():
    def ask(number, a, b, first, second, table, other):
        made = {a}
        made.add(b)
        return len(made)

    return asked(ask)


@program(refused=NATIVE)
def a_new_dictionary_is_updated():
    def ask(number, a, b, first, second, table, other):
        made = {}
        made.update(table)
        made.update(other)
        return len(made)

    return asked(ask)


@program(refused=NATIVE)
def a_set_is_updated():
    def ask(number, a, b, first, second, table, other):
        made = {a}
        made.update([b])
        return len(made)

    return asked(ask)


@program(speculated=5)
def a_key_is_taken_out():
    def ask(number, a, b, first, second, table, other):
        made = {a: 1}
        taken = made.pop(b, 5)
        return taken

    return asked(ask)
