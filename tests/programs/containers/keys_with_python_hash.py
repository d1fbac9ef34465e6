"""Keys whose ``__hash__`` and ``__eq__`` are Python code, or their metaclass's; containers that hold themselves."""

from __future__ import annotations

import collections
import copy

import torch

from tests.programs.harness import CALLS, Program, program


def inputs():
    return [(torch.full((3,), float(n)),) for n in range(CALLS)]


class Counted:
    """Notes each question in a list."""

    asked: list[str] = []

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        Counted.asked.append("hash")
        return self.number % 3

    def __eq__(self, other):
        Counted.asked.append("eq")
        return isinstance(other, Counted) and self.number == other.number

    def __repr__(self):
        return f"counted {self.number}"


class Read:
    """Only reads."""

    def __init__(self, number):
        self.number = number

    def __hash__(self):
        return self.number % 3

    def __eq__(self, other):
        return isinstance(other, Read) and self.number == other.number


@program(refused="by code that may change something")
def a_new_key_is_stored():
    table = {}

    def step(x):
        table[Counted(len(table))] = 1
        return x + len(Counted.asked)

    return Program(step, inputs(), state=(table, Counted.asked))


@program(refused="by code that may change something")
def a_key_is_looked_up():
    keys = [Counted(n) for n in range(6)]
    table = {key: float(key.number) for key in keys}

    def step(x):
        return x * table[keys[4]] + table.get(Counted(5), 0.0) + (keys[1] in table)

    return Program(step, inputs(), state=(table, Counted.asked))


@program(refused="by code that may change something")
def methods_of_a_dictionary():
    keys = [Counted(n) for n in range(6)]
    table = {key: float(key.number) for key in keys}

    def step(x):
        last = table.pop(keys[3])
        table.setdefault(keys[3], last + 1.0)
        table.update({keys[0]: 2.0})
        del table[keys[1]]
        table[keys[1]] = 5.0
        return x * last, len(table), list(table.values())

    return Program(step, inputs(), state=(table, Counted.asked))


@program(refused="by code that may change something")
def a_set_from_before():
    keys = [Counted(n) for n in range(6)]
    held = set(keys[:4])

    def step(x):
        held.add(keys[4])
        held.discard(keys[0])
        held.add(keys[0])
        both = held & {keys[1], keys[2]}
        held.update(keys[:2])
        return x * len(held), len(both), keys[5] in held

    return Program(step, inputs(), state=Counted.asked)


@program(refused="by code that may change something")
def containers_of_the_step():
    keys = [Counted(n) for n in range(6)]

    def step(x):
        table = {key: x * key.number for key in keys}
        table[keys[2]] = x
        held = frozenset(keys)
        return table[keys[5]] + table[keys[2]], keys[0] in held, Counted(4) in table, len(held | {Counted(9)})

    return Program(step, inputs(), state=Counted.asked)


@program(refused="by code that may change something")
def keys_within_tuples():
    keys = [(Counted(n), n) for n in range(4)]
    table = dict.fromkeys(keys, 2.0)

    def step(x):
        table[keys[1]] = table[keys[1]] + 1.0
        return x * table[keys[3]], (Counted(2), 2) in table

    return Program(step, inputs(), state=(list(table.values()), Counted.asked))


@program(refused="by code that may change something")
def a_dictionary_gone_through():
    keys = [Counted(n) for n in range(4)]
    table = {key: float(key.number) for key in keys}

    def step(x):
        for key, value in table.items():
            x = x + value * key.number
        return x, dict(table) == table, len(table)

    return Program(step, inputs(), state=Counted.asked)


@program(refused="by code that may change something")
def the_hash_calls_a_method_that_counts():
    class Key:
        def __init__(self):
            self.asked = 0

        def note(self):
            self.asked += 1

        def __hash__(self):
            self.note()
            return 5

    key = Key()
    table = {key: 3.0}

    def step(x):
        return x * table[key] + key.asked

    return Program(step, inputs(), state=key)


@program()
def keys_that_only_read():
    key = Read(4)
    table = {key: 2.0}

    def step(x):
        return x * table[key] + (key in table) + table.get(key)

    return Program(step, inputs(), state=table)


@program()
def keys_whose_code_looks_into_namespaces():
    class Plain:
        def __init__(self, number):
            self.number = number

        def __hash__(self):
            return hash(tuple(vars(self).values()))

        def __eq__(self, other):
            return self.__dict__ == other.__dict__

    key = Plain(4)
    table = {key: 2.0}

    def step(x):
        return x * table[key] + table.get(key)

    return Program(step, inputs(), state=table)


class Same(type):
    """Has an ``__eq__``, and so no hash."""

    def __eq__(cls, other):
        return cls is other


@program()
def a_metaclass_without_a_hash():
    class Scale(metaclass=Same):
        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return x * self.by

    kept = Scale(2.0)

    def step(x):
        return kept(x) + Scale(3.0)(x), isinstance(kept, Scale), type(kept) is Scale, [kept] == [kept]

    return Program(step, inputs())


@program()
def a_dictionary_of_a_class_without_a_hash():
    class Table(dict, metaclass=Same):
        pass

    table = Table(a=1.0)

    def step(x):
        table["b"] = table["a"] + 1.0
        own = Table(c=3.0)
        for value in table.values():
            x = x + value
        return x * own["c"], list(own), len(table)

    return Program(step, inputs(), state=table)


class Counting(type):
    """Notes what classes are asked."""

    asked: list[str] = []

    def __eq__(cls, other):
        Counting.asked.append("eq")
        return cls is other

    def __hash__(cls):
        Counting.asked.append("hash")
        return 3

    def __call__(cls, *args):
        Counting.asked.append("call")
        return super().__call__(*args)

    def __instancecheck__(cls, value):
        Counting.asked.append("instance")
        return super().__instancecheck__(value)


@program()
def a_metaclass_that_counts():
    class Scale(metaclass=Counting):
        def __init__(self, by):
            self.by = by

        def __add__(self, other):
            return self.by + other

    def step(x):
        made = Scale(2.0)
        return x * made.by + Scale(3.0).by, isinstance(made, Scale), isinstance(x, Scale), made + 1, f"{made.by}"

    return Program(step, inputs(), state=Counting.asked)


@program(refused="by code that may change something")
def elements_are_counted():
    elements = [Counted(1), Counted(2), Counted(1)]

    def step(x):
        return x * 2, len(collections.Counter(elements)), len(Counted.asked)

    return Program(step, inputs(), state=Counted.asked)


@program(refused="by code that may change something")
def elements_are_counted_in_a_counter_from_before():
    counts = collections.Counter()

    def step(x):
        counts.update([Counted(1), Counted(4), Counted(1)])
        return x * 2, len(counts), len(Counted.asked)

    return Program(step, inputs(), state=(Counted.asked, counts))


@program()
def a_list_that_holds_itself_is_copied():
    def step(x):
        held = [x]
        held.append(held)
        made = copy.deepcopy(held)
        return made[0] * 2, made[1] is made, made is not held

    return Program(step, inputs())


@program()
def a_tuple_that_holds_itself_is_copied():
    def step(x):
        held = ([], 1)
        held[0].append(held)
        made = copy.deepcopy(held)
        return x * 2, made[0][0] is made

    return Program(step, inputs())


@program()
def a_dictionary_that_holds_itself_is_copied():
    kept = {}
    kept["self"] = kept

    def step(x):
        made = copy.deepcopy(kept)
        own = {"x": x}
        own["own"] = own
        other = copy.deepcopy(own)
        return other["x"] * 2, made["self"] is made, other["own"] is other

    return Program(step, inputs())


@program()
def an_object_that_holds_itself_is_copied():
    class Node:
        pass

    def step(x):
        node = Node()
        node.next, node.x = [node], x
        made = copy.deepcopy(node)
        return made.x * 2, made.next[0] is made, made is not node

    return Program(step, inputs())
