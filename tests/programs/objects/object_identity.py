"""Objects that compare by identity: what a program does depends on which are the same, or were met before."""

import collections
import copy
import operator
import types

import torch
from torch import nn

from tests.programs.harness import Program, program

RUN_ONE_IN = 12  # Each takes a second or two, or is much like the others.


class Node:
    def __init__(self, value):
        self.value = torch.full((2,), float(value))
        self.children = []
        self.number = value

    def __repr__(self):
        return f"node {self.number}"

    def doubled(self):
        return self.value * 2


def pairs(calls=16, same=8):
    """Two nodes each, which are one from some call on, every other time."""
    nodes = [(Node(k), Node(k + 1)) for k in range(calls)]
    return [(a, a if k >= same and k % 2 else b) for k, (a, b) in enumerate(nodes)]


KNOWN: set = set()  # what is known before the first call, or gathered in calls
VISITS: dict = {}
HIDDEN = types.ModuleType("hidden")  # what holds addresses: no two runs have the same
# Nodes that are met once; some of them again.
ORDER = (0, 3, 4, 5, 6, 1, 7, 2, 8, 9, 1, 3, 2, 10)


def singles(nodes):
    return [(nodes[k],) for k in ORDER]


@program(speculated=11, compiles=2)
def equal():
    def step(a, b):
        return a.value * 2 if a == b else a.value * 3

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def not_equal():
    def step(a, b):
        return a.value * 3 if a != b else a.value * 2

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def equal_in_tuples_and_lists():
    def step(a, b):
        return a.value * ((a, 1) == (b, 1)), [a] == [b], {(a, 1): 2}.get((b, 1), 0)

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def methods_of_one_object():
    def step(a, b):
        return a.value * (a.doubled == b.doubled)

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def compared_by_the_operator_module():
    def step(a, b):
        return a.value * operator.is_(a, b), operator.is_not(a, b), operator.eq(a, b)

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def ids_compared():
    def step(a, b):
        return a.value * 2 if id(a) == id(b) else a.value * 3

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def hashes_compared():
    def step(a, b):
        return a.value * (hash(a) == hash(b))

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def keys_of_a_new_dictionary():
    def step(a, b):
        memo = {a: 1}
        return a.value * 2 if b in memo else a.value * 3

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def ids_as_keys():
    def step(a, b):
        memo = {id(a): 1}
        return a.value * 2 if id(b) in memo else a.value * 3

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def counted_by_sets():
    def step(a, b):
        return a.value * len({a, b}), len(set([a]) | {b}), len({a} & {b}), len(set(map(id, (a, b))))

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def keys_that_native_code_puts():
    def step(a, b):
        more = {}
        more.update(zip([a, b], [1, 2], strict=True))
        return a.value * len(dict(zip([a, b], [1, 2], strict=True))), len(dict.fromkeys([a, b])), len(more)

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def counted_by_counters():
    def step(a, b):
        counts, found = collections.Counter([a, b]), collections.defaultdict(list)
        for node in (a, b):
            found[node].append(node.value)
        return a.value * counts[a], counts.most_common(1)[0][1], sum(len(rows) for rows in found.values()), len(found)

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def looked_for_in_a_new_list():
    def step(a, b):
        known = [a]
        if b not in known:
            known.append(b)
        both = [a, b]
        both.remove(b)
        return a.value * len(known), known.count(b), [a, b].index(b), both[0].value * 2

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def computed_once():
    def step(a, b):
        memo, computed = {}, 0
        for node in (a, b):
            if id(node) not in memo:
                memo[id(node)] = node.value * 2
                computed += 1
        return memo[id(a)] + memo[id(b)], computed

    return Program(step, pairs())


@program(speculated=11, compiles=2)
def tensors_as_keys():
    def step(a, b):
        memo = {a.value: 1}
        return a.value * 2 if b.value in memo else a.value * 3, id(a.value) == id(b.value)

    return Program(step, pairs())


@program(speculated=4, compiles=4)
def parameters_shared_by_modules():
    layers = [nn.Linear(2, 2) for _ in range(3)]

    def step(a, b, x):
        seen = {id(p): p for layer in (a, b) for p in layer.parameters()}
        with torch.no_grad():
            return sum(p.sum() for p in seen.values()) + x.sum(), len(seen)

    x = torch.ones(2)
    return Program(
        step, [*[(layers[0], layers[1], x)] * 5, *[(layers[0], layers[0], x)] * 4, (layers[1], layers[2], x)]
    )


@program(speculated=9, compiles=2)
def a_list_that_holds_itself():
    def step(a, b):
        a.append(b)
        return torch.ones(2) * len(a), len(b)

    lists = [([1.0], [1.0]) for _ in range(14)]
    return Program(step, [(a, a if k >= 8 and k % 2 == 0 else b) for k, (a, b) in enumerate(lists)])


@program(speculated=9, compiles=2)
def the_best_one():
    nodes = [Node(k) for k in range(12)]
    best = nodes[1]

    def step(a):
        return a.value * 2 if a == best else a.value * 3, id(a) == id(best)

    return Program(step, singles(nodes))


@program(speculated=9, compiles=2)
def ids_in_a_set_from_before():
    nodes = [Node(k) for k in range(12)]
    HIDDEN.known = {id(nodes[1]), id(nodes[2])}

    def step(a):
        return a.value * 2 if id(a) in HIDDEN.known else a.value * 3

    return Program(step, singles(nodes))


@program(speculated=0, compiles=3)
def ids_in_a_copy_of_a_set():
    nodes = [Node(k) for k in range(12)]
    HIDDEN.known = {id(nodes[1]), id(nodes[2])}

    def step(a):
        seen = set(HIDDEN.known)
        return a.value * 2 if id(a) in seen else a.value * 3

    return Program(step, singles(nodes))


@program(speculated=0, compiles=3)
def objects_in_a_set_from_before():
    nodes = [Node(k) for k in range(12)]
    KNOWN.update({nodes[1], nodes[2]})

    def step(a):
        return a.value * 2 if a in KNOWN else a.value * 3

    return Program(step, singles(nodes))


@program(speculated=7, compiles=3)
def objects_in_a_copy_of_a_set():
    nodes = [Node(k) for k in range(12)]
    KNOWN.update({nodes[1], nodes[2]})

    def step(a):
        seen = set(KNOWN)
        return a.value * 2 if a in seen else a.value * 3

    return Program(step, singles(nodes))


@program(speculated=0, compiles=3)
def a_table_of_objects():
    nodes = [Node(k) for k in range(12)]
    table = {node: k for k, node in enumerate(nodes)}

    def step(a):
        return a.value * table[a], table.get(a)

    return Program(step, singles(nodes))


@program(speculated=0, compiles=3)
def a_table_of_tensors():
    nodes = [Node(k) for k in range(12)]
    table = {node.value: k for k, node in enumerate(nodes)}

    def step(a):
        return a.value + table[a.value]

    return Program(step, singles(nodes))


@program(speculated=7, compiles=4)
def in_a_list_from_before():
    nodes = [Node(k) for k in range(12)]
    known = nodes[1:3]

    def step(a):
        return a.value * 2 if a in known else a.value * 3

    return Program(step, singles(nodes))


@program(speculated=0, compiles=0)
def seen_before():
    nodes = [Node(k) for k in range(12)]

    def step(a):
        if a in KNOWN:
            return a.value * 2
        KNOWN.add(a)
        return a.value * 3

    return Program(step, singles(nodes))


@program(speculated=0, compiles=1)
def visits_of_objects():
    nodes = [Node(k) for k in range(12)]

    def step(a):
        VISITS[a] = VISITS.get(a, 0) + 1
        return a.value * VISITS[a]

    return Program(step, singles(nodes))


@program(speculated=9, compiles=2)
def visits_by_id():
    nodes = [Node(k) for k in range(12)]
    HIDDEN.visits = {}

    def step(a):
        HIDDEN.visits[id(a)] = HIDDEN.visits.get(id(a), 0) + 1
        return a.value * HIDDEN.visits[id(a)]

    return Program(step, singles(nodes))


@program(speculated=12, compiles=2)
def a_graph_gone_through():
    """Nodes of a graph that is not a tree: each is computed once, in the order in which they are met."""
    torch.manual_seed(1)

    def graph(k):
        nodes = [Node(n) for n in range(4)]
        nodes[0].children = [nodes[1], nodes[2]]
        nodes[1].children = [nodes[3]]
        nodes[2].children = [nodes[3] if k % 3 else Node(3)]
        return nodes[0]

    def step(root):
        seen, waiting, total = set(), [root], torch.zeros(2)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            total = total * 0.5 + node.value
            waiting.extend(node.children)
        return total, len(seen)

    return Program(step, [(graph(k),) for k in range(16)])


class Settings:
    def __init__(self, number):
        self.number = number
        self.rate = 0.5 + number
        self.parts = [Node(number), Node(1)]


@program(speculated=9, compiles=1)
def deep_copies_of_objects_with_numbers():
    """A copy asks for the ``id()`` of each number, which is none that an object has."""

    def step(x, settings):
        mine = copy.deepcopy(settings)
        mine.number += 1
        return x * mine.rate + mine.parts[0].value, mine.number

    return Program(step, [(torch.ones(2), Settings(k)) for k in range(12)])
