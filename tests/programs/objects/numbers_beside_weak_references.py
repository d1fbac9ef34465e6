"""Objects with numbers of the step in them, where the program sees when objects are gone, so nothing is held."""

import collections
import weakref

import torch

from tests.programs.harness import CALLS, Program, program


class Box:
    def __init__(self, number, held=None):
        self.number, self.held = number, held


class Closing(Box):
    def __del__(self):
        self.number = None


class Slotted:
    __slots__ = ("__weakref__", "number")

    def __init__(self, number):
        self.number = number


def kept(make, count=CALLS):
    """A program that makes an object of a number of the call, and keeps it."""
    n, boxes = [0], []

    def step(x):
        n[0] += 1
        box = make(n[0] * 2)
        boxes.append(box)
        return x * 2, type(box) is Box and type(box.number) is int

    return Program(step, [(torch.randn(2),)] * count, state=(n, boxes))


@program(refused="makes a weak reference by")
def weak_reference():
    def make(number):
        box = Box(number, [number, {"n": number}])
        box.itself = weakref.ref(box)
        return box

    return kept(make)


@program(refused="makes a weak reference by finalize")
def finalizer_with_numbers():
    kept_so = []

    def make(number):
        box = Box(number, (number, f"{number}"))
        kept_so.append(weakref.finalize(box, print, number, [number]).peek()[2:])
        return box

    made = kept(make)
    made.state = (*made.state, kept_so)
    return made


@program(refused="uses the weak container WeakSet")
def weak_set():
    known = weakref.WeakSet()

    def make(number):
        box = Box(number, collections.deque([number]))
        known.add(box)
        return box

    return kept(make)


@program(refused="a WeakValueDictionary")
def weak_values():
    known = weakref.WeakValueDictionary()

    def make(number):
        box = Box(number)
        known[number] = box
        box.keys = list(known.keys())
        return box

    return kept(make)


@program(refused="a WeakKeyDictionary")
def weak_keys():
    known = weakref.WeakKeyDictionary()

    def make(number):
        box = Box(number)
        known[box] = [number]
        box.held = known[box]
        return box

    return kept(make)


@program(refused="makes a weak reference by")
def slots_and_closures():
    def make(number):
        slotted = Slotted(number)
        box = Box(number, (slotted, lambda: number))
        box.itself = weakref.ref(slotted)
        return box

    return kept(make)


@program(refused="whose class has a __del__")
def object_with_a_finalizer():
    def make(number):
        return Box(number, [Closing(number + 1, [number])])

    return kept(make)


@program(refused="makes a weak reference by")
def made_before_by_a_caller():
    def inner(box):
        box.itself = weakref.ref(box)
        return box

    def make(number):
        outer = [Box(number + 1), (number, Box(number + 2))]
        box = inner(Box(number))
        box.held = outer
        return box

    return kept(make)
