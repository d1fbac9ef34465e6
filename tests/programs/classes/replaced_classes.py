"""Objects that change their class, functions their code, classes their bases: in the step, or between calls."""

from __future__ import annotations

import types

import torch

from tests.programs.harness import Program, program


def _of(step, state, change=None):
    before = {} if change is None else {6: change, 8: change}
    return Program(step, [torch.ones(())] * 10, state=state, before=before)


@program(speculated=0, compiles=9)
def an_object_changes_its_class():
    class A:
        k = 1

    class B:
        k = 2

    o = A()

    def step(x):
        o.__class__ = B if type(o) is A else A
        return x * o.k

    return _of(step, lambda: type(o).__name__)


@program(speculated=0, compiles=9)
def a_class_set_by_setattr():
    class A:
        k = 1

    class B:
        k = 2

    o = A()

    def step(x):
        setattr(o, "__class__", B if isinstance(o, A) else A)
        return x * o.k

    return _of(step, lambda: type(o).__name__)


@program(speculated=0, compiles=9)
def a_class_set_by_object():
    class A:
        k = 1

    class B:
        k = 2

    o = A()

    def step(x):
        object.__setattr__(o, "__class__", B if isinstance(o, A) else A)
        return x * o.k

    return _of(step, lambda: type(o).__name__)


@program(speculated=0, compiles=9)
def methods_that_change_the_class():
    class A:
        def f(s, x):
            s.__class__ = B
            return x

    class B:
        def f(s, x):
            s.__class__ = A
            return x * 2

    o = A()

    def step(x):
        return o.f(x) + o.f(x) * 10 - (o.f(x) if type(o) is A else 0)

    return _of(step, lambda: type(o).__name__)


@program(speculated=6, compiles=9)
def a_new_object_changes_its_class():
    class A:
        k = 1

    class B:
        k = 2

    n = [0]

    def step(x):
        n[0] += 1
        o = A()
        o.__class__ = B if n[0] % 2 else A
        return x * o.k

    return _of(step, lambda: n)


@program(speculated=5, compiles=9)
def a_class_changed_between_calls():
    class A:
        k = 1

    class B:
        k = 2

    o = A()

    def step(x):
        return x * o.k

    def ch():
        o.__class__ = B if type(o) is A else A

    return _of(step, lambda: type(o).__name__, ch)


@program(speculated=5, compiles=9)
def a_class_read_and_changed_between_calls():
    class A:
        k = 1

    class B:
        k = 2

    o = A()

    def step(x):
        return x * o.__class__.k + (o.__class__ is B)

    def ch():
        o.__class__ = B if type(o) is A else A

    return _of(step, lambda: type(o).__name__, ch)


@program(refused="replaces the class of a ")
def a_module_changes_its_class():
    class M(torch.nn.Module):
        def forward(s, x):
            return x * 2

    class N(M):
        def forward(s, x):
            return x * 3

    m = M()

    def step(x):
        m.__class__ = N if type(m) is M else M
        return m(x)

    return _of(step, lambda: type(m).__name__)


@program(speculated=0, compiles=9)
def functions_change_their_code():
    def f(x):
        return x * 2

    def g(x):
        return x * 3

    def step(x):
        f.__code__, g.__code__ = g.__code__, f.__code__
        return f(x)

    return _of(step, lambda: f.__code__.co_name)


@program(speculated=0, compiles=9)
def functions_change_their_code_behind_a_call():
    def f(x):
        return x * 2

    def g(x):
        return x * 3

    def step(x):
        y = f(x)
        f.__code__, g.__code__ = g.__code__, f.__code__
        return y

    return _of(step, lambda: f.__code__.co_name)


@program(speculated=0, compiles=9)
def defaults_that_change():
    def f(x, k=1):
        return x * k

    def step(x):
        f.__defaults__ = (f.__defaults__[0] + 1,)
        return f(x)

    return _of(step, lambda: f.__defaults__)


@program(speculated=0, compiles=9)
def defaults_of_keywords_that_change():
    def f(x, *, k=1):
        return x * k

    def step(x):
        f.__kwdefaults__ = {"k": f.__kwdefaults__["k"] + 1}
        return f(x)

    return _of(step, lambda: f.__kwdefaults__)


@program(speculated=0, compiles=9)
def one_default_of_a_keyword_changes():
    def f(x, *, k=1):
        return x * k

    def step(x):
        f.__kwdefaults__["k"] += 1
        return f(x)

    return _of(step, lambda: f.__kwdefaults__)


@program(speculated=7, compiles=9)
def attributes_of_functions_count():
    def f(x):
        f.calls += 1
        return x * f.calls

    f.calls = 0

    def step(x):
        return f(x)

    return _of(step, lambda: f.calls)


@program(speculated=7, compiles=9)
def the_dictionary_of_a_function():
    def f(x):
        return x * f.__dict__["n"]

    f.n = 1

    def step(x):
        f.__dict__["n"] += 1
        vars(f)["m"] = f.n
        return f(x)

    return _of(step, lambda: dict(f.__dict__))


@program(speculated=0, compiles=9)
def cells_of_a_function_by_hand():
    def outer():
        n = 1

        def f(x):
            return x * n

        return f

    f = outer()

    def step(x):
        f.__closure__[0].cell_contents += 1
        return f(x)

    return _of(step, lambda: f.__closure__[0].cell_contents)


@program(speculated=6, compiles=9)
def new_functions_get_other_code():
    def f(x):
        return x * 2

    def g(x):
        return x * 3

    n = [0]

    def step(x):
        n[0] += 1

        def h(x):
            return x

        h.__code__ = (f if n[0] % 2 else g).__code__
        return h(x)

    return _of(step, lambda: n)


@program(speculated=7, compiles=9)
def names_and_texts_of_functions():
    def f(x):
        return x

    n = [0]

    def step(x):
        n[0] += 1
        f.__name__ = "f%d" % n[0]
        f.__qualname__ = "q"
        f.__doc__ = str(n[0])
        return x * len(f.__name__) + int(f.__doc__)

    return _of(step, lambda: (f.__name__, f.__doc__))


@program(refused="replaces the bases of a type that was there before the call")
def a_class_changes_its_bases():
    class P:
        k = 1

    class Q:
        k = 2

    class A(P):
        pass

    o = A()

    def step(x):
        A.__bases__ = (Q,) if A.__bases__ == (P,) else (P,)
        return x * o.k

    return _of(step, lambda: A.__bases__[0].__name__)


@program(speculated=4, compiles=9)
def bases_changed_between_calls():
    class P:
        k = 1

    class Q:
        k = 2

    class A(P):
        pass

    o = A()

    def step(x):
        return x * o.k * A.k

    def ch():
        A.__bases__ = (Q,) if A.__bases__ == (P,) else (P,)

    return _of(step, lambda: A.__bases__[0].__name__, ch)


@program(speculated=0, compiles=9)
def a_python_module_gets_a_class():
    m = types.ModuleType("m")
    m.k = 1

    class Odd(types.ModuleType):
        @property
        def p(s):
            return s.k + 1

    def step(x):
        m.__class__ = Odd
        m.k += 1
        return x * m.p

    return _of(step, lambda: (m.k, type(m).__name__))


@program(speculated=7, compiles=9)
def a_python_module_of_an_own_class():
    m = types.ModuleType("m")
    m.k = 1

    class Odd(types.ModuleType):
        @property
        def p(s):
            return s.k + 1

        def __getattr__(s, n):
            return 5

    m.__class__ = Odd

    def step(x):
        m.k += 1
        return x * m.p + m.zz

    return _of(step, lambda: (m.k, type(m).__name__))


@program(speculated=3, compiles=9)
def class_attributes_come_and_go():
    class A:
        k = 1

    def step(x):
        if "k" in A.__dict__:
            del A.k
        else:
            A.k = 2
        return x * getattr(A, "k", 7)

    return _of(step, lambda: getattr(A, "k", None))


@program(speculated=6, compiles=9)
def methods_are_replaced():
    class A:
        n = 0

        def f(s):
            return 1

    def g(s):
        return 2

    o = A()

    def step(x):
        A.n += 1
        A.f = g if A.n % 2 else (lambda s: 3)
        return x * o.f()

    return _of(step, lambda: A.n)


@program(speculated=7, compiles=9)
def a_special_method_is_added():
    class A:
        n = 0

    o = A()

    def step(x):
        A.n += 1
        A.__len__ = lambda s: A.n
        return x * len(o)

    return _of(step, lambda: A.n)


@program(speculated=3, compiles=9)
def a_special_method_comes_and_goes():
    class A:
        n = 0

        def __bool__(s):
            return False

    o = A()

    def step(x):
        A.n += 1
        if A.n % 2:
            A.__bool__ = lambda s: True
        else:
            del A.__bool__
        return x * (2 if o else 3)

    return _of(step, lambda: A.n)


@program(speculated=0, compiles=9)
def the_dictionary_of_an_object_is_replaced():
    class A:
        k = 1

    o = A()

    def step(x):
        o.__dict__ = {"k": o.k + 1}
        return x * o.k

    return _of(step, lambda: dict(o.__dict__))


@program(speculated=7, compiles=9)
def two_objects_share_a_dictionary():
    class A:
        pass

    a, b = A(), A()
    a.n = 0
    b.__dict__ = a.__dict__

    def step(x):
        a.n += 1
        return x * b.n

    return _of(step, lambda: (a.n, b.n))


@program(speculated=7, compiles=9)
def a_dictionary_of_an_object_by_another_name():
    class A:
        pass

    a = A()
    a.n = 0
    d = a.__dict__

    def step(x):
        a.n += 1
        d["m"] = a.n
        return x * d["n"] + a.m

    return _of(step, lambda: dict(a.__dict__))


@program(speculated=7, compiles=9)
def an_object_is_its_own_dictionary():
    class D(dict):
        def __init__(s, **k):
            super().__init__(**k)
            s.__dict__ = s

    d = D(n=1)

    def step(x):
        d.n += 1
        d["m"] = d.n
        return x * d["n"] + d.m

    return _of(step, lambda: dict(d))


@program(speculated=7, compiles=9)
def new_objects_are_their_own_dictionary():
    class D(dict):
        def __init__(s, **k):
            super().__init__(**k)
            s.__dict__ = s

    n = [0]

    def step(x):
        n[0] += 1
        d = D(n=n[0])
        d.k = 2
        return x * d.n + d["k"] + len(d)

    return _of(step, lambda: n)
