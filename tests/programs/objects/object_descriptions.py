"""New objects that describe what they hold: by their own method, a dataclass's or a named tuple's."""

import collections
import logging
import operator
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.programs.harness import CALLS, Program, program

logger = logging.getLogger("reported")


@dataclass
class Metrics:
    loss: float
    rows: int = 0
    parts: list = field(default_factory=list)


@dataclass
class Outer:
    inner: Metrics
    what: Any = None


class Shown:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"Shown({self.value:.2f})"


class Said:
    def __init__(self, value):
        self.value = value

    def __str__(self):
        return f"said {self.value:.2f}"


class Place:
    def __init__(self, value):
        self.value = value

    def __index__(self):
        return int(self.value)


class Pair(tuple):
    pass


class Row(list):
    pass


class Table(dict):
    pass


Point = collections.namedtuple("Point", "a b")


def reporting(tell, state=None):
    """The first calls are all alike: what was formatted then is no constant."""
    calls = [(torch.full((4,), float(0 if k < 5 else k)),) for k in range(CALLS)]
    return Program(lambda x: tell(x.sum().item(), x), calls, state=state)


@program()
def dataclasses_as_texts():
    return reporting(lambda v, x: (str(Metrics(v, 2, [v])), f"{Outer(Metrics(v), x)!r:>80}", ascii(Metrics(v))))


@program()
def dataclasses_that_are_printed():
    return reporting(lambda v, x: print(Metrics(v), "and", [Metrics(v)]))


@program()
def named_tuples_as_texts():
    return reporting(lambda v, x: (str(Point(v, 2)), f"{Point(v, x.shape[0])}", "%s" % (Point(v, 1),)))


@program()
def objects_in_templates():
    return reporting(lambda v, x: "%s %r %.2f %-12s|%%" % (Metrics(v), Shown(v), v, Said(v)))


@program()
def one_object_in_a_template():
    return reporting(lambda v, x: ("%s" % Shown(v), "%s" % Said(v), "%r" % Metrics(v)))


@program()
def templates_with_widths():
    return reporting(lambda v, x: "%*s %.*f %5d" % (14, Shown(v), 2, v, x.shape[0]))


@program()
def templates_by_key():
    return reporting(lambda v, x: "%(loss).3f %(rows)d" % {"loss": v, "rows": x.shape[0]})


@program(speculated=0, refused="is turned into text")
def objects_in_templates_by_key():
    return reporting(lambda v, x: "%(one)s" % {"one": Shown(v)})


@program(speculated=2)
def containers_of_ones_own():
    return reporting(
        lambda v, x: (str(Pair((v,))), f"{Row([v])}", str(Table(a=v)), "%(a)s" % Table(a=v), "%s" % Pair((v,)))
    )


@program(speculated=2)
def containers_of_the_library():
    def tell(v, x):
        return [str(collections.OrderedDict(a=v)), str(collections.deque([v])), f"{collections.Counter(a=int(x[0]))}"]

    return reporting(tell)


@program(refused="is turned into text")
def objects_in_exceptions():
    def tell(v, x):
        try:
            raise ValueError(Shown(v))
        except ValueError as error:
            return str(error)

    return reporting(tell)


@program()
def objects_that_are_logged():
    return reporting(lambda v, x: logger.warning("got %s and %s", Metrics(v), Shown(v)))


@program(speculated=2, compiles=4)
def objects_as_indices():
    letters = list("abcdefghij")

    def step(x):
        place = Place(x.shape[0])
        made = letters[place : Place(x.shape[0] + 2)]
        letters[place] = letters[place].upper()
        return letters[place], made, "abcdefghij"[place], operator.index(place), (1, 2, 3, 4, 5, 6, 7)[place]

    return Program(step, [(torch.ones(2 if k < 5 else 2 + k % 3),) for k in range(CALLS)], state=letters)


@program()
def classes_of_numbers():
    return reporting(lambda v, x: (v.__class__, x.shape[0].__class__.__name__, hasattr(v, "expr"), f"{v}".__class__))
