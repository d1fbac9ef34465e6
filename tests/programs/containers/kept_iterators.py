"""Iterators and generators that a step makes and keeps: gone through after the call, they show what there is then."""

import copy
import itertools
import pickle
import random

import torch

from tests.programs.harness import CALLS, Program, program


class Held:
    def __init__(self, **held):
        self.__dict__.update(held)


def inputs():
    return [(torch.randn(3),) for _ in range(CALLS)]


def kinds(value):
    """What there is, and of which exact class."""
    if isinstance(value, list | tuple):
        return [kinds(part) for part in value]
    return f"{type(value).__module__}.{type(value).__name__} {value!r}"


def kept(make, change, *held, take=lambda it: list(itertools.islice(it, 4))):
    """``make(*held)`` is made in the step; after the call ``change(*held)`` is made, and the iterator gone through."""
    box, seen = Held(), []

    def step(x):
        box.it = make(*held)
        return x * 2

    def between(_):
        change(*held)
        try:
            seen.append(kinds(take(box.it)))
        except RuntimeError as error:
            seen.append(repr(error))

    return Program(step, inputs(), state=(seen, held), between=between)


def numbers():
    return [1.0, 2.0, 3.0]


def append(held, *_):
    held.append(float(len(held)))


def increase(held, *_):
    held[0] += 1.0
    held[1] += 2.0


def grow(held):
    held[f"n{len(held)}"] = 1.0


def change_value(held):
    held["a"] += 1.0


def begun(iterator):
    next(iterator)
    return iterator


@program(speculated=0)
def an_enumeration():
    return kept(enumerate, append, numbers())


@program(speculated=0)
def an_enumeration_begun():
    return kept(lambda held: begun(enumerate(held)), increase, numbers())


@program(speculated=0)
def pairs():
    return kept(lambda held: zip(held, held), append, numbers())


@program(speculated=0)
def mapped():
    return kept(lambda held: map(str, held), increase, numbers())


@program(speculated=0)
def mapped_by_a_lambda():
    def make(held):
        factor = held[2] + 1
        return map(lambda value: value * factor, held)

    return kept(make, increase, numbers())


@program(speculated=0)
def filtered():
    return kept(lambda held: filter(None, held), append, numbers())


@program(speculated=0)
def backwards():
    return kept(reversed, increase, numbers())


@program(speculated=0)
def backwards_by_its_method():
    return kept(lambda held: held.__reversed__(), increase, numbers())


@program(speculated=0)
def sliced():
    return kept(lambda held: itertools.islice(held, 3), increase, numbers())


@program(speculated=0)
def chained():
    return kept(lambda held: itertools.chain(held, [1.0]), append, numbers())


@program(speculated=0)
def chained_from_one_list():
    return kept(
        itertools.chain.from_iterable, append, [[1.0], [2.0]], take=lambda it: len(list(itertools.islice(it, 2)))
    )


@program(speculated=0)
def accumulated():
    return kept(itertools.accumulate, increase, numbers())


@program(speculated=0)
def again_and_again():
    return kept(itertools.cycle, append, numbers())


@program(speculated=0)
def both_of_a_tee():
    return kept(lambda held: [begun(each) for each in itertools.tee(held)][1], increase, numbers())


@program(speculated=0)
def in_groups():
    return kept(itertools.groupby, increase, numbers(), take=lambda it: [(key, list(group)) for key, group in it])


@program(speculated=0)
def while_small():
    return kept(lambda held: itertools.takewhile(lambda value: value < 9, held), append, numbers())


@program(speculated=0)
def filled_up():
    return kept(lambda held: itertools.zip_longest(held, [1]), append, numbers())


@program(speculated=0)
def of_a_list_of_a_class():
    class Numbers(list):
        pass

    return kept(iter, append, Numbers(numbers()))


@program(speculated=0)
def values_of_a_dictionary():
    return kept(lambda held: iter(held.values()), change_value, {"a": 1.0, "b": 2.0})


@program(speculated=0)
def items_of_a_dictionary():
    return kept(lambda held: map(str, held.items()), change_value, {"a": 1.0, "b": 2.0})


@program(speculated=0)
def items_of_a_dictionary_that_grows():
    return kept(lambda held: zip(held.values(), held), grow, {"a": 1.0, "b": 2.0})


@program(speculated=0)
def values_in_a_generator():
    return kept(lambda held: (value * 2 for value in held.values()), change_value, {"a": 1.0, "b": 2.0})


@program(speculated=0)
def items_in_a_generator():
    return kept(lambda held: (key + str(value) for key, value in held.items()), grow, {"a": 1.0, "b": 2.0})


# -- what is suspended holds numbers of the run --------------------------------------------------------------------


def sums(held):
    total = 0.0
    for value in held:
        total += value
        yield value
        yield total, value


@program(speculated=0)
def a_generator_begun():
    return kept(lambda held: begun(sums(held)), increase, numbers())


@program(speculated=0)
def a_generator_expression_with_a_factor():
    def make(held):
        factor = held[2] + 1
        return begun(factor * value for value in held)

    return kept(make, increase, numbers())


@program(speculated=0)
def a_generator_that_delegates():
    def make(held):
        yield from held
        yield from (value + held[0] for value in held)

    return kept(lambda held: begun(make(held)), increase, numbers(), take=list)


@program(speculated=0)
def a_generator_that_is_sent_numbers():
    def make(held):
        total = held[0]
        while True:
            given = yield total
            total = total + (given or held[1])

    return kept(lambda held: begun(make(held)), increase, numbers(), take=lambda it: [it.send(3.0), it.send(None)])


@program(speculated=0)
def a_generator_with_a_text():
    def make(held):
        text = f"{held[0]}"
        while True:
            yield text
            text += str(held[1])

    return kept(lambda held: begun(make(held)), increase, numbers())


@program(speculated=0)
def numbers_of_the_run_chained():
    return kept(lambda held: itertools.chain([held[0], held[1] + 1], held), increase, numbers())


@program(speculated=0)
def numbers_of_the_run_in_pairs():
    return kept(lambda held: zip([held[0], held[1] + 1], held), increase, numbers())


def going_on(make):
    """The first call makes the iterator; each takes one from it, and uses it."""
    held = Held(n=2.0, it=None, log=[])

    def step(x):
        if held.it is None:
            held.it = make(held, x)
        value = next(held.it)
        held.log.append(value)
        return x * value, type(value) is float, value

    def between(_):
        held.n += 1.0

    return Program(step, inputs(), state=held, between=between)


def counted_from(held):
    value = held.n
    while True:
        yield value
        value = value + 1


@program()
def a_generator_of_the_first_call():
    return going_on(lambda held, x: counted_from(held))


@program()
def a_generator_of_the_first_call_that_counts_from_a_sum():
    def make(x):
        value = x.sum().item()
        while True:
            yield value
            value = value + 1

    return going_on(lambda held, x: make(x))


@program()
def numbers_of_the_first_call_again_and_again():
    return going_on(lambda held, x: itertools.cycle([held.n, held.n + 1]))


@program(speculated=0, compiles=9)
def a_number_of_the_first_call_again_and_again():
    return going_on(lambda held, x: itertools.repeat(held.n + 1))


@program()
def a_list_of_the_first_call():
    return going_on(lambda held, x: iter([held.n + k for k in range(2 * CALLS)]))


class Numbered:
    """A sequence by ``__getitem__`` alone, and by ``__len__`` backward."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        if index >= self.length:
            raise IndexError
        return index


def renewed(make):
    """The step makes a new iterator where the kept one has ended, and shuffles its list: nothing of the run after that
    is watched. It goes on with the iterator that it keeps, and with the one of its variable, which are the same."""
    box, rows, order = Held(), torch.randn(5, 3), [0, 1, 2]
    box.it = make(order)

    def step(count):
        taken, it = [], box.it
        while len(taken) < count:
            try:
                taken.append(next(box.it if len(taken) % 2 else it))
            except StopIteration:
                box.it = it = make(order)
                next(it)
                random.shuffle(order)
        return taken, rows[taken].sum()

    return Program(step, [(2 + number % 2,) for number in range(CALLS)], state=(box, order))


@program(speculated=0)
def list_iterator_renewed_where_nothing_is_watched_any_more():
    return renewed(iter)


@program(speculated=0)
def sequence_iterator_renewed_where_nothing_is_watched_any_more():
    return renewed(lambda order: iter(Numbered(4)))


@program(speculated=0)
def reversed_sequence_renewed_where_nothing_is_watched_any_more():
    return renewed(lambda order: reversed(Numbered(4)))


@program(speculated=0)
def tuple_iterator_renewed_where_nothing_is_watched_any_more():
    rows = (1, 0, 2, 4)
    return renewed(lambda order: iter(rows))


@program(speculated=0, compiles=4)
def copied_and_pickled_iterators_of_a_list():
    """Copies go through the very list, also where it changes; the position is set, and asked for."""
    box, rows, order = Held(), torch.randn(5, 3), [0, 1, 2, 3]
    box.it, box.other = iter(order), iter(())

    def step(x):
        try:
            taken = [next(box.it), next(box.other, 4)]
        except StopIteration:
            box.it = iter(order)
            next(box.it)
            box.other = copy.copy(box.it)
            order.append(order.pop(0))
            taken = [next(box.it), next(pickle.loads(pickle.dumps(box.it)), 4)]
            back = reversed(order)
            back.__setstate__(1)
            taken += back
        return taken, box.it.__length_hint__(), (rows[taken] * x).sum()

    return Program(step, inputs(), state=(box, order))
