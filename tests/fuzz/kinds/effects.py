"""Effects that call the program back, context managers, generators held across calls, closures."""

from __future__ import annotations

from tests.fuzz.choices import Choices
from tests.fuzz.kinds.piece import Kind, Piece

__all__ = ["KINDS"]


def effects(c: Choices, n: int) -> Piece:
    """What prints, logs, sorts, pickles or copies runs code of the program's."""
    text = f"""
class Shown{n}:
    shown = 0

    def __init__(self, v=1):
        self.v = v

    def __str__(self):
        Shown{n}.shown += 1
        return f"shown {{Shown{n}.shown}}"

    def __repr__(self):
        Shown{n}.shown += 1
        return "<shown>"

    def __format__(self, spec):
        Shown{n}.shown += 1
        return format(self.v, spec)

    def __getstate__(self):
        Shown{n}.shown += 1
        return {{"v": self.v}}

    def __lt__(self, other):
        Shown{n}.shown += 1
        return self.v < other.v

    def __hash__(self):
        Shown{n}.shown += 1
        return 7

    def __eq__(self, other):
        Shown{n}.shown += 1
        return self is other

    def key(self, value):
        Shown{n}.shown += 1
        return -value

    def __copy__(self):
        Shown{n}.shown += 1
        return Shown{n}(self.v + 1)


class Tee{n}:
    def __init__(self):
        self.lines = 0
        self.texts = []

    def write(self, text):
        self.lines += 1
        self.texts.append(text)
        del self.texts[:-4]
        return len(text)

    def flush(self):
        self.lines += 10


class Count{n}(logging.Handler):
    count = 0

    def emit(self, record):
        self.count += 1
        self.last = record.getMessage()

    def filter(self, record):
        self.count += 1
        return True
"""
    return Piece(
        text,
        f"""
shown{n} = Shown{n}()
tee{n} = Tee{n}()
count{n} = Count{n}()
log{n} = logging.getLogger("fuzzed{n}")
log{n}.handlers[:] = [count{n}]
log{n}.setLevel(10)
log{n}.propagate = False
""",
        [
            f"print(shown{n})",
            f"print(shown{n}, file=tee{n})",
            f"print('a', total, file=tee{n})",
            f"print('x', end='', file=tee{n}, flush=True)",
            f"text{n} = f'{{shown{n}}} {{shown{n}!r}}'\ntotal += len(text{n})",
            f"log{n}.info('x %s', {c.pick((f'shown{n}', 'total', '1'))})",
            f"log{n}.debug('x')",
            f"total += sorted([3, 1, 2], key=shown{n}.key)[0]",
            f"row{n} = [1, 2]\nrow{n}.sort(key=shown{n}.key)",
            f"total += len(pickle.dumps(shown{n})) > 1",
            f"other{n} = copy.copy(shown{n})\ntotal += other{n}.v",
            f"other{n} = copy.deepcopy(shown{n})\ntotal += other{n}.v",
            f"total += min([Shown{n}(2), shown{n}]).v",
            f"total += len({{shown{n}, Shown{n}(3)}})",
            f"with contextlib.redirect_stdout(tee{n}):\n    print('inside', total)",
            f"shown{n}.v += 1",
            f"'%s %r' % (shown{n}, shown{n})",
            f"sys.stderr.write(str(shown{n}))",
            f"warnings.warn(str(shown{n}))",
            f"threading.Thread(target=tee{n}.flush).run()",
            f"try:\n    raise ValueError(shown{n})\nexcept ValueError as error:\n    print(error)",
            f"list(map(shown{n}.key, [1, 2]))",
            f"total += functools.reduce(lambda a, b: a + shown{n}.key(b), [1, 2], 0)",
        ],
        [f"Shown{n}.shown", f"tee{n}.lines", f"count{n}.count", f"shown{n}.v", f"len(tee{n}.texts)"],
        [f"Shown{n}.shown = 0", f"tee{n}.lines = 0", f"shown{n}.v = 3"],
        [f"shown{n}", f"tee{n}", f"lambda: count{n}.count", f"lambda: Shown{n}.shown", f"Shown{n}"],
    )


def contexts(c: Choices, n: int) -> Piece:
    """Context managers: of classes, of generators, stacked."""
    text = f"""
class Scope{n}:
    depth = 0
    left = 0

    def __enter__(self):
        Scope{n}.depth += 1
        return self

    def __exit__(self, kind, error, trace):
        Scope{n}.depth -= 1
        Scope{n}.left += 1 if kind is None else 2
        return {c.pick(("False", "kind is KeyError", "True"))}


@contextlib.contextmanager
def scope{n}(row, value):
    row.append(value)
    try:
        yield len(row)
    except ValueError:
        row.append(-1)
    finally:
        del row[:-3]


class Both{n}(contextlib.ContextDecorator):
    used = 0

    def __enter__(self):
        Both{n}.used += 1
        return self

    def __exit__(self, *given):
        return False


@Both{n}()
def within{n}(v):
    return v + Both{n}.used
"""
    return Piece(
        text,
        f"rows{n} = []\nshared{n} = Scope{n}()",
        [
            f"with Scope{n}() as s{n}:\n    total += s{n}.depth",
            f"with shared{n}, scope{n}(rows{n}, total) as size{n}:\n    total += size{n}",
            f"with scope{n}(rows{n}, 1):\n    raise ValueError('x')",
            f"try:\n    with Scope{n}():\n        raise KeyError('x')\nexcept KeyError:\n    total += 1",
            f"with contextlib.ExitStack() as stack{n}:\n    stack{n}.enter_context(shared{n})\n"
            f"    stack{n}.callback(rows{n}.append, 2)\n    total += Scope{n}.depth",
            "with contextlib.suppress(KeyError):\n    total += 1\n    raise KeyError",
            f"total = 0.5 * total + within{n}(1)",
            f"rows{n}.append(total)\ndel rows{n}[:-3]",
        ],
        [f"Scope{n}.left", f"Scope{n}.depth", f"len(rows{n})", f"Both{n}.used", f"sum(rows{n})"],
        [f"Scope{n}.left = 0", f"rows{n}.clear()"],
        [f"rows{n}", f"Scope{n}", f"Both{n}"],
    )


def generators(c: Choices, n: int) -> Piece:
    """Generators and iterators held across calls, or made again."""
    text = f"""
def feed{n}(limit):
    number = 0
    while number < limit:
        sent = yield number * 0.5
        number += 1 if sent is None else sent


def chained{n}(row):
    try:
        yield from row
        yield len(row)
    finally:
        row.append(0.25)
        del row[:-4]


class Walk{n}:
    steps = 0

    def __init__(self, limit):
        self.limit = limit
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        Walk{n}.steps += 1
        if self.at >= self.limit:
            raise StopIteration
        self.at += 1
        return self.at


class Again{n}:
    def __init__(self, row):
        self.row = row

    def __iter__(self):
        for one in self.row:
            Walk{n}.steps += 1
            yield one * 2
"""
    return Piece(
        text,
        f"""
row{n} = [1.0, 2.0]
gen{n} = {c.pick((f"feed{n}(200)", "(v * 0.5 for v in range(300))", f"feed{n}(6)"))}
walk{n} = Walk{n}({c.pick(("100", "5"))})
again{n} = Again{n}(row{n})
counter{n} = itertools.count(1)
cycle{n} = itertools.cycle([1, 2, 3])
pairs{n} = zip(itertools.count(), itertools.repeat(2))
""",
        [
            f"total += next(gen{n}, 0.5)",
            f"if gen{n}.gi_frame is not None and gen{n}.gi_code.co_name == 'feed{n}':\n    next(gen{n}, None)\n"
            f"    try:\n        total += gen{n}.send(2)\n    except StopIteration:\n        total += 1",
            f"for one{n} in walk{n}:\n    total = 0.5 * total + one{n}\n    if one{n} % 2:\n        break",
            f"total += next(walk{n}, 0)",
            f"total += sum(again{n})",
            f"total += sum(chained{n}(row{n}))",
            f"part{n} = chained{n}(row{n})\ntotal += next(part{n})\npart{n}.close()",
            f"row{n}.append(total)\ndel row{n}[:-4]",
            f"total += next(counter{n}) * 0.1",
            f"total += next(cycle{n})",
            f"total += next(pairs{n})[0]",
            f"walk{n}.at = 0",
            f"gen{n} = feed{n}(3)",
            f"made{n} = [v for v in again{n} if v > 1]\ntotal += len(made{n})",
            f"a{n}, *b{n} = again{n}\ntotal += a{n} + len(b{n})",
            f"total += max(again{n})",
            f"lazy{n} = (v + total for v in row{n})\ntotal = 1\ntotal += sum(lazy{n})",
            f"total += sum(itertools.islice(Walk{n}(4), 2))",
            f"for i{n}, one{n} in enumerate(again{n}):\n    total = 0.5 * total + i{n}",
        ],
        [f"Walk{n}.steps", f"walk{n}.at", f"len(row{n})", f"sum(row{n})", f"float(gen{n}.gi_frame is None)"],
        [f"row{n}.append(3)", f"walk{n}.at = 2", f"next(counter{n})"],
        [f"row{n}", f"gen{n}", f"walk{n}", f"Walk{n}", f"counter{n}"],
    )


def closures(c: Choices, n: int) -> Piece:
    """Functions that share variables, are made in the step, are wrapped, dispatch, remember."""
    text = f"""
def counted{n}(fn):
    @functools.wraps(fn)
    def inner(*args, **kwargs):
        inner.calls += 1
        return fn(*args, **kwargs)

    inner.calls = 0
    return inner


class Decorated{n}:
    def __init__(self, fn):
        self.fn = fn
        self.calls = 0
        functools.update_wrapper(self, fn)

    def __call__(self, *args):
        self.calls += 1
        return self.fn(*args)

    def __get__(self, instance, owner):
        return self if instance is None else types.MethodType(self, instance)


@counted{n}
def scaled{n}(v, by=2):
    return v * by


@Decorated{n}
def added{n}(v):
    return v + added{n}.calls


@functools.lru_cache(maxsize={c.pick(("2", "None"))})
def cached{n}(v):
    scaled{n}.misses = getattr(scaled{n}, "misses", 0) + 1
    return v * 0.5


@functools.singledispatch
def kind{n}(v):
    return 1


@kind{n}.register
def _(v: int):
    return 2


@kind{n}.register(list)
def _(v):
    return len(v)


class Holder{n}:
    def __init__(self):
        self.v = 1

    @Decorated{n}
    def get(self):
        return self.v

    @functools.singledispatchmethod
    def take(self, v):
        return 0

    @take.register
    def _(self, v: int):
        self.v += v
        return self.v

    @counted{n}
    def bump(self, by=1, *more, k=2, **rest):
        self.v = 0.5 * self.v + by + len(more) + k + len(rest)
        return self.v
"""
    return Piece(
        text,
        f"""
def maker{n}():
    count = 0
    def up(by=1):
        nonlocal count
        count += by
        return count
    def read():
        return count
    return up, read
up{n}, read{n} = maker{n}()
late{n} = [lambda v, i=i: v + i for i in range(3)]
shared{n} = 1.0
def reads_shared{n}():
    return shared{n}
part{n} = functools.partial(scaled{n}, by=3)
hold{n} = Holder{n}()
kept{n} = [up{n}]
""",
        [
            f"up{n}({c.pick(('', '2', 'by=3'))})",
            f"total += scaled{n}(1, {c.pick(('2', 'by=total'))})",
            f"total += added{n}(1)",
            f"total += cached{n}({c.pick(('1', '2', f'read{n}() % 3'))})",
            f"total += kind{n}({c.pick(('1', '[1, 2]', 'total', repr('x')))})",
            f"total += hold{n}.get()",
            f"hold{n}.take({c.pick(('1', '1.5'))})",
            f"hold{n}.bump({c.pick(('', '1, 2, 3', 'k=3, z=1', '*[1, 2]', '**dict(z=1)'))})",
            f"shared{n} = 0.5 * shared{n} + 1",
            f"here{n} = lambda v: v + total\ntotal = here{n}(1) * 0.5",
            f"def inner{n}(v):\n    nonlocal total\n    total = 0.5 * total + v\n    return total\ninner{n}(2)",
            f"kept{n}.append(lambda: {c.pick(('1', f'shared{n}', f'read{n}()'))})\ndel kept{n}[:-2]",
            f"total += kept{n}[-1]()",
            f"late{n}.append(late{n}.pop(0))",
            f"up{n}, read{n} = maker{n}()",
            f"part{n} = functools.partial(scaled{n}, by=read{n}() % 4)",
            "total += (lambda *a, **k: len(a) + len(k))(1, 2, x=3)",
            f"fns{n} = []\nfor i{n} in range(3):\n    fns{n}.append(lambda: i{n})\ntotal += fns{n}[0]()",
        ],
        [
            f"read{n}()",
            f"scaled{n}.calls",
            f"added{n}.calls",
            f"late{n}[0](1)",
            f"reads_shared{n}()",
            f"part{n}(1)",
            f"hold{n}.v",
            f"cached{n}.cache_info().hits",
            f"Holder{n}.bump.calls",
            f"vars(Holder{n})['get'].calls",
            f"getattr(scaled{n}, 'misses', 0)",
            f"len(scaled{n}.__name__)",
        ],
        [f"up{n}(3)", f"hold{n}.v = 5", f"scaled{n}.calls = 0", f"cached{n}.cache_clear()"],
        [f"read{n}", f"hold{n}", f"scaled{n}", f"late{n}", f"added{n}", f"cached{n}"],
    )


KINDS: tuple[tuple[int, Kind], ...] = ((4, effects), (2, contexts), (3, generators), (4, closures))
