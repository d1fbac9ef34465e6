"""``match``: all kinds of patterns, changing subjects, and what patterns read, bind and leave unbound."""

import collections
import dataclasses
import enum

import torch

from tests.programs.harness import Program, program


class Phase(enum.Enum):
    WARM = 1
    MAIN = 2


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2


class Limits:
    low = 2
    high = 5


class Key:
    NAME = "name"


@dataclasses.dataclass
class Point:
    x: float
    y: torch.Tensor


class Marked:
    __match_args__ = ("asked", "kind")

    def __init__(self, kind):
        self.kind = kind
        self.count = 0

    @property
    def asked(self):
        self.count += 1
        return self.count


@program(speculated=14, compiles=2)
def members_of_enumerations():
    state = {"phase": Phase.WARM, "level": Level.LOW}

    def step(x):
        match state["phase"], state["level"]:
            case Phase.WARM, Level.LOW:
                return x * 2
            case (Phase.MAIN, _) | (_, Level.HIGH):
                return x * 3
            case _:
                return x

    change = {7: lambda: state.update(phase=Phase.MAIN), 12: lambda: state.update(phase=Phase.WARM)}
    return Program(step, [(torch.ones(2) * k,) for k in range(19)], change)


@program(speculated=10, compiles=3)
def attributes_that_patterns_compare_with():
    limits = Limits()
    limits.low = 3

    def step(x, k):
        match k:
            case limits.low:
                return x * 2
            case Limits.high:
                return x * 3
            case _:
                return x

    change = {6: lambda: setattr(limits, "low", 4), 12: lambda: setattr(limits, "low", 3)}
    return Program(step, [(torch.ones(2) * k, 5 if k % 5 == 4 else 3) for k in range(18)], change)


@program(speculated=18, compiles=2)
def sizes_are_bound():
    def step(x):
        match x.shape:
            case (n, 4):
                return x.reshape(n * 4).cumsum(0)
            case (n, m):
                return x.sum() * m + n

    return Program(step, [(torch.ones(k % 7 + 2, 4 if k % 2 else 3 + k % 3 * 2),) for k in range(28)])


@program(speculated=16, compiles=3)
def a_size_by_its_value():
    def step(x):
        match x.size(0):
            case 1:
                return x * 5
            case n if n > 5:
                return x * n
            case n:
                return x + n

    return Program(step, [(torch.ones(k * 5 % 9 + 1),) for k in range(27)])


@program(speculated=17, compiles=3)
def attributes_of_objects():
    point = Point(1.0, torch.ones(2))

    def step(x):
        match point:
            case Point(x=0.0):
                return x * 2
            case Point(scale, shift):
                point.x = scale + 1.0
                return x * scale + shift

    change = {k: lambda: setattr(point, "x", 0.0) for k in (7, 13)}
    change |= {k: lambda: setattr(point, "x", 0.5) for k in (9, 15)}
    change[17] = lambda: setattr(point, "y", torch.zeros(2))
    return Program(step, [(torch.ones(2) * k,) for k in range(24)], change, state=point)


@program(speculated=9)
def properties_are_asked_as_often_as_ever():
    marked = Marked("a")

    def step(x):
        match marked:
            case Marked(kind="b"):
                return x * 2
            case Marked(count, "a") if count % 2:
                return x * count
            case Marked(asked=count) as whole:
                return x - count * len(whole.kind)

    change = {8: lambda: setattr(marked, "kind", "b"), 12: lambda: setattr(marked, "kind", "a")}
    return Program(step, [(torch.ones(2) * k,) for k in range(20)], change, state=marked)


@program(speculated=8)
def a_missing_attribute_does_not_match():
    class Bare:
        pass

    bare = Bare()

    def step(x):
        match bare:
            case Bare(gain=gain):
                return x * gain
            case Bare():
                return x

    return Program(step, [(torch.ones(2) * k,) for k in range(14)], {7: lambda: setattr(bare, "gain", 3.0)})


@program(speculated=13, compiles=10)
def commands_of_all_kinds():
    def step(x, command):
        match command:
            case ("scale", float(k)):
                return x * k
            case ("add", k, *rest):
                return x + k + len(rest) + sum(rest)
            case {Key.NAME: name, "by": by, **others}:
                others["seen"] = by
                return x * by + len(name) + sum(others.values())
            case [[first, *_], *_, last] as whole:
                return x * first - last + len(whole)
            case str() | bytes():
                return x * 7
            case None | False:
                return x
            case other:
                return x - other

    commands = [
        ("scale", 2.0), ("add", 1, 2, 3), {"name": "n", "by": 2, "more": 5}, [[4, 5], 1, 3], "text", None, False, 2.5,
        3,
    ]  # fmt: skip
    return Program(step, [(torch.ones(2) * k, commands[k % 3 if k < 9 else k % len(commands)]) for k in range(36)])


@program(speculated=14, compiles=2)
def rows_of_tensors_are_bound():
    def step(x, pair):
        match pair:
            case [a]:
                return a * x
            case a, b:
                a.add_(b)
                return a @ x

    return Program(step, [(torch.ones(2), [torch.ones(2) * k for _ in range(1 + (k > 6))]) for k in range(20)])


@program(speculated=14, compiles=4)
def a_tensor_is_compared():
    def step(x):
        match x.argmax():
            case 0:
                return x * 2
            case 1 | 2:
                return x * 3
            case torch.Tensor(ndim=0) as where:
                return x * where

    return Program(step, [(torch.eye(4)[k % 2 if k < 9 else k % 4],) for k in range(30)])


@program(speculated=8, compiles=2)
def bound_names_live_elsewhere():
    seen = []
    last = None

    def step(x, command):
        nonlocal last
        match command:
            case ("keep", last):
                seen.append(last)
            case {"log": value, **rest}:
                seen.append((value, rest))
        return x if last is None else x * last

    commands = [("keep", 2.0)] * 7 + [{"log": 1, "b": 2}] * 7
    return Program(step, [(torch.ones(2), one) for one in commands], state=seen)


@program(speculated=9, compiles=3)
def names_of_patterns_that_fail_stay_unbound():
    def step(x, pair):
        a = 1
        match pair:
            case (a, 5) | (a, _, 5):
                pass
            case (b, 6) if b == 2:
                pass
        try:
            return x * a + b
        except NameError as error:
            return x - a * len(str(error))

    pairs = [(2, 6)] * 6 + [(2, 5)] * 5 + [(3, 0, 5)] * 5
    return Program(step, [(torch.ones(2), pair) for pair in pairs])


class Wide(collections.UserDict):
    pass


class Ring(collections.abc.Sequence):
    def __init__(self, *parts):
        self.parts = list(parts)

    def __len__(self):
        return len(self.parts)

    def __getitem__(self, k):
        return self.parts[k]


@program(speculated=8, compiles=4)
def containers_of_ones_own():
    wide, ring, line = Wide(gain=2.0), Ring(1.0, 2.0), collections.deque([3.0, 4.0])

    def step(x):
        match wide:
            case {"gain": g, **rest}:
                x = x * g + len(rest)
        match ring:
            case [a, b]:
                x = x + a * b
            case [a, *_, b]:
                x = x - a * b
        match line:
            case [*_, newest]:
                x = x * newest
        return x

    change = {
        7: lambda: wide.update(more=1),
        9: lambda: ring.parts.append(7.0),
        12: lambda: line.append(5.0),
    }
    return Program(step, [(torch.ones(2) * k,) for k in range(18)], change)


@dataclasses.dataclass
class Leaf:
    word: int


@dataclasses.dataclass
class Inner:
    left: object
    right: object


@program(speculated=12, close=1e-5)
def recursion_by_patterns():
    torch.manual_seed(0)
    words, merge = torch.randn(9, 4, requires_grad=True), torch.randn(8, 4, requires_grad=True)

    def encode(node):
        match node:
            case Leaf(word=word):
                return words[word]
            case Inner(left, right):
                return torch.cat([encode(left), encode(right)]).matmul(merge).tanh()

    def step(tree):
        words.grad = merge.grad = None
        loss = encode(tree).pow(2).sum()
        loss.backward()
        return loss.detach()

    def grown(k):
        return Leaf(k % 9) if k < 3 else Inner(grown(k // 2), grown(k - 1 - k // 2))

    return Program(step, [(grown(4 + k * 5 % 11),) for k in range(24)], state=(words, merge))
