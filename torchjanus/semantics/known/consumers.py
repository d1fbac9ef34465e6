"""Native callables that iterate over their arguments and call functions, as plain data.

Iterating runs ``__iter__`` and ``__next__``, or ``__getitem__``. Where these are Python code, they have to be entered.
Positions are those among the positional arguments.
"""

from __future__ import annotations

import builtins
import collections
import functools
import itertools
import math
import operator
from typing import Any

__all__ = ["ASKING_LENGTH", "ASKING_LENGTH_METHODS", "CONSUMERS", "ITERATING_ALL", "METHODS", "iterated"]

# The positions of the callback and of the first iterable; None if there is none.
CONSUMERS: dict[Any, tuple[int | None, int | None]] = {
    list: (None, 0),
    tuple: (None, 0),
    set: (None, 0),
    frozenset: (None, 0),
    bytes: (None, 0),
    bytearray: (None, 0),
    enumerate: (None, 0),
    zip: (None, 0),
    map: (0, 1),
    filter: (0, 1),
    builtins.sorted: (None, 0),
    builtins.sum: (None, 0),
    builtins.any: (None, 0),
    builtins.all: (None, 0),
    builtins.min: (None, 0),
    builtins.max: (None, 0),
    functools.reduce: (0, 1),
    operator.countOf: (None, 0),
    operator.indexOf: (None, 0),
    math.prod: (None, 0),
    math.fsum: (None, 0),
    collections.deque: (None, 0),
    collections._count_elements: (None, 1),  # type: ignore[attr-defined]
    **dict.fromkeys(
        (
            itertools.chain,
            itertools.compress,
            itertools.cycle,
            itertools.islice,
            itertools.combinations,
            itertools.combinations_with_replacement,
            itertools.pairwise,
            itertools.permutations,
            itertools.product,
            itertools.tee,
            itertools.zip_longest,
        ),
        (None, 0),
    ),
    **dict.fromkeys((itertools.accumulate, itertools.groupby), (1, 0)),
    **dict.fromkeys((itertools.dropwhile, itertools.filterfalse, itertools.starmap, itertools.takewhile), (0, 1)),
}
if hasattr(itertools, "batched"):  # since Python 3.12
    CONSUMERS[itertools.batched] = (None, 0)

# Those that ask an iterable for its length first, to allocate room for the elements.
ASKING_LENGTH = frozenset(
    {list, tuple, builtins.sorted, itertools.product, itertools.permutations}
    | {bytes, bytearray, itertools.combinations, itertools.combinations_with_replacement}
)
ASKING_LENGTH_METHODS = frozenset({"extend", "join"})

# Those that take any number of iterables.
ITERATING_ALL = frozenset(
    {zip, map, itertools.chain, itertools.compress, itertools.product, itertools.zip_longest}
    | {set.update, set.union, set.intersection, set.difference}
    | {set.intersection_update, set.difference_update, frozenset.union, frozenset.intersection, frozenset.difference}
)

_OF_SETS = "union intersection difference symmetric_difference issubset issuperset isdisjoint".split()
_CHANGING_SETS = "update intersection_update difference_update symmetric_difference_update".split()

# The same for methods, by the class of their receiver.
METHODS: dict[tuple[int, str], tuple[int | None, int | None]] = {
    (id(list), "sort"): (None, None),
    (id(list), "extend"): (None, 0),
    (id(collections.deque), "extend"): (None, 0),
    (id(collections.deque), "extendleft"): (None, 0),
    (id(str), "join"): (None, 0),
    (id(type), "fromkeys"): (None, 0),
    (id(type), "from_iterable"): (None, 0),
    **{(id(cls), name): (None, 0) for cls in (set, frozenset) for name in _OF_SETS},
    **{(id(set), name): (None, 0) for name in _CHANGING_SETS},
}

# Those whose arguments are passed on as they are, and those whose first iterable is not the first argument.
_PASSING_ON = frozenset({builtins.next, itertools.repeat, itertools.count})
_FIRST = {collections.defaultdict: 1}


def iterated(fn: Any, count: int) -> range:
    """Return the positions of the arguments, of ``count``, whose elements a native callable takes. The others it passes
    on, or returns (``functools.reduce(f, elements, start)``)."""
    if fn in _PASSING_ON:
        return range(0)
    first = CONSUMERS[fn][1] if fn in CONSUMERS else _FIRST.get(fn, 0)
    assert first is not None
    return range(first, count if fn in ITERATING_ALL else min(first + 1, count))
