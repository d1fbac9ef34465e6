"""The user's code as native code comes to call it, and questions as in ``native_reads``: all read ``ST.n``."""

import abc
import contextlib
import dataclasses
import enum
import functools
import string
import types

EDGE = 6
ST = types.SimpleNamespace(n=0)


@dataclasses.dataclass
class Post:
    x: int = 1
    y: int = 0

    def __post_init__(s):
        s.y = s.x * ST.n


@dataclasses.dataclass
class Fac:
    y: int = dataclasses.field(default_factory=lambda: ST.n)


@functools.singledispatch
def sd(o):
    return ST.n


@sd.register
def _(o: str):
    return ST.n + len(o)


@sd.register(list)
def _(o):
    return ST.n + len(o)


class SM:
    @functools.singledispatchmethod
    def go(s, o):
        return ST.n

    @go.register
    def _(s, o: int):
        return ST.n + o

    def base(s, k):
        return ST.n + k

    part = functools.partialmethod(base, 0)

    @functools.cached_property
    def cp(s):
        return ST.n

    @classmethod
    @property
    def clsp(c):
        return ST.n


class En(enum.Enum):
    A = 1

    @classmethod
    def _missing_(c, v):
        return c.A if ST.n < EDGE else None


@contextlib.contextmanager
def cman():
    yield ST.n


class CD(contextlib.ContextDecorator):
    def __enter__(s):
        s.v = ST.n
        return s

    def __exit__(s, *a):
        return False


@CD()
def deco():
    return ST.n


class Init:
    def __init_subclass__(c, **k):
        c.q = ST.n


class New:
    def __new__(c, *a):
        o = object.__new__(c)
        o.n = ST.n
        return o


class MetaC(type):
    def __call__(c, *a):
        o = super().__call__(*a)
        o.n = ST.n
        return o


class MC(metaclass=MetaC):
    pass


class DDict(dict):
    def __missing__(s, k):
        return ST.n


class Lst(list):
    def __getitem__(s, i):
        return ST.n

    def __len__(s):
        return ST.n

    def __iter__(s):
        return iter([ST.n])

    def __contains__(s, k):
        return k == ST.n


class Str(str):
    def __eq__(s, o):
        return ST.n < EDGE

    def __hash__(s):
        return 1


class Int(int):
    def __add__(s, o):
        return ST.n

    def __lt__(s, o):
        return ST.n < o


class Flt(float):
    def __float__(s):
        return float(ST.n)


class Fmt(string.Formatter):
    def get_value(s, k, a, kw):
        return ST.n


class DSet(set):
    def __contains__(s, k):
        return k == ST.n


class Abc(abc.ABC):
    @classmethod
    def __subclasshook__(c, x):
        return ST.n >= EDGE


class IC(type):
    def __instancecheck__(c, o):
        return ST.n >= EDGE


class ICC(metaclass=IC):
    pass


class Rev:
    def __reversed__(s):
        return iter([ST.n])


class RI:
    def __radd__(s, o):
        return ST.n

    def __rmul__(s, o):
        return ST.n

    def __rlt__(s, o):
        return ST.n < o


class Delegate:
    def __init__(s, t):
        s.t = t

    def __getattr__(s, k):
        return getattr(s.t, k)


class GAtt:
    def __getattribute__(s, k):
        return ST.n


class Slt:
    def __set_name__(s, o, n):
        pass

    def __get__(s, o, t):
        return ST.n


class HSl:
    a = Slt()


class It:
    def __init__(s):
        s.i = 0

    def __iter__(s):
        return s

    def __next__(s):
        if s.i >= ST.n:
            raise StopIteration
        s.i += 1
        return s.i


def gen():
    for i in range(ST.n):
        yield i


def gen2():
    yield from gen()


class Exc(Exception):
    def __str__(s):
        return str(ST.n)


def rec(k):
    return ST.n if k == 0 else rec(k - 1)


def outer():

    def inner():
        return ST.n

    return inner


GLOB = 0


def glob():
    return GLOB


@functools.wraps(glob)
def wrapped():
    return ST.n


@functools.lru_cache(maxsize=None)
def cached_n(k):
    return k


def default(k=ST):
    return k.n


def kwonly(*, k=ST):
    return k.n


class Static:
    @staticmethod
    def s():
        return ST.n

    @classmethod
    def c(c):
        return ST.n

    p = property(lambda s: ST.n)


lam = lambda: ST.n
part = functools.partial(lambda a, b: ST.n + a, 0)
red = lambda xs: functools.reduce(lambda a, b: a + ST.n, xs)


def make():
    ST.n = 0
    return ST


def bump(h):
    global GLOB
    h.n += 1
    GLOB = h.n


def trycatch():
    try:
        raise Exc()
    except Exc as e:
        return int(str(e))


def fin():
    try:
        return ST.n
    finally:
        pass


def match_(v):
    match v:
        case {"n": n} if n < EDGE:
            return True
        case {"n": n}:
            return False


def walrus():
    return (z := ST.n) + 0 * z


QUESTIONS = """
Post(2).y < 2 * EDGE
dataclasses.replace(Post(1), x=1).y < EDGE
Fac().y < EDGE
sd(1) < EDGE
sd("a") < EDGE + 1
sd([1]) < EDGE + 1
sd.dispatch(list)([]) < EDGE
SM().go("a") < EDGE
SM().go(1) < EDGE + 1
SM().part() < EDGE
SM().cp < EDGE
En(5) is En.A if h.n < EDGE else False
re.sub("a", lambda m: str(ST.n), "a") < str(EDGE)
re.compile("a").sub(lambda m: str(ST.n), "a") < str(EDGE)
re.match("a" * h.n, "aaaaa") is not None
next(iter([v for v in [ST.n]])) < EDGE
deco() < EDGE
CD().__enter__().v < EDGE
type("K", (Init,), {}).q < EDGE
New().n < EDGE
MC().n < EDGE
DDict()["a"] < EDGE
DDict().get("a", ST.n) < EDGE
Lst()[0] < EDGE
len(Lst()) < EDGE
list(Lst())[0] < EDGE
EDGE not in Lst()
sum(Lst()) < EDGE
[*Lst()][0] < EDGE
max(Lst()) < EDGE
(lambda *a: a[0])(*Lst()) < EDGE
Str("a") == "b"
["a"].count(Str("b")) == 1
Str("b") in ["a"]
Int(0) + 1 < EDGE
Int(0) < EDGE
sorted([Int(0), 99])[0] == 0 and ST.n < EDGE
float(Flt(0)) < EDGE
Fmt().format("{a}", a=0) < str(EDGE)
EDGE not in DSet()
issubclass(int, Abc) is False and ST.n < EDGE
not isinstance(1, ICC)
next(reversed(Rev())) < EDGE
1 + RI() < EDGE
2 * RI() < EDGE
sum([RI()]) < EDGE
Delegate(ST).n < EDGE
getattr(Delegate(ST), "n") < EDGE
hasattr(Delegate(ST), "n") and Delegate(ST).n < EDGE
GAtt().x < EDGE
HSl().a < EDGE
HSl.a < EDGE
len(list(It())) < EDGE
sum(It()) < 21
[*It()][-1] < EDGE
max(It()) < EDGE
dict.fromkeys(It()).get(EDGE, 1) == 1
set(It()) != {1, 2, 3, 4, 5, 6}
len(list(zip(It(), range(50)))) < EDGE
len(list(map(str, It()))) < EDGE
any(v == EDGE for v in It()) is False
len(list(itertools.chain(It(), [1]))) < EDGE + 1
sum(1 for _ in It()) < EDGE
" ".join(map(str, It())).count(" ") < EDGE - 1
len(list(gen())) < EDGE
len(list(gen2())) < EDGE
sum(gen2()) < 15
tuple(gen())[-1:] != (EDGE - 1,)
len([*gen()]) < EDGE
len(dict(enumerate(gen()))) < EDGE
len(sorted(gen())) < EDGE
max(gen(), default=0) < EDGE - 1
trycatch() < EDGE
fin() < EDGE
match_({"n": ST.n})
walrus() < EDGE
rec(3) < EDGE
outer()() < EDGE
glob() < EDGE
wrapped() < EDGE
cached_n(ST.n) < EDGE
default() < EDGE
kwonly() < EDGE
Static.s() < EDGE
Static.c() < EDGE
Static().p < EDGE
lam() < EDGE
part(1) < EDGE
red([0, 0]) < EDGE
list(map(lambda k: ST.n, [0]))[0] < EDGE
list(filter(lambda k: ST.n < EDGE, [0])) != []
sorted([1, 2], key=lambda k: k if ST.n < EDGE else -k)[0] == 1
min([1, 2], key=lambda k: k if ST.n < EDGE else -k) == 1
list(itertools.takewhile(lambda k: ST.n < EDGE, [1])) == [1]
list(itertools.starmap(lambda a, b: ST.n, [(1, 2)]))[0] < EDGE
list(itertools.accumulate([1, 1], lambda a, b: ST.n))[-1] < EDGE
list(itertools.groupby([1], key=lambda k: ST.n))[0][0] < EDGE
functools.reduce(lambda a, b: ST.n, [1, 1]) < EDGE
next(filter(lambda k: k >= ST.n, itertools.count())) < EDGE
collections.defaultdict(lambda: ST.n)["a"] < EDGE
(lambda d: d["a"])(collections.defaultdict(lambda: ST.n)) < EDGE
torch.nn.Sequential(torch.nn.Identity())(torch.tensor(float(ST.n))).item() < EDGE
operator.call(lam) < EDGE if hasattr(operator, "call") else ST.n < EDGE
eval("ST.n") < EDGE
(lambda: (yield))().__next__() is None and ST.n < EDGE
contextlib.ExitStack().enter_context(CD()).v < EDGE
types.MethodType(lambda s: ST.n, 1)() < EDGE
copy.copy(ST).n < EDGE
str(Exc()) < str(EDGE)
f"{Exc()}" < str(EDGE)
"".join(sorted(str(ST.n))) < str(EDGE)
ST.__dict__["n"] < EDGE
object.__getattribute__(ST, "n") < EDGE
vars(ST).get("n") < EDGE
[ST.n for _ in range(1)][0] < EDGE
{ST.n: 1}.get(EDGE) is None
(ST.n,) + () < (EDGE,)
""".strip().splitlines()
