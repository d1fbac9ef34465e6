"""Special methods of the user's classes that native code calls in the middle of its own work: what they read decides.

Each question is asked of an object that holds another number at each call. Eager's answer changes with it; a graph that
does not look at the number gives the answer of the watched runs for ever.
"""

from __future__ import annotations

import bisect
import collections
import dataclasses
import functools
import heapq
import itertools
import math
import operator
import statistics

import pytest
import torch

import torchjanus
from tests.sampling import every

EDGE = 6


class Counted:
    """Whatever is asked of it depends on ``n``."""

    def __init__(self, n=0):
        self.n = n

    def __int__(self):
        return self.n

    def __float__(self):
        return float(self.n)

    def __complex__(self):
        return complex(self.n)

    def __index__(self):
        return self.n

    def __round__(self, digits=None):
        return self.n

    def __abs__(self):
        return self.n

    def __trunc__(self):
        return self.n

    def __floor__(self):
        return self.n

    def __ceil__(self):
        return self.n

    def __divmod__(self, other):
        return divmod(self.n, other)

    def __rdivmod__(self, other):
        return divmod(other, self.n)

    def __pow__(self, other, modulo=None):
        return pow(self.n, other)

    def __neg__(self):
        return -self.n

    def __add__(self, other):
        return self.n + (other.n if isinstance(other, Counted) else other)

    __radd__ = __add__

    def __mul__(self, other):
        return self.n * other

    __rmul__ = __mul__

    def __hash__(self):
        return hash(self.n)

    def __eq__(self, other):
        return self.n == (other.n if isinstance(other, Counted) else other)

    def __lt__(self, other):
        return self.n < (other.n if isinstance(other, Counted) else other)

    def __gt__(self, other):
        return self.n > (other.n if isinstance(other, Counted) else other)

    def __str__(self):
        return f"{self.n:03d}"

    __repr__ = __str__

    def __format__(self, spec):
        return format(self.n, spec or "03d")

    def __bytes__(self):
        return bytes(self.n)

    def __getitem__(self, index):
        if index >= self.n:
            raise IndexError(index)
        return index

    def __contains__(self, value):
        return value < self.n

    def __bool__(self):
        return self.n >= EDGE


class Sized:
    def __init__(self, n=0):
        self.n = n

    def __len__(self):
        return max(0, self.n)

    def __iter__(self):
        return iter(range(self.n))

    def __reversed__(self):
        return iter(range(self.n)[::-1])


class Full:
    """True from the edge on, by its length only."""

    def __init__(self, n=0):
        self.n = n

    def __len__(self):
        return max(0, self.n - EDGE + 1)


class Missing(dict):
    def __init__(self, n=0):
        super().__init__()
        self.n = n

    def __missing__(self, key):
        return self.n


class Hinted:
    def __init__(self, n=0):
        self.n = n

    def __length_hint__(self):
        return self.n


@dataclasses.dataclass
class Point:
    n: int = 0


@dataclasses.dataclass(order=True, unsafe_hash=True)
class Ordered:
    n: int = 0


EDGE_COUNTED, EDGE_POINT, EDGE_ORDERED = Counted(EDGE), Point(EDGE), Ordered(EDGE)
LADDER = list(range(60))


def length(o):
    return len(o) < EDGE


def length_computed_with(o):
    return 2 * len(o) / 2 < EDGE


def length_in_a_range(o):
    return sum(1 for _ in range(len(o))) < EDGE


def length_by_operator(o):
    return operator.length_hint(o) < EDGE


def length_by_map(o):
    return sum(map(len, [o])) < EDGE


def length_as_key(o):
    return len(max([o, range(EDGE)], key=len)) < EDGE + 1


def truth(o):
    return not o


def truth_of_bool(o):
    return bool(o) is False


def truth_by_any(o):
    return not any([o])


def truth_by_all(o):
    return not all([o, 1])


def truth_by_filter(o):
    return not list(filter(None, [o]))


def truth_by_operator(o):
    return operator.not_(o)


def truth_by_and(o):
    return (o and 1) != 1 if o else True


def by_int(o):
    return int(o) < EDGE


def by_float(o):
    return float(o) < EDGE


def by_complex(o):
    return complex(o).real < EDGE


def by_index(o):
    return operator.index(o) < EDGE


def by_range(o):
    return len(range(o)) < EDGE


def by_subscript(o):
    return LADDER[o] < EDGE


def by_slice(o):
    return len(LADDER[:o]) < EDGE


def by_repetition(o):
    return len([0] * int(o)) < EDGE


def by_rounding(o):
    return round(o) < EDGE


def by_abs(o):
    return abs(o) < EDGE


def by_trunc(o):
    return math.trunc(o) < EDGE


def by_floor(o):
    return math.floor(o) < EDGE


def by_ceil(o):
    return math.ceil(o) < EDGE


def by_sqrt(o):
    return math.sqrt(o) < math.sqrt(EDGE)


def by_isclose(o):
    return not math.isclose(o, EDGE)


def by_gcd(o):
    return math.gcd(o, EDGE) != EDGE or o.n == 0


def by_factorial(o):
    return math.factorial(o) < math.factorial(EDGE)


def by_pow(o):
    return pow(o, 2) < EDGE**2


def by_math_pow(o):
    return math.pow(o, 1) < EDGE


def by_divmod(o):
    return divmod(o, 1)[0] < EDGE


def by_divmod_reflected(o):
    return divmod(EDGE, o)[1] != 0 if o.n else True


def by_negation(o):
    return operator.neg(o) > -EDGE


def by_addition(o):
    return operator.add(o, 1) < EDGE + 1


def by_reduce(o):
    return functools.reduce(operator.add, [o, 1, 2]) < EDGE + 3


def by_accumulate(o):
    return list(itertools.accumulate([o, 0, 0]))[-1] < EDGE


def by_sum(o):
    return sum([o, 0]) < EDGE


def by_product(o):
    return math.prod([o, 1]) < EDGE


def by_fsum(o):
    return math.fsum([o, 0.5]) < EDGE


def by_hash(o):
    return hash(o) < EDGE


def by_hash_of_a_tuple(o):
    return hash((o, 1)) != hash((EDGE, 1))


def by_chr(o):
    return chr(o) != chr(EDGE)


def by_hex(o):
    return hex(o) != hex(EDGE)


def by_bytes(o):
    return len(bytes(o)) < EDGE


def by_list(o):
    return len(list(o)) < EDGE


def by_unpacking(o):
    return len([*o]) < EDGE


def by_tuple(o):
    return len(tuple(o)) < EDGE


def by_sum_of_ones(o):
    return sum(1 for _ in o) < EDGE


def by_zip(o):
    return len(list(zip(o, LADDER, strict=False))) < EDGE


def by_reversed(o):
    return next(reversed(o), -1) < EDGE - 1


def by_set(o):
    return len(set(o)) < EDGE


def by_max_of(o):
    return max(o, default=0) < EDGE - 1


def by_membership(o):
    return (EDGE - 1) not in o


def by_iter(o):
    return len(list(itertools.islice(iter(o), 50))) < EDGE


def in_a_list(o):
    return o not in [EDGE]


def beside_an_equal(o):
    return EDGE not in [o]


def counted_in_a_list(o):
    return [o].count(EDGE) == 0


def found_in_a_list(o):
    return [0 if o.n else 1, o, EDGE].index(EDGE) == 2


def removed_from_a_list(o):
    values = [o, EDGE]
    values.remove(EDGE)
    return values[0] is o


def in_a_dictionary(o):
    return {o: 1}.get(EDGE) is None


def looked_up(o):
    return {EDGE: 1}.get(o) is None


def in_a_set(o):
    return EDGE not in {o}


def by_fromkeys(o):
    return EDGE not in dict.fromkeys([o])


def by_counter(o):
    return collections.Counter([o])[EDGE] == 0


def less(o):
    return o < EDGE


def by_lt(o):
    return operator.lt(o, EDGE)


def by_sorted(o):
    return sorted([EDGE_COUNTED, o])[0] is o


def by_sorted_key(o):
    return sorted([EDGE_COUNTED, o], key=int)[0] is o


def by_cmp_to_key(o):
    return sorted([EDGE_COUNTED, o], key=functools.cmp_to_key(lambda a, b: a.n - b.n))[0] is o


def by_min(o):
    return min(EDGE_COUNTED, o) is o


def by_max(o):
    return max(EDGE_COUNTED, o) is not o


def by_min_of_a_list(o):
    return min([EDGE_COUNTED, o]) is o


def by_tuples_equal(o):
    return (o, 1) != (EDGE, 1)


def by_tuples_less(o):
    return (o, 1) < (EDGE, 1)


def by_lists_equal(o):
    return [o] != [EDGE]


def by_dictionaries_equal(o):
    return {"a": o} != {"a": EDGE}


def by_nested_equal(o):
    return [(1, [o])] != [(1, [EDGE])]


def by_bisect(o):
    return bisect.bisect_left([o], EDGE) == 1


def by_heap(o):
    heap = [EDGE_COUNTED]
    heapq.heappush(heap, o)
    return heap[0] is o


def by_text(o):
    return str(o) < f"{EDGE:03d}"


def by_f_string(o):
    return f"{o}" < f"{EDGE:03d}"


def by_format_method(o):
    return "{}".format(o) < f"{EDGE:03d}"


def by_percent(o):
    return "%s" % o < f"{EDGE:03d}"


def by_percent_d(o):
    return "%03d" % o < f"{EDGE:03d}"


def by_text_of_a_list(o):
    return str([o]) < f"[{EDGE:03d}]"


def by_repr(o):
    return repr(o) < f"{EDGE:03d}"


def by_mean(o):
    return statistics.mean([o.n, o.n]) < EDGE


def missing(o):
    return o["x"] < EDGE


def as_size(o):
    return torch.zeros(o).numel() < EDGE


def dataclasses_equal(o):
    return o != EDGE_POINT


def ordered_dataclasses_equal(o):
    return o != EDGE_ORDERED


def dataclass_in_a_list(o):
    return o not in [EDGE_POINT]


def dataclasses_ordered(o):
    return o < EDGE_ORDERED


def dataclasses_sorted(o):
    return sorted([EDGE_ORDERED, o])[0] is o


def dataclass_hashed(o):
    return hash(o) != hash(EDGE_ORDERED)


def dataclass_as_key(o):
    return {EDGE_ORDERED: 1}.get(o) is None


def dataclass_as_text(o):
    return repr(o) != repr(EDGE_POINT)


def dataclass_in_an_f_string(o):
    return f"<{o}>" != f"<{EDGE_POINT}>"


def dataclass_in_text_of_a_list(o):
    return str([o]) != str([EDGE_POINT])


def dataclasses_in_tuples(o):
    return (1, o) != (1, EDGE_POINT)


def by_getitem(o):
    try:
        return operator.getitem(o, EDGE - 1) < 0
    except IndexError:
        return True


def by_set_size(o):
    return len(set([o, EDGE_COUNTED])) > 1


def by_cached(o):
    return cached(o) < EDGE


@functools.lru_cache
def cached(o):
    return o.n


def by_match(o):
    match o:
        case Counted(n=6):
            return False
    return True


def by_int_in_a_list(o):
    return [int(v) for v in [o, o]][1] < EDGE


def by_nested_min(o):
    return min((o, 1), (EDGE, 0))[1] == 1


def by_max_with_default(o):
    return max([o], default=None) < EDGE


def by_repeating(o):
    return len([1, 2] * operator.index(o)) < 2 * EDGE


def by_enumerate(o):
    return next(iter(enumerate("ab", o)))[0] < EDGE


def by_str_join(o):
    return "".join([str(o)]) < f"{EDGE:03d}"


def by_rounding_to_digits(o):
    return round(float(o) + 0.01, 1) < EDGE


def by_tensor_arithmetic(o):
    return float(torch.ones(()) * float(o)) < EDGE


CASES = {
    Counted: """truth truth_of_bool truth_by_any truth_by_all truth_by_filter truth_by_operator truth_by_and
    by_int by_float by_complex by_index by_range by_subscript by_slice by_repetition by_rounding by_abs by_trunc
    by_floor by_ceil by_sqrt by_isclose by_gcd by_factorial by_pow by_math_pow by_divmod by_divmod_reflected
    by_negation by_addition by_reduce by_accumulate by_sum by_product by_fsum by_hash by_hash_of_a_tuple by_chr
    by_hex by_bytes by_list by_unpacking by_tuple by_sum_of_ones by_membership in_a_list beside_an_equal
    counted_in_a_list found_in_a_list removed_from_a_list in_a_dictionary looked_up in_a_set by_fromkeys by_counter
    less by_lt by_sorted by_sorted_key by_cmp_to_key by_min by_max by_min_of_a_list by_tuples_equal by_tuples_less
    by_lists_equal by_dictionaries_equal by_nested_equal by_bisect by_heap by_text by_f_string by_format_method
    by_percent by_percent_d by_text_of_a_list by_repr by_mean as_size by_getitem by_set_size by_cached by_match
    by_int_in_a_list by_nested_min by_max_with_default by_repeating by_enumerate by_str_join by_rounding_to_digits
    by_tensor_arithmetic""",
    Sized: """length length_computed_with length_in_a_range length_by_operator length_by_map length_as_key by_list
    by_unpacking by_tuple by_sum_of_ones by_zip by_reversed by_set by_max_of by_membership by_iter""",
    Full: "truth truth_of_bool truth_by_any truth_by_all truth_by_filter truth_by_operator truth_by_and",
    Missing: "missing",
    Hinted: "length_by_operator",
    Point: """dataclasses_equal dataclass_in_a_list dataclass_as_text dataclass_in_an_f_string
    dataclass_in_text_of_a_list dataclasses_in_tuples""",
    Ordered: "ordered_dataclasses_equal dataclasses_ordered dataclasses_sorted dataclass_hashed dataclass_as_key",
}
# Speculated after the watched runs, whichever the answer: what users write often.
SERVED = set(
    """length length_computed_with truth truth_of_bool by_int by_float by_index by_rounding by_abs by_sqrt by_sum less
    by_min by_max by_sorted by_tuples_less in_a_list by_text by_f_string""".split()
)


@pytest.mark.parametrize(
    ("cls", "name"), every(3, [(cls, name) for cls, names in CASES.items() for name in names.split()])
)
def test_what_native_code_asks_of_an_object_is_assumed(cls, name):
    ask = globals()[name]

    def make():
        held = cls(-1 if cls is not Counted else 0)

        def step(x):
            held.n += 1
            if ask(held):
                return None
            return x * 2

        return step

    eager, step = make(), torchjanus.speculate(make(), executor="replay")
    expected = [outcome(eager) for _ in range(3 * EDGE)]
    assert None in expected and len(set(expected)) > 1
    assert [outcome(step) for _ in range(3 * EDGE)] == expected
    if name in SERVED:
        assert step.statistics().speculated >= EDGE, torchjanus.explain(step, detail=True)


def outcome(step):
    try:
        result = step(torch.ones(()))
    except Exception as error:
        return type(error).__name__, str(error)
    return None if result is None else result.item()
