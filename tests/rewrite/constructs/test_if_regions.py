"""Around which ``if`` statements there is a region, and that it is left once, at the end."""

import contextlib

import pytest

from torchjanus.rewrite.hooks import Semantics, rewritten, using


class Regions(Semantics):
    """Notes the lines at which regions begin and end."""

    def __init__(self):
        self.seen = []

    def region(self, at):
        @contextlib.contextmanager
        def around():
            self.seen.append(("in", at.line - self.first))
            try:
                yield
            finally:
                self.seen.append(("out", at.line - self.first))

        return around()


def regions(fn, *args):
    semantics = Regions()
    semantics.first = fn.__code__.co_firstlineno
    with using(semantics), contextlib.suppress(ValueError):
        rewritten(fn)(*args)
    return semantics.seen


def plain(x):
    if x:
        x = 1
    return x


def chain(x):
    if x == 1:
        x = 2
    elif x == 2:
        x = 3
    else:
        x = 4
    return x


def within(x):
    if x:
        if x > 1:
            x = 2
    return x


def leaving(x):
    if x:
        return 1
    if not x:
        x = 2
    return x


def broken(xs):
    for x in xs:
        if x:
            break
        if x == 0:
            for _ in range(2):
                break
    return xs


def raising(x):
    if x:
        raise ValueError
    return x


def suspended(x):
    if x:
        yield x


def deep(x):
    if x:
        if x:
            if x:
                if x:
                    if x:
                        if x:
                            if x:
                                if x:
                                    x = 2
    return x


@pytest.mark.parametrize(
    ("fn", "args", "expected"),
    [
        (plain, (0,), [("in", 1), ("out", 1)]),
        (plain, (1,), [("in", 1), ("out", 1)]),
        (chain, (2,), [("in", 1), ("out", 1)]),
        (within, (2,), [("in", 1), ("in", 2), ("out", 2), ("out", 1)]),
        (leaving, (0,), [("in", 3), ("out", 3)]),
        (broken, ([0],), [("in", 4), ("out", 4)]),
        (raising, (1,), [("in", 1), ("out", 1)]),
        (suspended, (1,), []),
        (deep, (1,), [*(("in", n) for n in range(1, 7)), *(("out", n) for n in range(6, 0, -1))]),
    ],
)
def test_regions(fn, args, expected):
    found = regions(lambda *given: list(fn(*given)), *args) if fn is suspended else regions(fn, *args)
    assert found == expected
