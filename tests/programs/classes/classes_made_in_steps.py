"""Classes that a step defines, with all that Python calls meanwhile; and objects made in unusual ways."""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import functools
import types
import typing

import torch

from tests.programs.harness import Program, program


def _of(step, state, change=None):
    before = {} if change is None else {6: change, 8: change}
    return Program(step, [torch.ones(())] * 10, state=state, before=before)


@program(speculated=0, compiles=9)
def init_subclass_counts():
    class Base:
        seen = []

        def __init_subclass__(cls):
            Base.seen.append(1)

    def step(x):
        class New(Base):
            pass

        return x * len(Base.seen)

    return _of(step, lambda: list(Base.seen))


@program(speculated=0, compiles=9)
def init_subclass_counts_unread():
    class Base:
        seen = []

        def __init_subclass__(cls, **k):
            Base.seen.append(k)

    def step(x):
        class New(Base, a=1):
            pass

        return x

    return _of(step, lambda: list(Base.seen))


@program(speculated=0, compiles=9)
def init_subclass_by_type():
    class Base:
        seen = []

        def __init_subclass__(cls, **k):
            Base.seen.append(1)

    def step(x):
        New = type("New", (Base,), {"a": 1})
        return x * len(Base.seen) + New.a

    return _of(step, lambda: list(Base.seen))


@program(speculated=0, compiles=9)
def init_subclass_by_new_class():
    class Base:
        seen = []

        def __init_subclass__(cls, **k):
            Base.seen.append(1)

    def step(x):
        New = types.new_class("New", (Base,), {}, lambda ns: ns.update(a=1))
        return x * len(Base.seen) + New.a

    return _of(step, lambda: list(Base.seen))


@program(speculated=0, compiles=9)
def set_name_counts():
    seen = []

    class F:
        def __set_name__(self, o, n):
            seen.append(n)

    def step(x):
        class New:
            a = F()

        return x * len(seen)

    return _of(step, lambda: list(seen))


@program(speculated=0, compiles=9)
def set_name_counts_unread():
    seen = []

    class F:
        def __set_name__(self, o, n):
            seen.append(n)

    f = F()

    def step(x):
        class New:
            a = f
            b = f

        return x

    return _of(step, lambda: list(seen))


@program(speculated=0, compiles=9)
def a_metaclass_whose_new_counts():
    seen = []

    class M(type):
        def __new__(m, n, b, s):
            seen.append(n)
            return super().__new__(m, n, b, s)

    def step(x):
        class New(metaclass=M):
            pass

        return x * len(seen)

    return _of(step, lambda: list(seen))


@program(speculated=0, compiles=9)
def a_metaclass_whose_init_counts():
    seen = []

    class M(type):
        def __init__(m, n, b, s):
            seen.append(n)
            super().__init__(n, b, s)

    def step(x):
        class New(metaclass=M):
            pass

        return x * len(seen)

    return _of(step, lambda: list(seen))


@program(speculated=0, compiles=9)
def a_metaclass_of_a_metaclass():
    seen = []

    class MM(type):
        def __call__(m, *a):
            seen.append(1)
            return super().__call__(*a)

    class M(type, metaclass=MM):
        pass

    def step(x):
        class New(metaclass=M):
            pass

        return x * len(seen)

    return _of(step, lambda: list(seen))


@program(speculated=0, compiles=9)
def a_metaclass_that_prepares():
    seen = []

    class M(type):
        @classmethod
        def __prepare__(m, n, b):
            seen.append(n)
            return {"k": len(seen)}

    def step(x):
        class New(metaclass=M):
            pass

        return x * New.k

    return _of(step, lambda: list(seen))


@program(speculated=0, compiles=9)
def a_namespace_that_counts():
    class D(dict):
        log = []

        def __setitem__(s, k, v):
            D.log.append(k)
            super().__setitem__(k, v)

    class M(type):
        @classmethod
        def __prepare__(m, n, b):
            return D()

        def __new__(m, n, b, s):
            return super().__new__(m, n, b, dict(s))

    def step(x):
        class New(metaclass=M):
            a = 1

        return x * len(D.log)

    return _of(step, lambda: len(D.log))


@program(speculated=0, compiles=9)
def a_metaclass_of_a_base():
    seen = []

    class M(type):
        def __new__(m, n, b, s):
            seen.append(n)
            return super().__new__(m, n, b, s)

    class Base(metaclass=M):
        pass

    def step(x):
        class New(Base):
            pass

        return x * len(seen)

    return _of(step, lambda: list(seen))


@program(speculated=7, compiles=9)
def a_function_as_metaclass():
    seen = []

    def meta(n, b, s):
        seen.append(n)
        return type(n, b, s)

    def step(x):
        class New(metaclass=meta):
            k = 2

        return x * len(seen) * New.k

    return _of(step, lambda: list(seen))


@program(speculated=7, compiles=9)
def a_metaclass_that_makes_no_class():
    def step(x):
        class New(metaclass=lambda n, b, s: s["k"]):
            k = 2

        return x * New

    return _of(step, lambda: 0)


@program(speculated=7, compiles=9)
def a_decorator_of_a_class():
    seen = []

    def dec(c):
        seen.append(c.__name__)
        c.k = len(seen)
        return c

    def step(x):
        @dec
        class New:
            pass

        return x * New.k

    return _of(step, lambda: list(seen))


@program(speculated=0, compiles=9)
def bases_by_mro_entries():
    seen = []

    class B:
        k = 2

    class E:
        def __mro_entries__(self, bases):
            seen.append(1)
            return (B,)

    e = E()

    def step(x):
        class New(e):
            pass

        return x * New.k * len(seen)

    return _of(step, lambda: list(seen))


@program(speculated=0, compiles=9)
def a_registry_of_classes():
    reg = {}

    class Base:
        def __init_subclass__(cls, name=None):
            reg[name or cls.__name__] = cls

    n = [0]

    def step(x):
        n[0] += 1

        class New(Base, name="a%d" % n[0]):
            pass

        return x * len(reg)

    return _of(step, lambda: len(reg))


@program(speculated=7, compiles=9)
def a_plain_class():
    def step(x):
        class New:
            k = 2

            def f(s, x):
                return x * s.k

        return New().f(x)

    return _of(step, lambda: 0)


@program(speculated=0, compiles=9)
def init_subclass_along_the_order():
    class A:
        n = 0

        def __init_subclass__(cls, **k):
            super().__init_subclass__(**k)
            A.n += 1

    class B:
        n = 0

        def __init_subclass__(cls, **k):
            super().__init_subclass__(**k)
            B.n += 1

    def step(x):
        class C(A, B):
            pass

        return x * (A.n + B.n)

    return _of(step, lambda: (A.n, B.n))


@program(speculated=0, compiles=9)
def subclasses_are_counted():
    class Base:
        pass

    keep = []

    def step(x):
        class New(Base):
            pass

        keep.append(New)
        return x * len(Base.__subclasses__())

    return _of(step, lambda: len(Base.__subclasses__()))


@program(speculated=7, compiles=9)
def an_enumeration():
    def step(x):
        class E(enum.Enum):
            A = 1
            B = 2

        return x * E.B.value * len(E)

    return _of(step, lambda: 0)


@program(speculated=0, compiles=9)
def an_enumeration_by_call():
    def step(x):
        E = enum.Enum("E", "A B C")
        return x * E.C.value

    return _of(step, lambda: 0)


@program(speculated=7, compiles=9)
def a_dataclass():
    n = [0]

    def step(x):
        n[0] += 1

        @dataclasses.dataclass
        class P:
            a: int
            b: int = 2

        p = P(n[0])
        return x * p.a * p.b

    return _of(step, lambda: n)


@program(speculated=7, compiles=9)
def a_factory_of_a_dataclass():
    log = []

    def fac():
        log.append(1)
        return len(log)

    @dataclasses.dataclass
    class P:
        a: int = dataclasses.field(default_factory=fac)

    def step(x):
        return x * P().a

    return _of(step, lambda: log)


@program(speculated=7, compiles=9)
def factories_that_are_objects():
    log = []

    class Fac:
        def __call__(s):
            log.append(1)
            return len(log)

    @dataclasses.dataclass
    class P:
        a: int = dataclasses.field(default_factory=Fac())
        b: list = dataclasses.field(default_factory=functools.partial(list, (1, 2)))

        def __post_init__(s):
            log.append(2)

    def step(x):
        p = P()
        return x * p.a + len(p.b)

    return _of(step, lambda: log)


@program(speculated=0, compiles=9)
def a_namedtuple():
    n = [0]

    def step(x):
        n[0] += 1
        P = collections.namedtuple("P", "a b")
        return x * P(n[0], 2).a

    return _of(step, lambda: n)


@program(speculated=7, compiles=9)
def a_namedtuple_of_typing():
    n = [0]

    def step(x):
        n[0] += 1

        class P(typing.NamedTuple):
            a: int
            b: int = 3

        return x * P(n[0]).b + P(n[0]).a

    return _of(step, lambda: n)


@program(speculated=7, compiles=9)
def an_abstract_class():
    def step(x):
        class A(abc.ABC):
            @abc.abstractmethod
            def f(s): ...

        class B(A):
            def f(s):
                return 2

        try:
            A()
        except TypeError:
            pass
        return x * B().f()

    return _of(step, lambda: 0)


@program(speculated=7, compiles=9)
def a_class_is_registered():
    class A(abc.ABC):
        pass

    class B:
        pass

    b = B()

    def step(x):
        was = isinstance(b, A)
        A.register(B)
        return x * (1 + was + isinstance(b, A))

    return _of(step, lambda: isinstance(b, A))


@program(speculated=0, compiles=9)
def new_classes_are_registered():
    class A(abc.ABC):
        pass

    n = [0]
    keep = []

    def step(x):
        n[0] += 1

        class B:
            pass

        A.register(B)
        keep.append(B)
        return x

    return _of(step, lambda: sum(issubclass(b, A) for b in keep))


@program(speculated=7, compiles=9)
def a_generic_class():
    T = typing.TypeVar("T")

    class G(typing.Generic[T]):
        n = 0

        def f(s):
            G.n += 1
            return G.n

    def step(x):
        class H(G[int]):
            pass

        return x * H().f() + G[int]().f()

    return _of(step, lambda: G.n)


@program(speculated=7, compiles=9)
def a_protocol():
    def step(x):
        @typing.runtime_checkable
        class P(typing.Protocol):
            def f(self): ...

        class A:
            def f(s):
                return 1

        return x * isinstance(A(), P)

    return _of(step, lambda: 0)


@program(speculated=7, compiles=9)
def a_class_with_slots():
    def step(x):
        class S:
            __slots__ = ("a", "b")

            def __init__(s):
                s.a = 1

        s = S()
        s.b = 2
        try:
            s.c = 3
        except AttributeError:
            pass
        return x * s.a * s.b

    return _of(step, lambda: 0)


@program(speculated=6, compiles=9)
def slots_come_and_go():
    class S:
        __slots__ = ("a", "b")

    s = S()
    s.a = 0

    def step(x):
        s.a += 1
        if hasattr(s, "b"):
            del s.b
        else:
            s.b = s.a
        return x * s.a + hasattr(s, "b")

    return _of(step, lambda: (s.a, hasattr(s, "b")))


@program(speculated=7, compiles=9)
def made_by_object_new():
    class A:
        n = 0

        def __init__(s):
            A.n += 1
            s.k = 2

    def step(x):
        a = object.__new__(A)
        b = A.__new__(A)
        a.k = A.n
        b.__init__()
        return x * a.k + b.k

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def new_gives_another_class():
    class A:
        n = 0

        def __new__(cls, k):
            A.n += 1
            return object.__new__(B if k else A)

        def __init__(s, k):
            A.n += 10

    class B(A):
        def __init__(s, k):
            A.n += 100

    def step(x):
        A(0)
        A(1)
        B(0)
        return x * A.n

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def new_gives_what_it_has_kept():
    class A:
        pool = {}

        def __new__(cls, k):
            if k not in cls.pool:
                cls.pool[k] = super().__new__(cls)
            return cls.pool[k]

        def __init__(s, k):
            s.n = getattr(s, "n", 0) + 1

    A(1)

    def step(x):
        return x * A(1).n

    return _of(step, lambda: A(1).n)


@program(speculated=7, compiles=9)
def copies_by_an_own_method():
    class A:
        n = 0

        def __init__(s):
            A.n += 1
            s.v = [A.n]

        def __copy__(s):
            A.n += 10
            return A()

    a = A()

    def step(x):
        b = copy.copy(a)
        return x * A.n + b.v[0]

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def copies_of_slots():
    class A:
        __slots__ = ("__dict__", "a")

    a = A()
    a.a = 1
    a.b = 2

    def step(x):
        b = copy.copy(a)
        b.a += 1
        a.b += 1
        return x * b.a + b.b + a.b

    return _of(step, lambda: (a.a, a.b))


@program(speculated=7, compiles=9)
def copies_by_reduce():
    class A:
        n = 0

        def __reduce__(s):
            A.n += 1
            return (A, ())

    a = A()

    def step(x):
        copy.copy(a)
        copy.deepcopy(a)
        return x * A.n

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def copies_by_state():
    class A:
        n = 0

        def __getstate__(s):
            A.n += 1
            return {"k": A.n}

        def __setstate__(s, st):
            A.n += 10
            s.__dict__.update(st)

    a = A()
    a.k = 5

    def step(x):
        b = copy.copy(a)
        return x * A.n + b.k

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def super_in_odd_places():
    class A:
        n = 0

        def f(s):
            A.n += 1
            return A.n

    class B(A):
        def f(s):
            return super(B, s).f() * 2

        g = lambda s: super(B, s).f()

        @classmethod
        def c(cls):
            return super(B, cls).__name__ and 1

        @staticmethod
        def s(o):
            return super(B, o).f()

        p = property(lambda s: super(B, s).f())

    b = B()

    def step(x):
        sup = super(B, b)
        return x * (b.f() + b.g() + b.s(b) + b.p + sup.f())

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def super_in_comprehensions():
    class A:
        n = 0

        def f(s, i):
            A.n += i
            return A.n

    class B(A):
        def f(s, i):
            f = super().f
            return sum([f(j) for j in range(i)])

    b = B()

    def step(x):
        return x * b.f(3)

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def super_in_attribute_access():
    class A:
        def __setattr__(s, n, v):
            super().__setattr__(n, v * 2)

        def __delattr__(s, n):
            super().__delattr__(n)

        def __getattribute__(s, n):
            return super().__getattribute__(n)

    a = A()
    a.n = 1

    def step(x):
        a.n = a.n % 50 + 1
        a.t = 1
        del a.t
        return x * a.n

    return _of(step, lambda: a.n)


@program(speculated=7, compiles=9)
def a_metaclass_that_keeps_one_object():
    class S(type):
        inst = {}

        def __call__(c, *a):
            if c not in S.inst:
                S.inst[c] = super().__call__(*a)
            return S.inst[c]

    class A(metaclass=S):
        def __init__(s):
            s.n = 0

    A()

    def step(x):
        a = A()
        a.n += 1
        return x * a.n

    return _of(step, lambda: A().n)


@program(speculated=0, compiles=9)
def a_metaclass_that_is_called():
    seen = []

    class M(type):
        def __init__(c, n, b, s, **k):
            seen.append(n)
            type.__init__(c, n, b, s)

    def step(x):
        C = M("C", (), {"k": 3})
        return x * C.k * len(seen)

    return _of(step, lambda: seen)


@program(speculated=0, compiles=9)
def objects_of_new_classes_are_kept():
    keep = []

    def step(x):
        class P:
            def __init__(s, v):
                s.v = v

        keep.append(P(len(keep)))
        return x * keep[-1].v

    return _of(step, lambda: len(keep))


@program(speculated=7, compiles=9)
def an_exception_class():
    n = [0]

    def step(x):
        n[0] += 1

        class E(Exception):
            pass

        try:
            raise E(n[0])
        except E as e:
            return x * e.args[0]

    return _of(step, lambda: n)


@program(speculated=7, compiles=9)
def a_class_with_variables_around_it():
    n = [0]

    def step(x):
        n[0] += 1
        k = n[0]

        class A:
            v = k

            def f(s):
                return k

        return x * A().f() * A.v

    return _of(step, lambda: n)


@program(speculated=7, compiles=9)
def annotations_of_classes():
    class A:
        a: int

    def step(x):
        A.__annotations__["b"] = int

        class B:
            c: int = 1

        return x * len(A.__annotations__) * len(B.__annotations__)

    return _of(step, lambda: len(A.__annotations__))


@program(speculated=0, compiles=9)
def special_methods_of_a_metaclass():
    class M(type):
        n = 0

        def __getattr__(c, name):
            M.n += 1
            return M.n

        def __setattr__(c, name, v):
            M.n += 10
            type.__setattr__(c, name, v)

        def __len__(c):
            M.n += 100
            return M.n

        def __iter__(c):
            return iter([M.n])

        def __contains__(c, k):
            M.n += 1
            return True

        def __getitem__(c, k):
            M.n += 1
            return M.n

        def __bool__(c):
            return True

    class A(metaclass=M):
        pass

    def step(x):
        A.z = 1
        return x * (A.q + len(A) + sum(list(A)) + (1 in A) + A[0]) / 1000

    return _of(step, lambda: M.n)


@program(refused="Registered.__init_subclass__() is called")
def made_by_a_call_of_type_with_a_hook_of_the_base():
    made: list = []

    class Registered:
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            made.append(cls.scale)

    def step(x):
        kept = type("Kept", (Registered,), {"scale": 3})
        return x * kept.scale + len(made)

    return Program(step, [(torch.ones(2) * k,) for k in range(8)], state=made)
