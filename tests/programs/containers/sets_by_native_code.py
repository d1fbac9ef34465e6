"""Sets, tuples and iterators as native code makes them: the order of a set made of another, tuples and frozen sets that
are given back as they are, sets that sets are asked for, and what iterators tell of themselves."""

import collections
import copy
import operator
import pickle

import torch

from tests.programs.harness import CALLS, Program, program

SOME = set(range(0, 40_000, 1_999))
OTHERS = set(range(7, 40_000, 3_001)) | set(list(SOME)[:5])
for _one in list(SOME)[:3]:
    SOME.discard(_one)  # its table is larger than its elements need, and has gaps
KEYS = dict.fromkeys(SOME)
FROZEN = frozenset(OTHERS)


def inputs():
    return [(torch.randn(3),) for _ in range(CALLS)]


def updated(made, *others):
    made.update(*others)
    return made


@program()
def the_order_of_sets_made_of_sets():
    def step(x):
        made = [set(SOME), set(FROZEN), frozenset(SOME), {*SOME}, {*SOME, *OTHERS}, set(set(SOME)), SOME.copy()]
        return x * 2, [list(one) for one in made]

    return Program(step, inputs())


@program()
def the_order_of_sets_made_of_others():
    def step(x):
        made = [set(KEYS), set(KEYS.keys()), updated(set(), SOME), updated(set(), list(SOME)), updated(set(), KEYS)]
        return x * 2, [list(one) for one in made], list(dict.fromkeys(SOME)), copy.deepcopy(SOME)

    return Program(step, inputs())


@program()
def the_order_of_unions_and_differences():
    def step(x):
        made = [SOME | OTHERS, SOME ^ OTHERS, OTHERS - SOME, SOME & OTHERS, SOME.union(list(OTHERS)), FROZEN | SOME]
        made += [set().union(SOME, FROZEN), SOME.symmetric_difference(list(OTHERS)), set(list(SOME)) | set(OTHERS)]
        return x * 2, [list(one) for one in made]

    return Program(step, inputs())


@program()
def tuples_and_frozen_sets_are_given_back_themselves():
    held, frozen = (1, 2.5, "a"), frozenset((1, 2))

    def step(x):
        same = [tuple(held), held[:], held[0:3], held[-3:], held * 1, held + (), () + held]
        also = [frozenset(frozen), frozen.copy()]
        return x * 2, [one is held for one in same], [one is frozen for one in also], same, also

    return Program(step, inputs())


class Row(tuple):
    __slots__ = ()


class Labels(frozenset):
    pass


@program()
def of_subclasses_plain_ones_are_made():
    held, frozen = Row((1, 2.5, "a")), Labels((1, 2))

    def step(x):
        made = [tuple(held), held[:], held * 1, held + (), frozenset(frozen), frozen.copy(), frozen | frozen]
        return x * 2, [(type(one).__name__, one is held, one is frozen) for one in made]

    return Program(step, inputs())


@program(refused="an object of this class cannot be made again")
def tuples_with_numbers_that_change():
    """The numbers in the tuple are those of the call, also where it is given back itself."""

    class Held:
        pair = (0.5, 1)

    def step(x):
        whole = tuple(Held.pair)
        return x * whole[0], iter(Held.pair + ()) is None, iter(whole)

    return Program(step, inputs(), between=lambda _: setattr(Held, "pair", (Held.pair[0] + 1, 2)))


@program()
def a_set_looks_for_a_set():
    held, sought, gone = {frozenset((1,)), frozenset((2,)), 5}, {1}, {9}

    def step(x):
        found = [sought in held, held.__contains__(sought), operator.contains(held, gone), {2} in held]
        held.discard(sought)
        found.append(len(held))
        held.add(frozenset(sought))
        held.remove({2})
        held.add(frozenset((2,)))
        return x * 2, found

    return Program(step, inputs(), state=held)


@program()
def the_error_shows_the_set_itself():
    held, gone = {frozenset((1,)), 5}, {9}

    def step(x):
        shown = []
        for one in (held, set(held)):
            try:
                one.remove(gone)
            except KeyError as error:
                shown.append(error.args[0] is gone)
        return x * 2, shown

    return Program(step, inputs())


@program(speculated=5)
def a_set_that_is_looked_for_changes():
    held, sought = {frozenset((1,)), frozenset((2,))}, {1}

    def change(_):
        sought.add(9)

    def step(x):
        return x * (2 if sought in held else 3)

    return Program(step, inputs(), before={6: lambda: change(None)})


class Counted(int):
    """A number that counts how often it is hashed."""

    hashed = 0

    def __hash__(self):
        Counted.hashed += 1
        return int.__hash__(self)


@program(refused="hash")
def hashes_are_taken_over():
    keys = [Counted(n) for n in range(4)]
    some, named, frozen = set(keys), dict.fromkeys(keys), frozenset(keys)

    def step(x):
        before = Counted.hashed
        made = [set(some), set(named), frozenset(some), set(frozen), {*some, *frozen}, set(set(some))]
        hash(frozen)
        return x * 2, Counted.hashed - before, [len(one) for one in made]

    return Program(step, inputs())


def described(iterator):
    """What an iterator tells of itself, before and after a step."""
    first = operator.length_hint(iterator)
    next(iterator)
    return first, operator.length_hint(iterator), type(iterator).__name__, list(iterator), next(iterator, None)


@program(refused="leaves the step")
def iterators_tell_their_class_and_length():
    held, row = {"a": 1, "b": 2, "c": 3}, collections.deque((1, 2, 3))

    def step(x):
        found = [described(iter(held)), described(reversed(held)), described(iter(row)), described(reversed(row))]
        return x * 2, found, described(iter(SOME))

    return Program(step, inputs(), state=held)


@program(refused="leaves the step")
def iterators_are_copied_and_pickled():
    held = {"a": 1, "b": 2, "c": 3}

    def step(x):
        iterator = iter(held)
        next(iterator)
        return x * 2, list(copy.copy(iterator)), list(pickle.loads(pickle.dumps(iterator))), list(iterator)

    return Program(step, inputs())
