"""Unusual object models: own attribute access, descriptors, proxies, a false ``__class__``, subclasses of builtins."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import math

import torch

from tests.programs.harness import Program, program


def _of(step, state, change=None):
    before = {} if change is None else {6: change, 8: change}
    return Program(step, [torch.ones(())] * 10, state=state, before=before)


@program(speculated=7, compiles=9)
def getattribute_counts():
    class A:
        n = 0

        def __getattribute__(s, name):
            A.n += 1
            return object.__getattribute__(s, name)

    a = A()
    a.k = 2

    def step(x):
        return x * a.k + A.n

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def getattribute_counts_arg():
    class A:
        n = 0

        def __getattribute__(s, name):
            if name != "__dict__":
                A.n += 1
            return object.__getattribute__(s, name)

        def f(s, x):
            return x * s.k

    a = A()
    a.k = 2

    def step(x):
        return a.f(x) + A.n

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def class_property():
    class Real:
        k = 3

    class Proxy:
        n = 0

        @property
        def __class__(s):
            Proxy.n += 1
            return Real

    p = Proxy()

    def step(x):
        return x * (isinstance(p, Real) + 1) + Proxy.n

    return _of(step, lambda: Proxy.n)


@program(speculated=0, compiles=9)
def lazy_proxy():
    class Target:
        def __init__(s):
            s.v = 2

    class Lazy:
        loads = 0

        def __init__(s):
            object.__setattr__(s, "_t", None)

        def __getattribute__(s, name):
            t = object.__getattribute__(s, "_t")
            if t is None:
                Lazy.loads += 1
                t = Target()
                object.__setattr__(s, "_t", t)
            return getattr(t, name)

        def __setattr__(s, name, v):
            setattr(object.__getattribute__(s, "_t"), name, v)

    p = Lazy()

    def step(x):
        p.v
        p.v = p.v + 1
        return x * p.v + Lazy.loads

    return _of(step, lambda: Lazy.loads)


@program(speculated=5, compiles=9)
def getattr_proxy():
    class W:
        def __init__(s, o):
            s.__dict__["o"] = o
            s.__dict__["log"] = []

        def __getattr__(s, n):
            s.log.append(n)
            return getattr(s.o, n)

        def __setattr__(s, n, v):
            s.log.append(n)
            setattr(s.o, n, v)

        def __call__(s, *a):
            s.log.append("call")
            return s.o(*a)

    class T:
        def __init__(s):
            s.k = 1

        def __call__(s, x):
            return x * s.k

    w = W(T())

    def step(x):
        w.k = w.k + 1
        if len(w.log) > 20:
            w.log.clear()
        return w(x) + len(w.log)

    return _of(step, lambda: (w.log, w.o.k))


@program(speculated=7, compiles=9)
def module_getattr():
    class M(torch.nn.Module):
        def __init__(s):
            super().__init__()
            s.lin = torch.nn.Linear(1, 1)
            s.n = 0

        def __getattr__(s, name):
            if name == "alias":
                return s.lin
            return super().__getattr__(name)

        def __setattr__(s, name, v):
            if name == "n" and v > 100:
                v = 0
            super().__setattr__(name, v)

        def forward(s, x):
            s.n += 1
            return s.alias(x.reshape(1, 1)).sum() * 0 + s.n * x

    m = M()

    def step(x):
        return m(x).detach()

    return _of(step, lambda: m.n)


@program(speculated=3, compiles=9)
def descriptor_validated():
    class V:
        def __set_name__(s, o, n):
            s.n = "_" + n

        def __get__(s, i, o):
            return s if i is None else getattr(i, s.n)

        def __set__(s, i, v):
            if v > 5:
                v = 0
            setattr(i, s.n, v)

        def __delete__(s, i):
            delattr(i, s.n)

    class A:
        a = V()
        b = V()

    o = A()
    o.a = 1
    o.b = 2

    def step(x):
        o.a += 1
        o.b = o.a + 1
        del o.b
        return x * o.a + hasattr(o, "b")

    return _of(step, lambda: o.__dict__)


@program(speculated=3, compiles=9)
def nondata_shadow():
    class D:
        n = 0

        def __get__(s, i, o):
            D.n += 1
            return D.n

    class A:
        d = D()

    a = A()
    b = A()

    def step(x):
        if D.n % 5 == 4:
            b.__dict__["d"] = 7
        return x * a.d + b.d

    return _of(step, lambda: (D.n, b.__dict__))


@program(speculated=0, compiles=9)
def slots_desc():
    class A:
        __slots__ = ("v",)
        get = property(lambda s: s.v)

    A.v2 = A.v
    a = A()
    a.v = 1

    def step(x):
        a.v2 += 1
        return x * a.get * A.v.__get__(a)

    return _of(step, lambda: a.v)


@program(speculated=7, compiles=9)
def slots_inherit():
    class A:
        __slots__ = ("a",)

    class B(A):
        __slots__ = ("__dict__", "b")

    o = B()
    o.a = 1
    o.b = 2
    o.c = 3

    def step(x):
        o.a += 1
        o.b += o.a
        o.c += o.b
        return x * (o.a + o.b + o.c)

    return _of(step, lambda: (o.a, o.b, o.__dict__))


@program(speculated=7, compiles=9)
def weird_eq():
    class A:
        n = 0

        def __eq__(s, o):
            A.n += 1
            return o

        __hash__ = None

    a = A()

    def step(x):
        return x * (3 if a == 1 else 2) + (4 if a == 0 else 5) + (a != 0) + A.n

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def eq_tensor():
    class A:
        def __init__(s, t):
            s.t = t

        def __eq__(s, o):
            return s.t == o.t

        __hash__ = object.__hash__

    a, b = A(torch.tensor(1.0)), A(torch.tensor(1.0))

    def step(x):
        return x * (a == b) + (a != b) * 1.0

    return _of(step, lambda: 0)


@program(speculated=0, compiles=9)
def contains_iter():
    class A:
        n = 0

        def __iter__(s):
            A.n += 1
            yield A.n
            yield 5

    a = A()

    def step(x):
        return x * ((5 in a) + (7 in a) + sum(a) + max(a) + len(list(a)) + len({*a}))

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def getitem_seq():
    class A:
        n = 0

        def __getitem__(s, i):
            A.n += 1
            if i >= 3:
                raise IndexError
            return i

    a = A()

    def step(x):
        p, q, r = a
        return x * (sum(a) + p + q + r + (2 in a) + len([*a]) + sum(i for i in a)) + A.n

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def len_only_truth():
    class A:
        n = 0

        def __len__(s):
            A.n += 1
            return A.n % 3

    a = A()

    def step(x):
        return x * (2 if a else 1) + (not a) + (((a and 1) or 0) if bool(a) else 5)

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def iadd_returns_other():
    class A:
        def __init__(s):
            s.n = 0

        def __iadd__(s, o):
            s.n += o
            return s.n

    a = A()
    h = {"k": a}
    row = [a]

    def step(x):
        b = a
        b += 1
        row[0] = a
        row[0] += 1
        h["k"] = a
        h["k"] += 1
        return x * b + row[0] + h["k"]

    return _of(step, lambda: a.n)


@program(speculated=4, compiles=9)
def attr_iadd():
    class C:
        def __init__(s):
            s._v = 0
            s.log = []

        @property
        def v(s):
            s.log.append("g")
            return s._v

        @v.setter
        def v(s, x):
            s.log.append("s")
            s._v = x

        @v.deleter
        def v(s):
            s.log.append("d")
            s._v = 0

    c = C()

    def step(x):
        c.v += 1
        if c.v > 5:
            del c.v
        n = len(c.log)
        if n > 30:
            c.log.clear()
        return x * c.v + n

    return _of(step, lambda: (c._v, c.log))


@program(speculated=7, compiles=9)
def chained_cmp():
    class A:
        n = 0

        def __init__(s, v):
            s.v = v

        def __lt__(s, o):
            A.n += 1
            return s.v < (o.v if isinstance(o, A) else o)

    a, b = A(1), A(2)

    def step(x):
        return x * (a < b < 3) + A.n + (1 if a < b < b else 0) + min(a, b).v + sorted([b, a])[0].v

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def total_order():
    @functools.total_ordering
    class A:
        n = 0

        def __init__(s, v):
            s.v = v

        def __eq__(s, o):
            A.n += 1
            return s.v == o.v

        def __lt__(s, o):
            A.n += 1
            return s.v < o.v

    a, b = A(1), A(2)

    def step(x):
        return x * ((a >= b) + (a <= b) + (a > b)) + A.n

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def context_odd():
    class C:
        n = 0

        def __enter__(s):
            C.n += 1
            return C.n

        def __exit__(s, *e):
            C.n += 1
            return e[0] is KeyError

    c = C()

    def step(x):
        with c as k, c:
            pass
        with c:
            raise KeyError
        with contextlib.suppress(ValueError):
            with c as j:
                raise ValueError
        return x * k + C.n

    return _of(step, lambda: C.n)


@program(speculated=5, compiles=9)
def ctx_deco():
    log = []

    @contextlib.contextmanager
    def cm(k):
        log.append(k)
        try:
            yield len(log)
        finally:
            log.append(-k)

    class CD(contextlib.ContextDecorator):
        def __enter__(s):
            log.append(7)
            return s

        def __exit__(s, *e):
            return False

    @CD()
    def f(x):
        return x * 2

    def step(x):
        with cm(2) as n:
            y = f(x)
        with contextlib.ExitStack() as st:
            st.enter_context(cm(3))
            st.callback(log.append, 9)
        if len(log) > 40:
            log.clear()
        return y + n

    return _of(step, lambda: log)


@program(speculated=7, compiles=9)
def callable_chain():
    class C:
        n = 0

        def __call__(s, x):
            C.n += 1
            return x * C.n

    class D:
        __call__ = C()

    class E:
        __call__ = D()

    e = E()

    def step(x):
        return e(x)

    return _of(step, lambda: C.n)


@program(speculated=7, compiles=9)
def classmethod_alt():
    class A:
        n = 0

        @classmethod
        def make(cls, **k):
            cls.n += 1
            o = cls()
            o.__dict__.update(k)
            return o

    class B(A):
        pass

    def step(x):
        return x * B.make(v=2).v + B.n + A.n

    return _of(step, lambda: (A.n, B.n))


@program(speculated=7, compiles=9)
def init_returns_value():
    class A:
        n = 0
        __init__ = lambda s: setattr(A, "n", A.n + 1) or 5

    def step(x):
        try:
            A()
        except TypeError as e:
            return x * A.n + len(str(e))

    return _of(step, lambda: A.n)


@program(speculated=4, compiles=9)
def missing_default():
    class D(dict):
        def __missing__(s, k):
            s[k] = len(s)
            return s[k]

    d = D()
    n = [0]

    def step(x):
        n[0] += 1
        return x * d[n[0] % 4] + d.get(99, 1) + len(d)

    return _of(step, lambda: dict(d))


@program(speculated=4, compiles=9)
def default_dict_odd():
    class F:
        n = 0

        def __call__(s):
            F.n += 1
            return [F.n]

    d = collections.defaultdict(F())
    k = [0]

    def step(x):
        k[0] += 1
        d[k[0] % 3].append(1)
        return x * len(d) + F.n

    return _of(step, lambda: dict(d))


@program(speculated=0, compiles=9)
def list_subclass_methods():
    class L(list):
        n = 0

        def append(s, v):
            L.n += 1
            super().append(v)

        def __getitem__(s, i):
            L.n += 1
            return super().__getitem__(i)

        def __iter__(s):
            L.n += 1
            return super().__iter__()

        def __len__(s):
            L.n += 1
            return super().__len__()

        def __contains__(s, v):
            L.n += 1
            return super().__contains__(v)

        def __setitem__(s, i, v):
            L.n += 1
            super().__setitem__(i, v)

    row = L([1, 2])

    def step(x):
        row.append(3)
        if len(row) > 5:
            row[:] = [1, 2]
        return x * row[0] + len(row) + (3 in row) + sum(row) + L.n

    return _of(step, lambda: (list.copy(row), L.n))


@program(speculated=7, compiles=9)
def dict_subclass_methods():
    class D(dict):
        n = 0

        def __getitem__(s, k):
            D.n += 1
            return super().__getitem__(k) * 2

        def __setitem__(s, k, v):
            D.n += 1
            super().__setitem__(k, v + 1)

        def get(s, k, d=None):
            D.n += 1
            return super().get(k, d)

        def __contains__(s, k):
            D.n += 1
            return super().__contains__(k)

        def keys(s):
            D.n += 1
            return super().keys()

        def items(s):
            D.n += 1
            return super().items()

        def update(s, *a, **k):
            D.n += 1
            super().update(*a, **k)

    d = D(a=1)

    def step(x):
        d["b"] = d["a"] % 7
        d.update(c=3)
        q = dict(d)
        r = {**d}
        return x * d["b"] + d.get("c") + ("b" in d) + len(d.keys()) + D.n + q["a"] + r["b"]

    return _of(step, lambda: (dict.copy(d), D.n))


@program(speculated=0, compiles=9)
def int_subclass():
    class Index(int):
        n = 0

        def __add__(s, o):
            Index.n += 1
            return Index(int(s) + int(o))

        __radd__ = __add__

        def __mul__(s, o):
            Index.n += 1
            return float(int(s)) * o

    i = Index(3)

    def step(x):
        return x * (i + 1) + (2 + i) + (i * 2) + sum([i, i]) + Index.n

    return _of(step, lambda: Index.n)


@program(speculated=7, compiles=9)
def float_subclass_state():
    class F(float):
        pass

    f = F(2.0)
    f.k = 1

    def step(x):
        f.k += 1
        return x * f + f.k

    return _of(step, lambda: f.k)


@program(speculated=7, compiles=9)
def str_subclass():
    class S(str):
        n = 0

        def __add__(s, o):
            S.n += 1
            return S(str(s) + o)

        def __len__(s):
            S.n += 1
            return 3

        def __eq__(s, o):
            S.n += 1
            return True

        __hash__ = str.__hash__

        def upper(s):
            S.n += 1
            return "Q"

    s = S("ab")

    def step(x):
        return x * len(s) + len(s + "c") + (s == "zz") + len(s.upper()) + S.n

    return _of(step, lambda: S.n)


@program(speculated=7, compiles=9)
def tuple_subclass():
    class T(tuple):
        n = 0

        def __new__(cls, *a):
            T.n += 1
            return super().__new__(cls, a)

        def __getitem__(s, i):
            T.n += 1
            return super().__getitem__(i)

        @property
        def first(s):
            return self0(s)

    def self0(s):
        return s[0]

    t = T(2, 3)

    def step(x):
        u = T(*t)
        a, b = u
        return x * t[0] + u.first + a + b + T.n

    return _of(step, lambda: T.n)


@program(speculated=5, compiles=9)
def enum_methods():
    class E(enum.Enum):
        A = 1
        B = 2

        @property
        def twice(s):
            return s.value * 2

        @classmethod
        def pick(cls, n):
            return list(cls)[n % 2]

        def __call__(s, x):
            return x * s.value

        @classmethod
        def _missing_(cls, v):
            return cls.A

    n = [0]

    def step(x):
        n[0] += 1
        e = E.pick(n[0])
        return e(x) + e.twice + E(77).value + len(E) + (e in E) + E["B"].value

    return _of(step, lambda: n)


@program(speculated=5, compiles=9)
def flag_ops():
    class F(enum.Flag):
        A = 1
        B = 2
        C = 4

    n = [0]

    def step(x):
        n[0] += 1
        f = F.A | F.B if n[0] % 2 else F.C
        return x * f.value + bool(f & F.A) + (F.A in f)

    return _of(step, lambda: n)


@program(speculated=7, compiles=9)
def generator_obj():
    class G:
        n = 0

        def __iter__(s):
            for i in range(2):
                G.n += 1
                got = yield G.n
                if got:
                    G.n += got

    g = G()

    def step(x):
        it = iter(g)
        a = next(it)
        b = it.send(5)
        return x * a + b + sum(g) + G.n

    return _of(step, lambda: G.n)


@program(speculated=0, compiles=9)
def setattr_on_class_desc():
    class M(type):
        log = []

        def __setattr__(c, n, v):
            M.log.append(n)
            super().__setattr__(n, v)

        def __delattr__(c, n):
            M.log.append("-" + n)
            super().__delattr__(n)

    class A(metaclass=M):
        k = 0

    def step(x):
        A.k += 1
        A.t = 1
        del A.t
        if len(M.log) > 20:
            M.log.clear()
        return x * A.k + len(M.log)

    return _of(step, lambda: (M.log, A.k))


@program(speculated=7, compiles=9)
def mro_method():
    class M(type):
        def mro(c):
            return [c, Extra, *type.mro(c)[1:]]

    class Extra:
        v = [3]  # Python itself may find an old value here once the attribute is set: it does not know of A

    class A(metaclass=M):
        pass

    a = A()

    def step(x):
        Extra.v[0] += 1
        return x * a.v[0]

    return _of(step, lambda: Extra.v[0])


@program(speculated=7, compiles=9)
def instancecheck():
    class M(type):
        n = 0

        def __instancecheck__(c, o):
            M.n += 1
            return M.n % 2 == 0

        def __subclasscheck__(c, o):
            M.n += 1
            return True

    class A(metaclass=M):
        pass

    def step(x):
        return x * (1 + isinstance(3, A)) + issubclass(int, A) + isinstance(A(), (int, A)) + M.n

    return _of(step, lambda: M.n)


@program(refused="by a __subclasshook__ that may change something")
def subclasshook():
    class A(abc.ABC):
        n = 0

        @classmethod
        def __subclasshook__(cls, c):
            A.n += 1
            return hasattr(c, "zz")

    class B:
        zz = 1

    b = B()

    def step(x):
        return x * (1 + isinstance(b, A) + issubclass(B, A) + isinstance(3, A))

    return _of(step, lambda: 0)


@program(speculated=7, compiles=9)
def bool_raises():
    class A:
        n = 0

        def __bool__(s):
            A.n += 1
            raise ValueError(A.n)

    a = A()

    def step(x):
        try:
            return x if a else -x
        except ValueError as e:
            return x * e.args[0]

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def index_float():
    class Index:
        n = 0

        def __index__(s):
            Index.n += 1
            return Index.n % 2

        def __float__(s):
            Index.n += 1
            return 2.0

    i = Index()
    row = [5, 6]

    def step(x):
        return x * row[i] + math.sqrt(i) + len(range(i)) + float(i) + int(i) + len("ab"[i:]) + Index.n

    return _of(step, lambda: Index.n)


@program(speculated=0, compiles=9)
def tensor_index():
    class Index:
        def __init__(s):
            s.n = 0

        def __index__(s):
            return s.n % 2

    i = Index()
    w = torch.arange(3.0)

    def step(x):
        i.n += 1
        return x * w[i]

    return _of(step, lambda: i.n)


@program(speculated=7, compiles=9)
def tensor_with_float():
    class F:
        def __init__(s):
            s.n = 0

        def __float__(s):
            return float(s.n)

        def __rmul__(s, o):
            s.n += 1
            return o.__mul__(float(s.n))

        def __radd__(s, o):
            return o + s.n

    f = F()

    def step(x):
        return x * f + f

    return _of(step, lambda: f.n)


@program(speculated=0, compiles=9)
def format_obj():
    class A:
        n = 0

        def __format__(s, spec):
            A.n += 1
            return spec * A.n

        def __str__(s):
            A.n += 1
            return "s"

        def __repr__(s):
            A.n += 1
            return "rr"

    a = A()

    def step(x):
        if A.n > 50:
            A.n = 0
        return (
            x * len(f"{a:x}{a!r}{a!s:>4}")
            + len(format(a, "y"))
            + len("%s %r" % (a, a))
            + len(str([a]))
            + len(str(a))
            + A.n
        )

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def pickle_like():
    class A:
        def __init__(s):
            s.n = 0

        def __deepcopy__(s, memo):
            s.n += 1
            b = A()
            b.n = s.n
            return b

    a = A()

    def step(x):
        return x * copy.deepcopy([a, a])[1].n + copy.deepcopy({"k": a})["k"].n

    return _of(step, lambda: a.n)


@program(speculated=3, compiles=9)
def dyn_attr_names():
    class A:
        pass

    a = A()
    a.k0 = a.k1 = a.k2 = 1
    n = [0]

    def step(x):
        n[0] += 1
        name = "k%d" % (n[0] % 3)
        setattr(a, name, getattr(a, name) + 1)
        return x * getattr(a, name)

    return _of(step, lambda: a.__dict__)


@program(speculated=7, compiles=9)
def method_as_attr():
    class A:
        def __init__(s):
            s.n = 0
            s.m = s.f

        def f(s):
            s.n += 1
            return s.n

    a = A()

    def step(x):
        return x * a.m() + A.f(a) + a.f.__func__(a)

    return _of(step, lambda: a.n)


@program(speculated=2, compiles=9)
def monkey_instance():
    class A:
        def f(s):
            return 1

    a = A()
    n = [0]

    def step(x):
        n[0] += 1
        if n[0] % 3 == 0:
            a.f = lambda: 5
        elif "f" in a.__dict__:
            del a.f
        return x * a.f()

    return _of(step, lambda: n)


@program(speculated=7, compiles=9)
def vars_update():
    class A:
        pass

    a = A()
    a.n = 0

    def step(x):
        vars(a).update(n=a.n + 1, m=2)
        a.__dict__["q"] = a.n
        return x * a.n + a.m + a.q + len(vars(a))

    return _of(step, lambda: vars(a))


@program(speculated=0, compiles=9)
def dir_names():
    class A:
        pass

    a = A()
    a.n = 0
    k = [0]

    def step(x):
        k[0] += 1
        setattr(a, "z%d" % (k[0] % 4), 1)
        return x * len([n for n in dir(a) if n.startswith("z")])

    return _of(step, lambda: a.__dict__)


@program(speculated=0, compiles=9)
def class_dict_iter():
    class A:
        a1 = 1
        a2 = 2

    def step(x):
        A.a1 += 1
        return x * sum(v for k, v in vars(A).items() if k.startswith("a"))

    return _of(step, lambda: A.a1)


@program(speculated=5, compiles=9)
def nested_partial():
    log = []

    def f(a, b, c=0, d=0):
        log.append(a)
        return a + b + c + d

    p = functools.partial(functools.partial(f, 1, c=2), d=3)

    def step(x):
        if len(log) > 5:
            log.clear()
        return x * p(4) + len(log)

    return _of(step, lambda: log)


@program(speculated=7, compiles=9)
def singledispatch_m():
    class A:
        n = 0

        @functools.singledispatchmethod
        def f(s, v):
            A.n += 1
            return 1

        @f.register
        def _(s, v: int):
            A.n += 10
            return 2

    a = A()

    def step(x):
        return x * a.f(3) + a.f("s") + A.n

    return _of(step, lambda: A.n)


@program(speculated=3, compiles=9)
def cached_prop():
    class A:
        n = 0

        @functools.cached_property
        def c(s):
            A.n += 1
            return A.n

    k = A()

    def step(x):
        a = A()
        if A.n % 4 == 0 and "c" in k.__dict__:
            del k.c
        return x * a.c + a.c + k.c

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def abstract_prop():
    class A(abc.ABC):
        @property
        @abc.abstractmethod
        def p(s): ...

    class B(A):
        n = 0

        @property
        def p(s):
            B.n += 1
            return B.n

    b = B()

    def step(x):
        return x * b.p

    return _of(step, lambda: B.n)


@dataclasses.dataclass
class Output(collections.OrderedDict):
    """What models of transformers return: a dictionary whose comparisons ``dataclasses`` has written."""

    logits: torch.Tensor | None = None
    hidden: torch.Tensor | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            if (value := getattr(self, field.name)) is not None:
                self[field.name] = value

    def __getitem__(self, key):
        return dict(self.items())[key] if isinstance(key, str) else tuple(self.values())[key]


@program(speculated=5, compiles=1)
def a_dictionary_that_is_a_dataclass():
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def step(x):
        output = Output(logits=layer(x))
        loss = (output[0] + output["logits"] + output.logits).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item(), len(output), [*output]

    return Program(step, [(torch.randn(2, 3),) for _ in range(8)], state=layer)


class _Counted:
    made = 0


def _kept(make):
    """A step that stores what ``make`` gives, with numbers from before the call in it."""
    _Counted.made = 0
    kept: list = []

    def step(x):
        made = make(x)
        made.late = _Counted.made * 2
        kept[:] = [made, (made, _Counted.made)]
        _Counted.made += 1
        return x * made.born

    def between(_):
        made, (again, _) = kept
        assert made is again
        assert all(type(value) is int for value in vars(made).values()), "no traced number stays"

    return Program(step, [(torch.ones(()),)] * 10, state=kept, between=between)


@program(speculated=7)
def an_exception_with_its_own_new():
    class Rejected(ValueError):
        def __new__(cls, *args):
            made = super().__new__(cls, *args)
            made.born = _Counted.made
            return made

    return _kept(lambda x: Rejected(_Counted.made))


@program(speculated=7)
def a_tuple_with_attributes():
    class Pair(tuple):
        def __new__(cls, *args):
            made = super().__new__(cls, args)
            made.born = _Counted.made
            return made

    return _kept(lambda x: Pair(_Counted.made, 2))


@program(speculated=0)
def classes_whose_module_is_a_property():
    class Quiet(type):
        @property
        def __module__(cls):
            raise ZeroDivisionError

    class Numbered(type):
        @property
        def __module__(cls):
            return 5

    made: list = []

    def step(x):
        kept = Quiet("Kept", (), {"scale": 2})
        other = Numbered("Other", (), {"scale": 3})
        made.append((kept.__name__, other.__module__))
        return x * kept().scale + other().scale

    return Program(step, [(torch.ones(3),)] * 10, state=made)
