"""What Python reads of numbers and values that native code gives (NumPy's integers, dates, decimals) is assumed.

Each question is asked of two numbers that are drawn in the step, of few, so that what was seen comes again.
"""

import decimal
import importlib.util
import random

import numpy as np
import pytest
import torch

import torchjanus

CALLS = 14
# ``k`` and ``m`` are numbers of NumPy's, ``i`` and ``j`` Python's.
QUESTIONS = """
TABLE[k]
TABLE[-k]
TABLE[k % 3]
ROW[k]
sum(TABLE[: k + 1])
sum(list(TABLE)[: k + 1])
"abcdefg"[k] > "c"
list(range(9)).pop(k)
list(range(9)).pop(i)
with_insert([1.0] * 9, k)[3]
with_insert([1.0] * 9, i)[3]
rotated(k)
rotated(i)
list(range(9)).index(k)
[1, 2, 3, 4, 4].count(k)
removed(k)
sum(range(k))
sum(1 for _ in range(i))
len(list(itertools.islice(range(9), k)))
len(list(itertools.repeat(1, k)))
len("a" * k)
len("a".ljust(k))
len([1] * k)
max(k, 2)
min(k, m)
max([k, m])
sorted([k, m, 2])[0]
sorted([i, j, 2])[1]
PLACES[k]
PLACES.get(k, 9)
len({k, m})
len({i, j})
len({each for each in (k, m)})
len({each: 1 for each in (k, m)})
len({k: 1, m: 2})
len(frozenset((k, m)))
len(set(np.array([k, m])))
len(collections.Counter(np.array([k, m])))
len(counted(k, m))
hash(k) % 5
(k, 1) == (3, 1)
(k, 1) < (m, 2)
(k, 1) in {(3, 1), (4, 1)}
[k, 1] == [2, 1]
{"a": k} == {"a": 3}
k in (3, 4)
k in [m, 3]
k in {2: 1, 4: 2}
3 < k < 6
k == m
bool(k)
k and 7
TABLE[int(np.float64(k))]
TABLE[int(k > 2)]
round(k / 3)
divmod(i, 3)[1]
np.zeros((k, 2)).shape[0]
len(CALENDAR[:k])
len({datetime.date(2020, 1, 1 + i), datetime.date(2020, 1, 1 + j)})
datetime.date(2020, 1, 1 + i) in {datetime.date(2020, 1, 3): 1}
len({decimal.Decimal(i), decimal.Decimal(j)})
[decimal.Decimal(each) for each in (i, j, 2)].index(max(decimal.Decimal(i), decimal.Decimal(2)))
[decimal.Decimal(each) for each in (i, j, 2)].index(max([decimal.Decimal(each) for each in (i, j, 2)]))
sorted([decimal.Decimal(i), decimal.Decimal(2)])[0] == 2
in_place_sorted([decimal.Decimal(i), decimal.Decimal(2)])[0] == 2
(decimal.Decimal(i), 0) == (decimal.Decimal(j), 0)
stored(k)[2]
stored(i)[2]
""".strip().splitlines()

# Which keys there are decides what a container holds: each pair of numbers is a path of its own.
BY_KEYS = ("len({", "len(frozenset", "len(set", "len(collections", "len(counted", "PLACES.get")

CONTEXT = """
import collections, datetime, decimal, itertools
import numpy as np
import torch

TABLE = [float(n * n) for n in range(9)]
ROW = tuple(TABLE)
PLACES = {n: n * 3 for n in range(9)}
CALENDAR = [datetime.date(2020, 1, 1)] * 9


def with_insert(values, place):
    values.insert(place, 5.0)
    return values


def rotated(by):
    values = collections.deque(range(9))
    values.rotate(by)
    return values[0]


def removed(value):
    values = list(range(9))
    values.remove(value)
    return values[3]


def counted(one, other):
    found = collections.defaultdict(int)
    found[one] += 1
    found[other] += 1
    return found


def in_place_sorted(values):
    values.sort()
    return values


def stored(place):
    values = [0.0] * 9
    values[place] = 4.0
    return values


"""


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """The questions as functions of a file, whose source can be read."""
    functions = "\n".join(
        f"def step_{n}(x):\n    drawn = np.random.randint(0, 6, 2)\n"
        f"    k, m = drawn[0], drawn[1]\n    i, j = int(k), int(m)\n"
        f"    answer = {asked}\n    return x * float(answer)\n"
        for n, asked in enumerate(QUESTIONS)
    )
    file = tmp_path_factory.mktemp("given") / "questions_of_given_numbers.py"
    file.write_text(CONTEXT + functions)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "number",
    [pytest.param(n, id=asked, marks=pytest.mark.slow if n % 2 else ()) for n, asked in enumerate(QUESTIONS)],
)
def test_what_is_read_of_given_numbers_is_assumed(steps, number):
    step = getattr(steps, f"step_{number}")
    speculated = torchjanus.speculate(step, executor="replay")
    assert answers(speculated) == (expected := answers(step))
    assert len(set(expected)) > 1
    if not QUESTIONS[number].startswith(BY_KEYS):
        assert speculated.statistics().speculated > 0


def answers(step):
    np.random.seed(6)
    return [step(torch.tensor(1.5)).item() for _ in range(CALLS)]


def asked_in_turns(step, numbers):
    """What a step says of these numbers, which it fetches from a tensor."""
    return [step(torch.tensor(1.5), torch.tensor(number)).item() for number in numbers]


FEW = [3, 5, 2, 0, 1, 2, 2, 3, 0, 2, 2, 2, 0, 3]


def test_the_call_of_a_number_on_another_way_is_another_call():
    def step(x, t):
        found = sorted([decimal.Decimal(t.item()), decimal.Decimal(2)])[0]
        return x * float(found == 2)

    assert asked_in_turns(torchjanus.speculate(step, executor="replay"), FEW) == asked_in_turns(step, FEW)


def test_a_generator_made_in_the_step_is_put_back_itself():
    def step(x, t):
        return x * random.Random(0).choices(range(t.item() + 1), k=2)[0]

    assert asked_in_turns(torchjanus.speculate(step, executor="replay"), FEW) == asked_in_turns(step, FEW)


def test_numpys_generator_made_in_the_step_is_put_back_itself():
    def step(x, t):
        return x * float(np.random.default_rng(0).integers(0, t.item() + 1, 2)[1])

    assert asked_in_turns(torchjanus.speculate(step, executor="replay"), FEW) == asked_in_turns(step, FEW)


@pytest.mark.parametrize(
    "size",
    [
        lambda x, n: torch.zeros(2, n).shape[1],
        lambda x, n: x.repeat(n + 1).numel(),
        lambda x, n: torch.nn.functional.pad(x, (0, n)).numel(),
        lambda x, n: x.expand(n + 1).numel(),
        lambda x, n: len(torch.arange(min(n, 2))),
    ],
)
def test_sizes_of_what_is_made_by_a_number_follow_it(size):
    def step(x, n):
        return x * float(size(x, n))

    def asked(step):
        return [step(torch.ones(1), n).item() for n in [*FEW, 1, 0, 1, 4]]

    assert asked(torchjanus.speculate(step, executor="replay")) == asked(step)


def first_of_two(x):
    k, m = np.random.randint(0, 2, 2)
    return x * (1 + int(k)) + float(m)


def first_and_others(x):
    k, *others = np.random.randint(0, 2, 3)
    return x * (1 + int(k)) + len(others)


def truths(x):
    k, m = np.random.rand(2) > 0.5
    return x * 2 if k else x + float(m)


def loop_carried(x):
    return x * (1 + int(max(*np.random.randint(0, 3, 2))))


def in_a_loop(x):
    for k, m in np.random.randint(0, 2, (2, 2)):
        x = x * (1 + int(k)) + int(m)
    return x


def in_a_list(x):
    drawn = [*np.random.randint(0, 2, 2)]
    return x * (1 + int(drawn[0])) + len(drawn)


@pytest.mark.parametrize("step", [first_of_two, first_and_others, truths, loop_carried, in_a_loop, in_a_list])
def test_arrays_that_are_unpacked_give_other_numbers_at_each_call(step):
    speculated = torchjanus.speculate(step, executor="replay")
    assert answers(speculated) == answers(step)
    assert speculated.statistics().speculated > 2
