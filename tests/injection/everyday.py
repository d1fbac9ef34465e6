"""Small programs that use much of Python between their operations of torch: what watches them is made to fail."""

import collections
import contextlib
import functools
import random

import torch
from torch import nn

from tests.programs.harness import Program, program

CALLS = 5


def inputs():
    return [(torch.randn(4, 3),) for _ in range(CALLS)]


@program(speculated=0)
def containers():
    log, table, seen, queue = [], {"n": 0}, set(), collections.deque(maxlen=3)

    def step(x):
        log.append(x.sum().item())
        log.extend([1, 2])
        log.pop()
        table["n"] += 1
        table.setdefault("first", table["n"])
        table.update(last=table["n"], old=table.get("old", 0) + 1)
        seen.add(table["n"] % 3)
        seen.discard(7)
        queue.appendleft(len(log))
        a, *rest = log[-3:]
        del log[:-4]
        pairs = {key: value for key, value in table.items() if value}
        merged = {**pairs, "x": [*rest, a]}
        return x * len(merged) + sum(queue), sorted(seen), merged.pop("x")[-1], "n" in table, max(1, len(seen))

    return Program(step, inputs(), state=(log, table, seen, queue))


class Base:
    made = 0

    def __init__(self, n):
        type(self).made += 1
        self.n = n

    @property
    def twice(self):
        return self.n * 2

    @twice.setter
    def twice(self, value):
        self.n = value // 2

    def __add__(self, other):
        return type(self)(self.n + (other.n if isinstance(other, Base) else other))

    __radd__ = __add__

    def __iadd__(self, other):
        self.n += other
        return self

    def __eq__(self, other):
        return self.n == other.n

    def __hash__(self):
        return self.n

    def __bool__(self):
        return self.n > 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index >= 3:
            raise IndexError(index)
        return self.n + index

    def __contains__(self, value):
        return value == self.n

    def __call__(self, value):
        return value + self.n


class Derived(Base):
    seen = 0

    def __init__(self, n):
        super().__init__(n + 1)
        self.parts = []

    def __getattr__(self, name):
        if name == "extra":
            return self.n + 5
        raise AttributeError(name)

    def __setattr__(self, name, value):
        Derived.seen += 1
        super().__setattr__(name, value)

    def __enter__(self):
        self.parts.append("in")
        return self

    def __exit__(self, *error):
        self.parts.append("out")
        return False


@program(speculated=0)
def objects():
    held = Derived(1)

    def step(x):
        held.twice = held.twice + 2
        with held as one:
            total = one + 1 + Base(2)
        total += 4
        del held.parts[:-2]
        missing = hasattr(held, "nothing") or held.extra
        truth = not total or (total == Base(total.n) and held.n in held)
        return (
            x * (total.twice + missing + list(held)[1] + held(2)),
            truth,
            len(held),
            [*held],
            getattr(held, "none", 3),
        )

    return Program(step, inputs(), state=(held, Base, Derived))


@program(speculated=0)
def training():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 2))
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []

    def step(x):
        opt.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
        print(f"loss {losses[-1]:.3f}", len(losses))
        return loss.detach()

    return Program(step, inputs(), state=(model, losses))


TOTAL = 0


@program(speculated=0)
def iterating():
    count, order = 0, [3, 1, 2]

    def numbers(n):
        for i in range(n):
            got = yield i * 2
            if got:
                yield got

    def depth(tree):
        return 1 + max((depth(part) for part in tree), default=0)

    @functools.lru_cache(maxsize=None)
    def known(n):
        return n + 1

    def step(x):
        global TOTAL
        nonlocal count
        TOTAL += 1
        count += sum(numbers(3))
        made = [(i, a * b) for i, (a, b) in enumerate(zip(order, reversed(order), strict=True)) if i != 1]
        order.sort(key=lambda n: -n)
        order.reverse()
        n = 3
        while n > 0:
            x = x + n
            n -= 1
        for i in range(2):
            if i == 1:
                continue
            x = x * made[0][1]
        first, *_ = map(str, order)
        text = f"{first!r:>4}|{count}|{depth([[], [[]]])}"
        return (
            x + random.random(),
            text,
            {*order},
            any(v > 2 for v in order),
            functools.reduce(int.__add__, order),
            known(2),
        )

    return Program(step, inputs(), state=order)


@program(speculated=0)
def errors():
    seen = []

    class Own(Exception):
        pass

    @contextlib.contextmanager
    def noting(name):
        seen.append(name)
        try:
            yield len(seen)
        except Own as error:
            seen.append(str(error))
        finally:
            seen.append("end")

    def step(x):
        with noting("a"):
            raise Own("raised")
        try:
            {}["missing"]
        except KeyError as error:
            seen.append(error.args[0])
        try:
            x @ x
        except RuntimeError:
            seen.append("shapes")
        else:
            seen.append("none")
        finally:
            del seen[:-5]
        try:
            int("x")
        except (ValueError, TypeError):
            x = x + 1
        w = torch.zeros(3)
        w[1:] = 2
        w += x[0]
        match seen:
            case [first, *_]:
                return x * len(first) + w, next(iter(seen)), isinstance(x, torch.Tensor), x.shape[0]

    return Program(step, inputs(), state=seen)
