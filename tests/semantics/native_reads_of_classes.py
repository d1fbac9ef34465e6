"""Objects of the user's classes and of Python code in libraries, and questions as in ``native_reads``."""

import collections
import collections.abc
import enum
import functools
import types
import typing

import torch
import torch.nn as nn
from torch.utils.data import Dataset

EDGE = 6


@functools.total_ordering
class TO:
    def __init__(s, n=0):
        s.n = n

    def __eq__(s, o):
        return s.n == o.n

    def __lt__(s, o):
        return s.n < o.n


class P(enum.Enum):
    A = 0
    B = 1
    C = 2
    D = 3
    F = 4
    G = 5
    H = 6

    def __lt__(s, o):
        return s.value < o.value


class Seq(collections.abc.Sequence):
    def __init__(s):
        s.v = []

    def __len__(s):
        return len(s.v)

    def __getitem__(s, i):
        return s.v[i]


class Map(collections.abc.MutableMapping):
    def __init__(s):
        s.d = {}

    def __len__(s):
        return len(s.d)

    def __getitem__(s, i):
        return s.d[i]

    def __setitem__(s, k, v):
        s.d[k] = v

    def __delitem__(s, k):
        del s.d[k]

    def __iter__(s):
        return iter(s.d)


class NT(typing.NamedTuple):
    n: int

    def __lt__(s, o):
        return s.n < o.n


class DS(Dataset):
    def __init__(s):
        s.rows = []

    def __len__(s):
        return len(s.rows)

    def __getitem__(s, i):
        return s.rows[i]


class Mod(nn.Module):
    def __init__(s):
        super().__init__()
        s.n = 0
        s.hist = []

    def __len__(s):
        return len(s.hist)

    @property
    def total(s):
        return sum(s.hist)

    def __bool__(s):
        return len(s.hist) < EDGE


class Meta(type):
    def __len__(c):
        return c.n

    def __iter__(c):
        return iter(range(c.n))

    def __contains__(c, k):
        return k < c.n

    def __getitem__(c, k):
        return c.n + k

    def __call__(c, *a):
        return super().__call__(*a)


class Reg(metaclass=Meta):
    n = 0


class Desc:
    def __get__(s, o, t=None):
        return o.n if o is not None else s

    def __set__(s, o, v):
        o.n = v


class HasD:
    v = Desc()

    def __init__(s):
        s.n = 0


class Cell:
    def __init__(s):
        s.n = 0

    def __call__(s, k=0):
        return s.n + k

    def __enter__(s):
        return s.n

    def __exit__(s, *a):
        return s.n >= EDGE

    def __getattr__(s, k):
        if k == "dyn":
            return s.n
        raise AttributeError(k)

    def __copy__(s):
        c = Cell()
        c.n = s.n
        return c

    def __reduce__(s):
        return (mk, (s.n,))

    def __iadd__(s, k):
        s.n += k
        return s

    def __matmul__(s, k):
        return s.n * k

    def __iter__(s):
        for i in range(s.n):
            yield i

    def __delitem__(s, k):
        s.n -= k


def mk(n):
    c = Cell()
    c.n = n
    return c


def make():
    h = types.SimpleNamespace()
    h.n = 0
    h.to = TO()
    h.p = P.A
    h.seq = Seq()
    h.map = Map()
    h.nt = NT(0)
    h.ds = DS()
    h.mod = Mod()
    h.ud = collections.UserDict()
    h.ul = collections.UserList()
    h.us = collections.UserString("")
    h.hd = HasD()
    h.cell = Cell()
    h.pl = nn.ParameterList()
    h.pd = nn.ParameterDict()
    h.md = nn.ModuleDict()
    h.seqm = nn.Sequential()
    h.od = collections.OrderedDict()
    h.c = collections.Counter()
    Reg.n = 0
    h.reg = Reg
    h.cm = collections.ChainMap({}, {})
    h.dd = collections.defaultdict(int)

    class X:
        k = 0

    h.X = X
    h.gx = X()
    return h


def bump(h):
    h.n += 1
    n = h.n
    h.to.n = n
    h.p = P(min(n, 6))
    h.seq.v.append(n)
    h.map[n] = n
    h.nt = NT(n)
    h.ds.rows.append(torch.tensor(float(n)))
    h.mod.n = n
    h.mod.hist.append(n)
    h.ud[n] = n
    h.ul.append(n)
    h.us = h.us + "x"
    h.hd.v = n
    h.cell.n = n
    h.pl.append(nn.Parameter(torch.zeros(1)))
    h.pd[str(n)] = nn.Parameter(torch.zeros(1))
    h.md[str(n)] = nn.Identity()
    h.seqm.append(nn.Identity())
    h.od[n] = n
    h.c["a"] += 1
    h.reg.n = n
    h.cm[n] = n
    h.dd["a"] += 1
    h.X.k = n


EDGE_TO, ENT = (TO(EDGE), NT(EDGE))


def with_(o):
    with o as v:
        return v < EDGE


def sup(o):
    try:
        with o:
            raise ValueError
    except ValueError:
        return True
    return False


QUESTIONS = """
h.to < EDGE_TO
not h.to >= EDGE_TO
not h.to == EDGE_TO
h.to != EDGE_TO
min(h.to, EDGE_TO) is h.to and h.n != EDGE
sorted([EDGE_TO, h.to])[0] is h.to
max([h.to, EDGE_TO]) is EDGE_TO
h.to not in [EDGE_TO]
h.p < P.H
max(h.p, P.G) is P.G
sorted([P.H, h.p])[0] is not P.H
h.p is not P.H
len(h.seq) < EDGE
EDGE not in h.seq
list(h.seq)[-1] < EDGE
list(reversed(h.seq))[0] < EDGE
h.seq.count(EDGE) == 0
h.seq[-1] < EDGE
max(h.seq) < EDGE
sum(h.seq) < 21
not h.seq[EDGE - 1:]
[*h.seq][-1] < EDGE
len(h.map) < EDGE
EDGE not in h.map
h.map.get(EDGE) is None
list(h.map)[-1] < EDGE
dict(h.map).get(EDGE) is None
max(h.map.values()) < EDGE
sum(v for _, v in h.map.items()) < 21
{**h.map}.get(EDGE) is None
h.map == {1: 1} or h.n < EDGE
h.nt < ENT
min(h.nt, ENT) is h.nt
len(h.ds) < EDGE
float(h.ds[-1]) < EDGE
len(Subset(h.ds, range(len(h.ds)))) < EDGE
len(list(DataLoader(h.ds, batch_size=1))) < EDGE
len(DataLoader(h.ds, batch_size=1)) < EDGE
float(next(iter(DataLoader(h.ds, batch_size=100)))[-1]) < EDGE
len(TensorDataset(torch.zeros(len(h.ds)))) < EDGE
len(h.mod) < EDGE
bool(h.mod)
1 if h.mod else 0
h.mod and True
not (not h.mod)
h.mod.total < 21
h.mod.n < EDGE
len(h.ud) < EDGE
EDGE not in h.ud
h.ud.get(EDGE) is None
max(h.ud) < EDGE
len(h.ul) < EDGE
h.ul[-1] < EDGE
EDGE not in h.ul
max(h.ul) < EDGE
h.ul.count(EDGE) == 0
sum(h.ul) < 21
h.ul == [1, 2]
len(h.us) < EDGE
h.us < "xxxxxx"
str(h.us) < "xxxxxx"
h.hd.v < EDGE
getattr(h.hd, "v") < EDGE
h.cell() < EDGE
h.cell(1) < EDGE + 1
list(map(h.cell, [0]))[0] < EDGE
max([0], key=h.cell) == 0 and h.n < EDGE
sorted([1, 0], key=lambda k: h.cell(k))[0] + h.cell() < EDGE
with_(h.cell)
sup(h.cell)
h.cell.dyn < EDGE
hasattr(h.cell, "dyn") and h.cell.dyn < EDGE
h.cell @ 1 < EDGE
len(list(h.cell)) < EDGE
[*h.cell] == list(range(h.n)) and len([*h.cell]) < EDGE
next(iter(h.cell), -1) == 0 and h.n < EDGE
sum(h.cell) < 15
(EDGE - 1) not in h.cell
__import__("copy").copy(h.cell).n < EDGE
__import__("copy").deepcopy(h.cell).n < EDGE
__import__("pickle").loads(__import__("pickle").dumps(h.cell)).n < EDGE
len(h.pl) < EDGE
sum(1 for _ in h.pl) < EDGE
len(h.pd) < EDGE
str(EDGE) not in h.pd
len(h.md) < EDGE
str(EDGE) not in h.md
list(h.md)[-1] < str(EDGE)
len(h.seqm) < EDGE
len(list(h.seqm.parameters())) == 0 and len(h.seqm) < EDGE
sum(1 for _ in h.seqm.modules()) < EDGE + 1
len(h.seqm.state_dict()) == 0 and len(h.seqm) < EDGE
len(h.reg) < EDGE
list(h.reg)[-1] < EDGE - 1
(EDGE - 1) not in h.reg
h.reg[0] < EDGE
h.X.k < EDGE
h.gx.k < EDGE
type(h.gx).k < EDGE
getattr(h.gx, "k") < EDGE
len(h.cm) < EDGE
h.cm.get(EDGE) is None
EDGE not in h.cm
h.dd["a"] < EDGE
h.c["a"] < EDGE
(h.c + h.c)["a"] < 2 * EDGE
(h.c - collections.Counter(a=EDGE - 1))["a"] < 1
h.c <= collections.Counter(a=EDGE - 1)
h.c != collections.Counter(a=EDGE)
sum(h.c.values()) < EDGE
h.c.total() < EDGE
collections.Counter(h.c).most_common(1)[0][1] < EDGE
list(h.od.items())[-1] < (EDGE, EDGE)
functools.reduce(lambda a, b: a + b, h.od.values()) < 21
h.od == collections.OrderedDict([(1, 1)]) or h.n < EDGE
any(h.od[k] >= EDGE for k in h.od) is False
isinstance(h.p, P) and h.p.value < EDGE
(lambda *, n, **k: n)(**vars(h)) < EDGE
(lambda n=h.n: n)() < EDGE
[n for n in [h.n] if n < EDGE] != []
(h.n if h.n < EDGE else None) is not None
(y := h.n) < EDGE
f"{h.n!r:>3}" < "  6"
h.n.__lt__(EDGE)
int.__lt__(h.n, EDGE)
(h.n).__add__(1) < EDGE + 1
h.n.real < EDGE
float.__lt__(float(h.n), float(EDGE))
type(h.n)(h.n) < EDGE
str.__lt__(str(h.n), str(EDGE))
operator.lt(h.n, EDGE)
(h.n, "a") < (EDGE, "a")
[h.n] < [EDGE]
{"a": h.n} != {"a": EDGE} and h.n < EDGE
not bool(h.n // EDGE)
(h.n >> 1) < 3
(h.n & 7) < 6
~h.n > -EDGE - 1
-h.n > -EDGE
abs(-h.n) < EDGE
round(h.n / 1.0) < EDGE
pow(h.n, 2) < EDGE * EDGE
h.n ** 2 < 36
h.n * "x" < EDGE * "x"
[0] * h.n < [0] * EDGE
(0,) * h.n < (0,) * EDGE
range(h.n)[-1] < EDGE - 1
range(0, 10, h.n)[-1] >= 0 and h.n < EDGE
"abcdefg"[h.n - 1] < "f"
[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14][h.n] < EDGE
{i: i for i in range(20)}[h.n] < EDGE
(lambda k: {1: "a", 2: "b"}.get(k, "c"))(h.n) < "d" and h.n < EDGE
""".strip().splitlines()
