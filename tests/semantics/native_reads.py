"""State of every kind that a step may ask, and the questions: each is answered otherwise from the sixth call on."""

import array
import bisect
import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import heapq
import io
import itertools
import json
import math
import operator
import os
import pathlib
import pickle
import queue
import random
import re
import statistics
import string
import struct
import textwrap
import threading
import types
import typing
import zlib

import numpy as np
import torch

# What the questions name.
ASKED = (
    bisect,
    copy,
    functools,
    hashlib,
    json,
    math,
    operator,
    pickle,
    random,
    re,
    statistics,
    string,
    struct,
    textwrap,
    zlib,
)


EDGE = 6


class Lvl(enum.Enum):
    A = 0
    B = 1
    C = 2
    D = 3
    F = 4
    G = 5
    H = 6

    @classmethod
    def of(cls, n):
        return cls(min(n, 6))


@dataclasses.dataclass
class Cfg:
    n: int = 0
    rows: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Fz:
    n: int = 0


class NT(typing.NamedTuple):
    n: int
    s: str


class Prop:
    def __init__(s):
        s._n = 0

    @property
    def n(s):
        return s._n

    @n.setter
    def n(s, v):
        s._n = v

    @functools.cached_property
    def c(s):
        return s._n

    @staticmethod
    def st(v):
        return v

    @classmethod
    def cm(c, v):
        return v


class GA:
    def __init__(s):
        s.__dict__["d"] = {"n": 0}

    def __getattr__(s, k):
        try:
            return s.__dict__["d"][k]
        except KeyError:
            raise AttributeError(k)

    def __setattr__(s, k, v):
        s.__dict__["d"][k] = v


class Slots:
    __slots__ = ("n",)

    def __init__(s):
        s.n = 0


class H:
    pass


class LSub(list):
    pass


class DSub(dict):
    def __getattr__(s, k):
        return s[k]


class Ctx:
    def __init__(s, o):
        s.o = o

    def __enter__(s):
        return s.o.n

    def __exit__(s, *a):
        return False


def make():
    h = H()
    h.n = 0
    h.l = []
    h.d = {}
    h.t = ()
    h.s = set()
    h.dq = collections.deque(maxlen=4)
    h.c = collections.Counter()
    h.dd = collections.defaultdict(list)
    h.od = collections.OrderedDict()
    h.str = ""
    h.f = 0.0
    h.cfg = Cfg()
    h.fz = Fz()
    h.nt = NT(0, "")
    h.p = Prop()
    h.ga = GA()
    h.sl = Slots()
    h.q = queue.Queue()
    h.ev = threading.Event()
    h.np = np.zeros(3)
    h.ni = np.int64(0)
    h.nf = np.float32(0)
    h.ten = torch.zeros(3)
    h.lvl = Lvl.A
    h.ls = LSub()
    h.ds = DSub(n=0)
    h.ns = types.SimpleNamespace(n=0)
    h.b = b""
    h.ba = bytearray()
    h.arr = array.array("i")
    h.fr = fractions.Fraction(0)
    h.dec = decimal.Decimal(0)
    h.dt = datetime.datetime(2020, 1, 1)
    h.td = datetime.timedelta(0)
    h.cx = 0j
    h.path = pathlib.Path("a")
    h.cm = collections.ChainMap({})
    h.it = iter(range(1000))
    h.cnt = itertools.count()
    h.hp = []
    h.nest = {"a": [{"n": 0}]}
    h.fn = lambda: 0
    h.part = functools.partial(max, 0)
    h.sio = io.StringIO()
    h.gen = (i for i in range(1000))
    h.none = None
    h.mv = None
    h.fs = frozenset()
    h.rng = random.Random(0)
    h.lock = threading.Lock()
    h.mp = types.MappingProxyType(h.d)
    h.rngobj = range(0)
    h.up = []
    h.st2 = set()
    h.klass = type("K", (), {"n": 0})
    h.mod = types.ModuleType("m")
    h.mod.n = 0
    h.env = os.environ
    h.param = torch.nn.Parameter(torch.zeros(()))
    h.lin = torch.nn.Linear(1, 1)
    h.ml = torch.nn.ModuleList()
    h.lin.n = 0
    h.opt = torch.optim.SGD([h.param], lr=0.0)
    return h


def bump(h):
    h.n += 1
    h.l.append(h.n)
    h.d[h.n] = h.n
    h.t = h.t + (h.n,)
    h.s.add(h.n)
    h.dq.append(h.n)
    h.c[h.n % 3] += 1
    h.dd[h.n % 2].append(h.n)
    h.od[str(h.n)] = h.n
    h.str += "x"
    h.f += 1.0
    h.cfg.n += 1
    h.cfg.rows.append(h.n)
    h.fz = Fz(h.n)
    h.nt = h.nt._replace(n=h.n)
    h.p.n = h.n
    h.ga.n = h.n
    h.sl.n = h.n
    h.q.put(h.n)
    h.np[0] += 1
    h.ni = np.int64(h.n)
    h.nf = np.float32(h.n)
    h.ten[0] += 1
    h.lvl = Lvl.of(h.n)
    h.ls.append(h.n)
    h.ds["n"] = h.n
    h.ns.n = h.n
    h.b += b"x"
    h.ba.append(1)
    h.arr.append(h.n)
    h.fr += 1
    h.dec += 1
    h.dt += datetime.timedelta(days=1)
    h.td += datetime.timedelta(days=1)
    h.cx += 1
    h.path = h.path / "b"
    h.cm[h.n] = 1
    next(h.it)
    heapq.heappush(h.hp, -h.n)
    h.nest["a"][0]["n"] = h.n
    h.fn = (lambda k: lambda: k)(h.n)
    h.part = functools.partial(max, h.n)
    h.sio.write("x")
    next(h.gen)
    h.fs = h.fs | {h.n}
    h.rngobj = range(h.n)
    h.klass.n = h.n
    h.mod.n = h.n
    h.param.data.fill_(float(h.n))
    h.lin.n = h.n
    h.ml.append(torch.nn.Identity())
    h.opt.param_groups[0]["lr"] = float(h.n)
    if h.n >= EDGE:
        h.ev.set()
        h.none = h.n
        h.st2.add("a")


QUESTIONS = """
len(h.l) < EDGE
h.l[-1] < EDGE
sum(h.l) < 21
max(h.l) < EDGE
min(h.l[-1:]) < EDGE
h.l == [1, 2]
h.l.count(EDGE) == 0
EDGE not in h.l
h.l[EDGE - 1:] == []
sorted(h.l, reverse=True)[0] < EDGE
list(reversed(h.l))[0] < EDGE
list(map(str, h.l))[-1] < str(EDGE)
any(v >= EDGE for v in h.l) is False
all(v < EDGE for v in h.l)
[v for v in h.l if v >= EDGE] == []
sum(v for v in h.l) < 21
statistics.mean(h.l) < 3.5
np.mean(h.l) < 3.5
np.array(h.l).max() < EDGE
float(torch.tensor(h.l).max()) < EDGE
bisect.bisect(h.l, EDGE - 0.5) == len(h.l)
random.Random(0).choice(h.l[-1:]) < EDGE
json.dumps(h.l) < json.dumps([1,2,3,4,5,6])
str(h.l).count(",") < EDGE - 1
f"{h.l}".count(",") < EDGE - 1
repr(h.l).count(",") < EDGE - 1
pickle.loads(pickle.dumps(h.l))[-1] < EDGE
copy.copy(h.l)[-1] < EDGE
copy.deepcopy(h.l)[-1] < EDGE
functools.reduce(operator.add, h.l) < 21
list(itertools.accumulate(h.l))[-1] < 21
list(zip(h.l, h.l))[-1][0] < EDGE
list(enumerate(h.l))[-1][0] < EDGE - 1
dict(zip(h.l, h.l)).get(EDGE) is None
list(itertools.chain(h.l, [0]))[-2] < EDGE
tuple(h.l)[-1] < EDGE
set(h.l).isdisjoint({EDGE})
next((v for v in h.l if v == EDGE), None) is None
",".join(str(v) for v in h.l).count(",") < EDGE - 1
h.l[len(h.l) // 2] < 4
(lambda *a: a[-1])(*h.l) < EDGE
(lambda *a: len(a))(*h.l) < EDGE
h.l.index(h.n) < EDGE - 1
heapq.nlargest(1, h.l)[0] < EDGE
math.fsum(h.l) < 21
math.prod(h.l[-1:]) < EDGE
len(h.d) < EDGE
EDGE not in h.d
h.d.get(EDGE) is None
max(h.d) < EDGE
max(h.d.values()) < EDGE
list(h.d)[-1] < EDGE
list(h.d.items())[-1][1] < EDGE
sum(h.d.values()) < 21
len({**h.d}) < EDGE
len(h.d | {}) < EDGE
h.d == {1: 1}
next(reversed(h.d)) < EDGE
sorted(h.d)[-1] < EDGE
len(h.mp) < EDGE
EDGE not in h.mp
len(h.t) < EDGE
h.t[-1] < EDGE
h.t < (1, 2, 3, 4, 5, 6)
EDGE not in h.t
len(h.s) < EDGE
EDGE not in h.s
h.s.isdisjoint({EDGE})
not (h.s & {EDGE})
not {EDGE} <= h.s
max(h.s) < EDGE
not h.st2
"a" not in h.st2
sum(h.dq) < 18
h.dq[-1] < EDGE
h.dq[0] < 3
list(h.dq)[-1] < EDGE
h.c[0] < 2
h.c.most_common(1)[0][1] < 3
sum(h.c.values()) < EDGE
h.c.total() < EDGE
len(h.dd[0]) < 3
len(h.od) < EDGE
list(h.od)[-1] < str(EDGE)
next(reversed(h.od)) < str(EDGE)
len(h.str) < EDGE
h.str != "xxxxxx"
h.str.count("x") < EDGE
"xxxxxx" not in h.str
not h.str.startswith("xxxxxx")
h.str[-EDGE:] != "x" * EDGE
len(h.str.split("x")) <= EDGE
re.match("x{6}", h.str) is None
hash(h.str) == hash("x")
textwrap.shorten(h.str, 5) == h.str
h.str < "xxxxxx"
h.str in ("x", "xx", "xxx", "xxxx", "xxxxx")
h.f < EDGE
round(h.f) < EDGE
int(h.f) < EDGE
h.f.is_integer() and h.f < EDGE
math.isclose(h.f, EDGE) is False
h.f // 1 < EDGE
h.f.hex() != float(EDGE).hex()
h.f.as_integer_ratio()[0] < EDGE
h.n in range(EDGE)
h.n in {0, 1, 2, 3, 4, 5}
h.n in (1, 2, 3, 4, 5)
h.n.bit_length() < 3 or h.n < EDGE
format(h.n, "03d") < "006"
f"{h.n:b}".count("1") != 2 or h.n < EDGE
str(h.n) < str(EDGE)
"%03d" % h.n < "006"
"{:03d}".format(h.n) < "006"
str(h.n).zfill(3) < "006"
divmod(h.n, EDGE)[0] == 0
bytes([h.n])[0] < EDGE
struct.pack("i", h.n) != struct.pack("i", EDGE)
chr(65 + h.n) < chr(65 + EDGE)
slice(h.n).stop < EDGE
len(range(h.n)) < EDGE
[0] * h.n < [0] * EDGE
h.n.to_bytes(2, "big") < (EDGE).to_bytes(2, "big")
h.cfg.n < EDGE
dataclasses.asdict(h.cfg)["n"] < EDGE
dataclasses.astuple(h.cfg)[0] < EDGE
dataclasses.replace(h.cfg, rows=[]).n < EDGE
vars(h.cfg)["n"] < EDGE
h.cfg != Cfg(EDGE, [1,2,3,4,5,6])
repr(h.cfg) != repr(Cfg(EDGE, [1,2,3,4,5,6]))
copy.copy(h.cfg).n < EDGE
copy.deepcopy(h.cfg).n < EDGE
pickle.loads(pickle.dumps(h.cfg)).n < EDGE
h.fz.n < EDGE
h.fz != Fz(EDGE)
hash(h.fz) != hash(Fz(EDGE))
h.fz in {Fz(1), Fz(2), Fz(3), Fz(4), Fz(5)}
h.fz not in [Fz(EDGE)]
h.nt.n < EDGE
h.nt < NT(EDGE, "")
h.nt[0] < EDGE
h.nt._asdict()["n"] < EDGE
h.p.n < EDGE
getattr(h.p, "n") < EDGE
operator.attrgetter("p.n")(h) < EDGE
operator.attrgetter("n")(h) < EDGE
operator.itemgetter(-1)(h.l) < EDGE
operator.methodcaller("count", "x")(h.str) < EDGE
h.p.st(h.n) < EDGE
h.p.cm(h.n) < EDGE
h.ga.n < EDGE
hasattr(h.ga, "m") is False and h.ga.n < EDGE
h.sl.n < EDGE
h.q.qsize() < EDGE
not h.q.qsize() >= EDGE
not h.ev.is_set()
h.np[0] < EDGE
float(h.np[0]) < EDGE
h.np.sum() < EDGE
(h.np < EDGE).all()
h.np.tolist()[0] < EDGE
h.ni < EDGE
int(h.ni) < EDGE
h.nf < EDGE
float(h.nf) < EDGE
float(h.ten[0]) < EDGE
h.ten[0].item() < EDGE
bool((h.ten < EDGE).all())
h.ten.tolist()[0] < EDGE
h.ten.numpy()[0] < EDGE
float(h.ten.sum()) < EDGE
h.lvl is not Lvl.H
h.lvl != Lvl.H
h.lvl.value < EDGE
h.lvl.name != "H"
h.lvl in (Lvl.A, Lvl.B, Lvl.C, Lvl.D, Lvl.F, Lvl.G)
{Lvl.H: 0}.get(h.lvl) is None
Lvl(min(h.n, 6)) is not Lvl.H
len(h.ls) < EDGE
h.ls[-1] < EDGE
h.ds.n < EDGE
h.ds["n"] < EDGE
h.ns.n < EDGE
h.ns != types.SimpleNamespace(n=EDGE)
repr(h.ns) != repr(types.SimpleNamespace(n=EDGE))
vars(h.ns)["n"] < EDGE
len(h.b) < EDGE
h.b != b"xxxxxx"
len(h.ba) < EDGE
h.ba < bytearray([1] * EDGE)
len(h.arr) < EDGE
h.arr[-1] < EDGE
sum(h.arr) < 21
h.fr < EDGE
float(h.fr) < EDGE
h.fr.numerator < EDGE
h.dec < EDGE
int(h.dec) < EDGE
h.dt < datetime.datetime(2020, 1, 7)
h.dt.day < 7
h.td.days < EDGE
h.td < datetime.timedelta(days=EDGE)
h.cx.real < EDGE
abs(h.cx) < EDGE
h.cx != EDGE
len(h.path.parts) < EDGE + 1
str(h.path).count("b") < EDGE
h.path != pathlib.Path("a/b/b/b/b/b/b")
len(h.cm) < EDGE
EDGE not in h.cm
h.hp[0] > -EDGE
heapq.nsmallest(1, h.hp)[0] > -EDGE
h.nest["a"][0]["n"] < EDGE
json.dumps(h.nest) != json.dumps({"a": [{"n": EDGE}]})
h.nest != {"a": [{"n": EDGE}]}
copy.deepcopy(h.nest)["a"][0]["n"] < EDGE
str(h.nest) != str({"a": [{"n": EDGE}]})
h.fn() < EDGE
h.part(1) < EDGE
h.part.args[0] < EDGE
len(h.sio.getvalue()) < EDGE
h.none is None
not h.none
(h.none or 0) < EDGE
len(h.fs) < EDGE
EDGE not in h.fs
len(h.rngobj) < EDGE
(EDGE - 1) not in h.rngobj
h.klass.n < EDGE
h.klass().n < EDGE
getattr(h.klass, "n") < EDGE
vars(h.klass)["n"] < EDGE
h.mod.n < EDGE
vars(h)["n"] < EDGE
h.__dict__["n"] < EDGE
h.__dict__.get("n") < EDGE
dict(vars(h))["n"] < EDGE
{k: v for k, v in vars(h).items() if k == "n"}["n"] < EDGE
getattr(h, "n", 0) < EDGE
Ctx(h).__enter__() < EDGE
float(h.param.detach()) < EDGE
h.param.item() < EDGE
h.param.data.item() < EDGE
h.lin.n < EDGE
len(h.ml) < EDGE
len(list(h.ml)) < EDGE
len(list(h.ml.children())) < EDGE
sum(1 for _ in h.ml) < EDGE
h.opt.param_groups[0]["lr"] < EDGE
h.opt.state_dict()["param_groups"][0]["lr"] < EDGE
h.opt.defaults["lr"] == 0.0 and h.opt.param_groups[0]["lr"] < EDGE
zlib.crc32(h.b) != zlib.crc32(b"xxxxxx")
hashlib.md5(h.b).hexdigest() != hashlib.md5(b"xxxxxx").hexdigest()
isinstance(h.none, type(None))
type(h.none) is type(None)
callable(h.fn) and h.fn() < EDGE
string.Template("$n").substitute(n=h.n) < str(EDGE)
np.asarray(h.l)[-1] < EDGE
np.sum(h.l) < 21
torch.as_tensor(h.l)[-1] < EDGE
torch.tensor(h.n) < EDGE
bool(torch.tensor(h.f) < EDGE)
bool(torch.tensor([h.n, 0]).max() < EDGE)
torch.full((1,), h.n).item() < EDGE
torch.arange(h.n).numel() < EDGE
torch.zeros(h.n).shape[0] < EDGE
torch.Size([h.n])[0] < EDGE
torch.ones(h.n).sum().item() < EDGE
random.Random(h.n).random() != random.Random(EDGE).random()
decimal.Decimal(h.n) < EDGE
fractions.Fraction(h.n, 2) < 3
complex(h.n, 0).real < EDGE
datetime.timedelta(days=h.n).days < EDGE
collections.Counter(h.l)[EDGE] == 0
collections.deque(h.l, maxlen=2)[-1] < EDGE
list(itertools.islice(h.l, EDGE - 1, None)) == []
list(itertools.takewhile(lambda v: v < EDGE, h.l)) == h.l
max(h.l, key=lambda v: v) < EDGE
max(h.l, default=0) < EDGE
sorted(h.l, key=lambda v: -v)[0] < EDGE
np.argmax(h.l) < EDGE - 1
np.unique(h.l).size < EDGE
np.isin(EDGE, h.l).item() is False
""".strip().splitlines()
