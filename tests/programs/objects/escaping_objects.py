"""New objects that count accesses and escape from the step; iterators; descriptors and slots as Python calls them."""

from __future__ import annotations

import copy
import copyreg
import functools
import pickle
import sys
import types

import torch

from tests.programs.harness import Program, program

ASKED: list[str] = []


def calls(count=10):
    return [(torch.linspace(-1, 1, 4) + i,) for i in range(count)]


class Counting:
    """Gives what it is asked for to a descriptor that is no function."""

    def __get__(self, obj, owner=None):
        def getter(name):
            ASKED.append(name)
            return object.__getattribute__(obj, name)

        return getter


class ByDescriptor:
    __getattribute__ = Counting()


class ByFunction:
    def __getattribute__(self, name):
        ASKED.append(name)
        return object.__getattribute__(self, name)


class InSlots:
    __slots__ = ("a", "b")

    def __getattribute__(self, name):
        ASKED.append(name)
        return object.__getattribute__(self, name)


class Sequence:
    def __init__(self, n):
        self.n = n

    def __getitem__(self, index):
        if 0 <= index < self.n:
            return index * 2.0
        raise IndexError

    def __len__(self):
        return self.n


class Counter:
    def __init__(self):
        self.i = 0

    def __call__(self):
        self.i += 1
        return self.i


def returning(cls):
    def step(x):
        one = cls()
        one.a = x * 2
        return one, x + 1

    return Program(step, calls(), state=(ASKED,))


@program()
def returned_with_a_descriptor():
    return returning(ByDescriptor)


@program()
def returned_with_a_function():
    return returning(ByFunction)


@program()
def returned_with_slots():
    return returning(InSlots)


@program()
def stored_in_a_list():
    kept: list[object] = []

    def step(x):
        one = ByFunction()
        one.a = x * 2
        kept.append(one)
        return x + 1

    return Program(step, calls(), state=(ASKED, kept))


@program(speculated=0)
def given_to_native_code():
    def step(x):
        one = ByFunction()
        held = sorted([one, one], key=id)
        return x + len(held)

    return Program(step, calls(), state=(ASKED,))


@program(speculated=0)
def module_with_a_getattribute():
    log: list[str] = []

    class Module(types.ModuleType):
        def __getattribute__(self, name):
            log.append(name)
            return types.ModuleType.__getattribute__(self, name)

        def __setattr__(self, name, value):
            log.append(f"{name} is set")
            types.ModuleType.__setattr__(self, name, value)

        def __delattr__(self, name):
            log.append(f"{name} is deleted")
            types.ModuleType.__delattr__(self, name)

    module = Module("module")

    def step(x):
        module.scale = 3.0
        y = x * module.scale
        del module.scale
        return y, hasattr(module, "scale")

    return Program(step, calls(), state=(log,))


@program(speculated=0)
def module_with_a_getattr():
    class Module(types.ModuleType):
        def __getattr__(self, name):
            if name == "scale":
                return 4.0
            raise AttributeError(name)

    module = Module("module")

    def step(x):
        return x * module.scale, hasattr(module, "none"), module.__name__

    return Program(step, calls())


@program(speculated=0)
def builtin_as_a_descriptors_get():
    class Typed:
        __get__ = isinstance  # Python calls it with three: a TypeError

    class Length:
        __get__ = max

    class Held:
        typed = Typed()
        length = Length()

    def step(x):
        try:
            made = Held().typed
        except TypeError as error:
            made = str(error)
        return x, made

    return Program(step, calls())


@program(speculated=0)
def slot_of_object_for_a_class():
    class Kind(type):
        def __setattr__(cls, name, value):
            object.__setattr__(cls, name, value)

    class Base:
        pass

    class Mixed(Base, Kind):
        pass

    made = Mixed("Made", (object,), {})

    def step(x):
        try:
            made.a = 1
        except TypeError:
            return x + 1
        return x

    return Program(step, calls())


@program(speculated=0)
def reduced_by_each_protocol():
    class Plain:
        pass

    def step(x):
        one = Plain()
        one.a = 3
        found = []
        for protocol in range(5):
            parts = one.__reduce_ex__(protocol)
            found.append((parts[0] is copyreg.__newobj__, len(parts), parts[2]))
        return x, found

    return Program(step, calls())


@program(speculated=0)
def reduced_by_no_protocol():
    class Plain:
        pass

    def step(x):
        reported = []
        for given in ((), ("2",), (2, 3)):
            try:
                Plain().__reduce_ex__(*given)
            except TypeError as error:
                reported.append(str(error))
        return x, reported

    return Program(step, calls())


@program(speculated=0)
def iterator_by_index_is_pickled():
    def step(x):
        it = iter(Sequence(4))
        total = next(it)
        rest = pickle.loads(pickle.dumps(it))
        return x + total, list(rest), list(it), list(pickle.loads(pickle.dumps(it)))

    return Program(step, calls())


@program(speculated=0)
def iterator_by_index_is_copied():
    def step(x):
        it = iter(Sequence(4))
        next(it)
        other = copy.copy(it)
        return x, list(other), list(it), type(other) is type(it)

    return Program(step, calls())


@program(speculated=0)
def iterator_by_index_is_set():
    def step(x):
        it = iter(Sequence(4))
        it.__setstate__(2)
        first = next(it)
        it.__setstate__(-5)
        return x, first, it.__length_hint__(), list(it)

    return Program(step, calls())


@program(speculated=0)
def iterator_backwards_is_set():
    def step(x):
        it = reversed(Sequence(4))
        it.__setstate__(1)
        return x, it.__length_hint__(), list(it), list(copy.copy(it))

    return Program(step, calls())


@program(speculated=0)
def iterator_of_calls_is_pickled():
    def step(x):
        it = iter(Counter(), 4)
        next(it)
        return x, list(pickle.loads(pickle.dumps(it))), list(it), list(copy.copy(it))

    return Program(step, calls())


@program(speculated=0)
def iterator_of_calls_ends_within_a_call():
    def step(x):
        deep = [False]

        def call():
            if deep[0]:
                return 2
            deep[0] = True
            list(held[0])
            return 1

        held = [iter(call, 2)]
        try:
            next(held[0])
        except StopIteration:
            return x + 1
        return x

    return Program(step, calls())


@program(speculated=0)
def classes_of_iterators():
    def step(x):
        one, other = iter(Sequence(2)), iter(Counter(), 2)
        return x, type(one) is type(iter(Sequence(1))), type(one).__name__, type(other).__name__

    return Program(step, calls())


@program(speculated=0)
def lists_that_comparing_makes_shorter():
    def step(x):
        class Emptying:
            def __init__(self, answer, *lists):
                self.answer, self.lists = answer, lists

            def __eq__(self, other):
                for each in self.lists:
                    each.clear()
                return self.answer

        reported = []
        for answer in (True, False, NotImplemented):
            for unequal in (False, True):
                one, other = [], []
                one.append(Emptying(answer, other))
                other.append(Emptying(answer, one))
                reported.append(one != other if unequal else one == other)
                one, other = [], [1]
                one.append(Emptying(answer, one))
                reported.append((one == other, one, other))
                one, other = [], [1, 2]
                one.extend((Emptying(answer, other), 2))
                reported.append((one != other, len(one), other))
        return x, reported

    return Program(step, calls())


@program()
def builtin_behind_a_deleted_global():
    def step(x):
        global abs
        abs = torch.neg
        y = abs(x)
        del abs
        return y, abs(-3.0), abs(x)  # noqa: F821

    return Program(step, calls())


@program()
def error_class_behind_a_deleted_global():
    def step(x):
        global AssertionError
        AssertionError = ValueError
        del AssertionError
        return x + 1, isinstance(TypeError(), AssertionError), AssertionError  # noqa: F821

    return Program(step, calls())


@program(speculated=0)
def dictionaries_that_comparing_empties():
    def step(x):
        class Emptying:
            def __init__(self, answer, *maps):
                self.answer, self.maps = answer, maps

            def __hash__(self):
                return 13

            def __eq__(self, other):
                for each in self.maps:
                    each.clear()
                return self.answer

        reported = []
        for answer in (True, False, NotImplemented):
            one, other = {}, {}
            one[0] = Emptying(answer, other)
            other[0] = Emptying(answer, one)
            reported.append((one == other, len(one), len(other)))
            one, other = {}, {0: set()}
            one[0] = Emptying(answer, one)
            reported.append((one != other, len(one), len(other)))
            one = {}
            one[Emptying(answer, one)] = 0
            reported.append((one == {Emptying(answer): 0}, len(one)))
        return x, reported

    return Program(step, calls())


class Recorded:
    """A descriptor that says what it is read with."""

    def __get__(self, instance, owner=None):
        return lambda: (instance, owner)


@program(speculated=0)
def class_method_of_a_descriptor():
    class Meta(type):
        pass

    class Owner(metaclass=Meta):
        plain = classmethod(len)

    if sys.version_info < (3, 13):
        Owner.read = classmethod(Recorded())
        Owner.twice = classmethod(classmethod(Recorded()))

    def step(x):
        reported = []
        for name in ("read", "twice"):
            for one in (Owner, Owner()):
                if hasattr(one, name):
                    reported.extend(each.__name__ for each in getattr(one, name)())
        return x, reported

    return Program(step, calls())


@program(speculated=0)
def partial_methods_say_whose_they_are():
    def scaled(*args, by):
        return args[1] * by

    class Owner:
        direct = functools.partialmethod(scaled, by=2.0)
        nested = functools.partialmethod(direct)
        partial = functools.partialmethod(functools.partial(scaled, by=3.0))

    one = Owner()

    def step(x):
        reported = [getattr(one, name).__self__ is one for name in ("direct", "nested", "partial")]
        return one.direct(x) + one.nested(x) + one.partial(x), reported

    return Program(step, calls())
