"""Special methods that are no Python functions: container methods, partials, classes, callables, descriptors."""

from __future__ import annotations

import collections
import functools
import operator

import torch

from tests.programs.harness import Program, program


@program()
def attributes_are_items_by_get():
    class D(dict):
        __getattr__ = dict.get

    d = D(scale=3.0)

    def step(x):
        return x * d.scale, d.missing

    return Program(step, [torch.ones(2)] * 10, state=d, before={6: lambda: d.update(scale=4.0)})


@program()
def attributes_are_items_by_getitem():
    class D(dict):
        __getattr__ = dict.__getitem__

    d = D(n=1.0)

    def step(x):
        d["n"] = d.n + 1
        return x * d.n

    return Program(step, [torch.ones(2)] * 10, state=d)


@program(speculated=0)
def an_item_that_is_no_attribute():
    class D(dict):
        __getattr__ = dict.__getitem__

    d = D(n=1.0)

    def step(x):
        try:
            return x * d.missing
        except KeyError as error:
            return x + d.n, str(error)

    return Program(step, [torch.ones(2)] * 10, state=d)


@program()
def attributes_are_set_as_items():
    class D(dict):
        __setattr__ = dict.__setitem__

    d = D(n=0)

    def step(x):
        d.n = d["n"] + 1
        return x

    return Program(step, [torch.ones(2)] * 10, state=d)


@program()
def the_usual_attribute_dictionary():
    class D(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__
        __delattr__ = dict.__delitem__

    d = D(n=0, inner=D(k=2.0))

    def step(x):
        d.n += 1
        d.extra = d.n
        d.inner.k = d.inner.k * 1.5
        del d.extra
        return x * d.inner.k + d.n

    return Program(step, [torch.ones(2)] * 10, state=d)


@program()
def attributes_are_deleted_as_items():
    class D(dict):
        __delattr__ = dict.__delitem__

    d = D(n=0)

    def step(x):
        d["a"] = x.sum().item()
        del d.a
        d["n"] += 1
        return x + len(d)

    return Program(step, [torch.ones(2)] * 10, state=d)


@program()
def attributes_by_setdefault():
    class D(dict):
        __getattr__ = dict.setdefault

    d = D()

    def step(x):
        return x + (d.seen is None), d.seen

    return Program(step, [torch.ones(2)] * 10, state=d)


@program()
def attributes_are_taken_by_pop():
    class D(dict):
        __getattr__ = dict.pop

    d = D()
    n = [0]

    def step(x):
        n[0] += 1
        d["k"] = n[0]
        return x * d.k + len(d)

    return Program(step, [torch.ones(2)] * 10, state=(d, n))


@program()
def attributes_of_an_ordered_dictionary():
    class D(collections.OrderedDict):
        __getattr__ = collections.OrderedDict.__getitem__

    d = D(a=1, b=2)

    def step(x):
        d["b"] = d.b + d.a
        return x * d.b

    return Program(step, [torch.ones(2)] * 10, state=lambda: dict(d))


@program()
def attributes_by_a_partial_over_another_object():
    table = {"n": 1}

    class A:
        __getattr__ = functools.partial(table.get)

    a = A()

    def step(x):
        table["n"] = a.n + 1
        return x * a.n

    return Program(step, [torch.ones(2)] * 10, state=table)


@program()
def in_place_or_is_iadd():
    class L(list):
        __ior__ = list.__iadd__

    a = L()

    def step(x):
        b = a
        b |= [1]
        return x + len(a)

    return Program(step, [torch.ones(2)] * 10, state=a)


@program(speculated=0)
def shifting_appends():
    class L(list):
        __lshift__ = list.append
        __rshift__ = list.remove

    a = L()

    def step(x):
        a << 1
        a << 2
        a >> 1
        return x * len(a)

    return Program(step, [torch.ones(2)] * 10, state=a)


@program()
def a_call_appends():
    class L(list):
        __call__ = list.append
        __neg__ = list.copy
        __invert__ = list.clear

    a = L()

    def step(x):
        a(3)
        held = len(-a)
        if held > 4:
            ~a
        return x * held

    return Program(step, [torch.ones(2)] * 20, state=a)


@program()
def the_length_is_another_method():
    class S(str):
        __len__ = functools.partial(int, "7")

    s = S("abc")

    def step(x):
        return x * len(s)

    return Program(step, [torch.ones(2)] * 10)


@program()
def iterating_over_items():
    class D(dict):
        __iter__ = lambda self: iter(dict.items(self))
        __contains__ = dict.get

    d = D(a=1, b=2)

    def step(x):
        d["b"] += 1
        total = sum(value for _, value in d)
        return x * total, "a" in d, "q" in d

    return Program(step, [torch.ones(2)] * 10, state=lambda: dict.copy(d))


@program(speculated=0)
def matrix_product_updates():
    class D(dict):
        __matmul__ = dict.update
        __add__ = dict.__or__
        __xor__ = dict.pop

    d = D(a=1)

    def step(x):
        d @ {"b": d["a"]}
        both = d + {"c": 5}
        d["a"] = (d ^ "b") + 1
        return x * d["a"] + len(both)

    return Program(step, [torch.ones(2)] * 10, state=d)


@program(speculated=4)
def sets_under_other_names():
    class S(set):
        __lshift__ = set.add
        __rshift__ = set.discard
        __iadd__ = set.__ior__

    s = S()
    n = [0]

    def step(x):
        n[0] += 1
        s << n[0]
        s >> n[0] - 3
        t = s
        t += {-1}
        return x * len(s)

    return Program(step, [torch.ones(2)] * 10, state=(s, n))


@program(speculated=0)
def a_deque_under_other_names():
    class Q(collections.deque):
        __lshift__ = collections.deque.append
        __invert__ = collections.deque.popleft

    q = Q()

    def step(x):
        q << 1.0
        q << 2.0
        return x * ~q + len(q)

    return Program(step, [torch.ones(2)] * 10, state=lambda: list(q))


@program()
def a_property_read_by_attrgetter():
    class P:
        inner = property(operator.attrgetter("held.n"))

        class held:
            n = 1

    p = P()

    def step(x):
        P.held.n += 1
        return x * p.inner

    return Program(step, [torch.ones(2)] * 10, state=lambda: P.held.n)


@program()
def a_property_of_several():
    class P:
        both = property(operator.attrgetter("a", "b"))
        a = 1
        b = 2

    p = P()

    def step(x):
        p.a += 1
        one, other = p.both
        return x * one + other

    return Program(step, [torch.ones(2)] * 10, state=p)


@program()
def a_property_read_by_itemgetter():
    class P(dict):
        n = property(operator.itemgetter("n"), lambda self, value: self.update(n=value))

    p = P(n=1)

    def step(x):
        p.n += 1
        return x * p.n

    return Program(step, [torch.ones(2)] * 10, state=p)


@program()
def a_property_set_by_a_partial():
    held = {}

    def keep(name, obj, value):
        held[name] = value

    class P:
        n = property(lambda self: held.get("n", 0), functools.partial(keep, "n"), functools.partial(held.pop, "n"))

    p = P()

    def step(x):
        p.n += 1
        return x * p.n

    return Program(step, [torch.ones(2)] * 10, state=held)


@program()
def a_property_by_methodcaller():
    class P:
        n = property(operator.methodcaller("count"))

        def __init__(self):
            self.k = 0

        def count(self):
            self.k += 1
            return self.k

    p = P()

    def step(x):
        return x * p.n

    return Program(step, [torch.ones(2)] * 10, state=p)


@program()
def a_property_of_an_object_that_can_be_called():
    class Reads:
        def __init__(self, name):
            self.name = name

        def __call__(self, obj):
            return obj.__dict__[self.name] + 1

    class P:
        n = property(Reads("k"))

        def __init__(self):
            self.k = 0

    p = P()

    def step(x):
        p.k = p.n
        return x * p.n

    return Program(step, [torch.ones(2)] * 10, state=p)


@program()
def a_kind_of_property():
    class Own(property):
        pass

    class P:
        k = 0

        @Own
        def n(self):
            return self.k + 1

        @n.setter
        def n(self, value):
            self.k = value

    p = P()

    def step(x):
        p.n += 1
        return x * p.n

    return Program(step, [torch.ones(2)] * 10, state=p)


@program()
def a_property_of_a_bound_method():
    class Held:
        def __init__(self):
            self.n = 0

        def read(self, obj):
            self.n += 1
            return self.n

    held = Held()

    class P:
        n = property(held.read)

    p = P()

    def step(x):
        return x * p.n

    return Program(step, [torch.ones(2)] * 10, state=held)


@program()
def a_property_deleted_by_a_container_method():
    class P(list):
        n = property(list.__len__, list.append, list.clear)

    p = P()

    def step(x):
        p.n = 4
        p.n = 5
        seen = p.n
        if seen > 4:
            del p.n
        return x * seen

    return Program(step, [torch.ones(2)] * 20, state=p)


@program()
def constructors_that_cooperate():
    class A:
        def __init__(self):
            super().__init__()
            self.a = 1

    class B:
        def __init__(self):
            super().__init__()
            self.b = 2

    class C(A, B):
        built = 0

        def __init__(self):
            super().__init__()
            C.built += 1

    def step(x):
        c = C()
        return x * (c.a + c.b + C.built)

    return Program(step, [torch.ones(2)] * 10, state=C)


@program()
def a_diamond_of_constructors():
    log = []

    class Root:
        def __init__(self, **named):
            super().__init__(**named)
            log.append("root")

    class Left(Root):
        def __init__(self, left=1, **named):
            super().__init__(**named)
            self.left = left
            log.append("left")

    class Right(Root):
        def __init__(self, right=2, **named):
            super().__init__(**named)
            self.right = right
            log.append("right")

    class Both(Left, Right):
        def __init__(self, **named):
            super().__init__(**named)
            log.append("both")

    def step(x):
        made = Both(left=3, right=len(log))
        if len(log) > 12:
            log.clear()
        return x * made.left + made.right

    return Program(step, [torch.ones(2)] * 20, state=log)


@program()
def containers_among_the_bases():
    class Counted:
        made = 0

        def __init__(self, *given):
            super().__init__(*given)
            Counted.made += 1

    class D(Counted, dict):
        pass

    class L(Counted, list):
        pass

    found = {"n": 2.0}

    def step(x):
        d, row = D(found), L([1, 2])
        found["n"] += 1
        return x * d["n"] + len(row) + Counted.made

    return Program(step, [torch.ones(2)] * 10, state=(found, Counted))


@program()
def constructors_that_call_their_bases_by_name():
    class A:
        n = 0

        def __init__(self):
            object.__init__(self)
            A.n += 1

    class B:
        n = 0

        def __init__(self):
            object.__init__(self)
            B.n += 1

    class C(A, B):
        def __init__(self):
            A.__init__(self)
            B.__init__(self)

    def step(x):
        C()
        return x * (A.n + B.n)

    return Program(step, [torch.ones(2)] * 10, state=(A, B))


@program()
def errors_with_several_bases():
    class Noted:
        count = 0

        def __init__(self, *given):
            super().__init__(*given)
            Noted.count += 1

    class Failed(Noted, ValueError):
        pass

    def step(x):
        try:
            raise Failed("no", 2)
        except ValueError as error:
            return x * Noted.count, error.args

    return Program(step, [torch.ones(2)] * 10, state=Noted)


@program()
def modules_with_a_mixin():
    class Counts:
        made = 0

        def __init__(self):
            super().__init__()
            Counts.made += 1

    class M(Counts, torch.nn.Module):
        def forward(self, x):
            return x * 2

    def step(x):
        return M()(x) + Counts.made

    return Program(step, [torch.ones(2)] * 10, state=Counts)


@program()
def a_constructor_that_is_a_partialmethod():
    class A:
        n = 0

        def fill(self, k, j=1):
            A.n += k
            self.k = k * j

        __init__ = functools.partialmethod(fill, 2, j=3)

    def step(x):
        return x * A().k + A.n

    return Program(step, [torch.ones(2)] * 10, state=A)


@program()
def new_that_gives_what_was_there():
    class One:
        only = None

        def __new__(cls):
            if cls.only is None:
                cls.only = super().__new__(cls)
                cls.only.n = 0
            return cls.only

        def __init__(self):
            self.n += 1

    One()

    def step(x):
        return x * One().n

    return Program(step, [torch.ones(2)] * 10, state=lambda: One.only)


@program()
def new_that_gives_another_kind():
    class Never:
        made = 0

        def __new__(cls, n):
            Never.made += 1
            return [n, Never.made]

        def __init__(self, n):
            Never.made += 100

    def step(x):
        a, b = Never(2)
        return x * a + b

    return Program(step, [torch.ones(2)] * 10, state=Never)


@program()
def new_that_is_a_static_method_of_another_class():
    class Maker:
        n = 0

        @staticmethod
        def make(cls, *given):
            Maker.n += 1
            return object.__new__(cls)

    class A:
        __new__ = Maker.make

        def __init__(self, k):
            self.k = k + Maker.n

    def step(x):
        return x * A(2).k

    return Program(step, [torch.ones(2)] * 10, state=Maker)


@program()
def comparisons_by_properties_that_raise():
    class Hidden:
        asked = 0

        def hide(self):
            Hidden.asked += 1
            raise AttributeError("hidden")

        __eq__ = property(hide)
        __lt__ = property(lambda self: 1 / 0)

        def __gt__(self, other):
            return True

    one, other = Hidden(), Hidden()

    def step(x):
        return x + (one == other) + (one == one) + (one != other) + (one < other)

    return Program(step, [torch.ones(3) * i for i in range(10)], state=(Hidden,))
