"""Texts that native code makes of containers, views and other objects from before the call: it reads all they hold."""

import collections
import fractions
import logging
import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from tests.programs.harness import Program, program

X = torch.tensor([0.5, -1.0, 2.0])
NUMBERS = (1, 1, 1, 1, *(2, 3) * 8)


def _shown(make: Callable[[int], Any]):
    """A step that is given another object each time, and makes its text in several ways."""

    def step(value: Any, x: torch.Tensor) -> Any:
        return x + 1, str(value), repr(value), f"{value!r:>40}", "%s" % (value,), "{}".format(value), str([value])

    return Program(step, [(make(number), X) for number in NUMBERS])


@program(speculated=3, compiles=5)
def nested_lists():
    return _shown(lambda number: [{"a": (number, [number])}])


@program(speculated=3, compiles=5)
def other_containers():
    return _shown(
        lambda number: {
            "d": collections.deque([[number]], maxlen=4),
            "o": collections.OrderedDict(a=number),
            "s": {number},
            "f": collections.defaultdict(list, a=[number]),
        }
    )


@program(speculated=3, compiles=5)
def mapping_proxies():
    return _shown(lambda number: types.MappingProxyType({"a": [number]}))


@program(speculated=3, compiles=5)
def views_of_dictionaries():
    return _shown(lambda number: {number: [number]}.items())


@program(speculated=3, compiles=5)
def slices():
    return _shown(lambda number: slice(0, number))


@program(speculated=3, compiles=5)
def exceptions():
    return _shown(lambda number: ValueError(number, [number]))


@program(refused="text-unwatched")
def getters():
    return _shown(operator.itemgetter)


@program(speculated=0)
def ordered_dictionaries_and_percent():
    def step(ordered: Any, counted: Any, x: torch.Tensor) -> Any:
        return x + 1, "%s" % ordered, "%s" % counted, "%(a)s of %(a)d" % ordered, "%s and %r" % (ordered, counted)

    return Program(step, [(collections.OrderedDict(a=k), collections.Counter(a=k), X) for k in NUMBERS])


@program(speculated=3, compiles=5)
def fractions_and_percent():
    def step(value: Any, x: torch.Tensor) -> Any:
        return x + 1, "%s" % value

    return Program(step, [(fractions.Fraction(number, 7), X) for number in NUMBERS])


@program(speculated=3, compiles=5)
def printed_within_new_lists():
    def step(old: list[Any], x: torch.Tensor) -> torch.Tensor:
        print([old], {"a": old})
        old.append(7)
        print([old, *old])
        return x + 1

    return Program(step, [([number, [number]], X) for number in NUMBERS])


@program(speculated=0)
def held_by_views_and_slices():
    """What leaves the step holds plain numbers, wherever native code keeps them."""
    kept: list[Any] = []

    def step(number: int, x: torch.Tensor) -> Any:
        part = slice(0, number)
        kept.append((part, {"a": number}.values()))
        return x[part], types.MappingProxyType({"a": number}), part, operator.itemgetter(number)

    def between(result: Any) -> None:
        _, proxy, part, _ = result
        assert type(proxy["a"]) is type(part.stop) is type(kept[-1][0].stop) is type(next(iter(kept[-1][1]))) is int
        kept.clear()

    return Program(step, [(number, X) for number in NUMBERS], between=between)


@program(speculated=3, compiles=5)
def rows_read_again_after_logging():
    """The run is refused, and reads what it has appended itself."""
    rows: list[dict[str, int]] = []
    log = logging.getLogger("program")

    def step(number: int, x: torch.Tensor) -> Any:
        row = {"step": number}
        rows.append(row)
        log.info("%(step)d", row)
        print("last", rows[-2:])
        return x + 1, f"{rows[-1]}"

    return Program(step, [(number, X) for number in NUMBERS], state=rows)
