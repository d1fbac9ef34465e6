"""Functions, closures, variables."""

from __future__ import annotations

import functools

COUNT = 0
LOG = []


def note(value):
    LOG.append(value)
    return value


def program_arguments():
    def f(a, b=note(2), /, c=3, *rest, d, e=note(5), **more):
        "Its docstring."
        return a, b, c, rest, d, e, more

    return f(1, d=4), f(1, 2, 3, 4, 5, d=6, z=7), f.__doc__, f.__defaults__, f.__kwdefaults__, f.__qualname__, LOG


def program_missing_argument():
    def f(a, b):
        return a

    return f(1)


def program_unexpected_keyword():
    def f(a):
        return a

    return f(1, zzz=2)


def program_twice_the_same_keyword():
    def f(**k):
        return k

    return f(**{"a": 1}, **{"a": 2})


def program_star_of_a_number():
    def f(*k):
        return k

    return f(*5)


def program_double_star_of_a_number():
    def f(**k):
        return k

    return f(**5)


def program_not_callable():
    three = 3
    return three(note(1))


def program_starred_calls():
    def f(*a, **k):
        return a, k

    more = {"x": 1}
    return f(*[1, 2], 3, *"ab", y=2, **more, **{"z": 3}), f(*(n for n in range(3))), f(*{}, **{})


def program_closures():
    total = 0
    steps = []

    def add(n):
        nonlocal total
        total += n
        steps.append(total)

        def inner():
            nonlocal total
            total = total * 2
            return total

        return inner

    one = add(3)
    two = add(4)
    return one(), two(), total, steps


def make_counter(start):
    value = start

    def count(step=1):
        nonlocal value
        value += step
        return value

    def read():
        return value

    def forget():
        nonlocal value
        del value

    return count, read, forget


def program_cells_of_the_outermost():
    count, read, forget = make_counter(10)
    count()
    count(5)
    out = [read()]
    forget()
    try:
        read()
    except NameError as error:
        out.append(str(error))
    try:
        forget()
    except NameError as error:
        out.append(str(error))
    return out


def program_globals():
    global COUNT, made_here
    COUNT += 2
    made_here = COUNT
    (COUNT, (made_here, local)) = 7, (8, 9)
    for COUNT in range(3):
        pass
    del made_here
    try:
        made_here  # noqa: B018
    except NameError as error:
        return COUNT, local, str(error)


def program_delete_a_missing_global():
    global never_there
    del never_there


def program_unknown_name():
    return unknown_name + 1  # noqa: F821


def program_unbound_local():
    if LOG:
        x = 1
    return x


def program_free_before_assignment():
    def f():
        return x

    f()
    x = 1
    return x


def traced(label):
    def decorate(fn):
        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            print(label, fn.__name__)
            return fn(*args, **kwargs)

        return wrapper

    return decorate


def program_decorators():
    @traced("outer")
    @traced("inner")
    def f(x):
        """Documented."""
        return x + 1

    return f(1), f.__name__, f.__doc__, f.__wrapped__.__name__


@traced("top")
def top(x):
    return x * 2


def program_module_level_decorator():
    return top(4)


def program_lambdas():
    fs = [lambda x, k=k: x + k for k in range(3)]
    g = lambda *a, **k: (a, k)  # noqa: E731
    pair = (lambda: 1), (lambda: 2)
    return [f(1) for f in fs], g(1, z=2), pair[0](), pair[1](), (lambda: (yield))().__class__.__name__


def program_recursion():
    def fib(n):
        return n if n < 2 else fib(n - 1) + fib(n - 2)

    def ackermann(m, n):
        if m == 0:
            return n + 1
        return ackermann(m - 1, 1 if n == 0 else ackermann(m, n - 1))

    return fib(12), ackermann(2, 3)


def program_function_attributes():
    def f():
        f.count += 1
        return f.count

    f.count = 0
    f()
    return f(), f.__dict__, f.__module__, f.__annotations__


def program_annotations():
    def f(a: int, *b: "str", c: list[int] = 3) -> None:
        x: int = 1
        y: unknown  # noqa: F821
        return x

    return f.__annotations__, f(1)


def program_imports():
    import os.path as where
    from functools import partial, reduce

    import collections.abc

    return (
        where.basename("/a/b"),
        reduce(lambda a, b: a * b, [1, 2, 3]),
        partial(int, base=2)("11"),
        collections.abc.Sized,
    )


def program_locals():
    a, b = 1, [2]
    c = a and b
    d = 0 < a < 5 < 4
    b[0] += 1
    (x, *y), z = (1, 2, 3), 4
    for i, (j, k) in enumerate([(1, 2)]):
        pass
    return locals()


def program_eval_and_exec():
    a = 3
    namespace = {}
    exec("b = 4", namespace)
    return eval("a + 1"), namespace["b"], sorted(vars()), sorted(dir())[:3], "COUNT" in globals()


def program_no_return():
    print("said")


def program_early_return():
    for n in range(10):
        if n == 3:
            return
    raise AssertionError


def program_star_import_shadow():
    len = lambda x: 42  # noqa: E731
    return len([1])


def program_builtins():
    return len([1]), max(1, 2), isinstance(3, int), sum(range(4)), sorted([3, 1], key=lambda v: -v), abs(-1)


def program_map_filter_reduce():
    return (
        list(map(lambda a, b: a + b, [1, 2], (3, 4))),
        list(filter(lambda a: a % 2, range(6))),
        functools.reduce(lambda a, b: a * b, range(1, 5)),
        min([3, 1, 2], key=lambda v: -v),
        max(3, 1, key=lambda v: -v),
        dict(a=1, **{"b": 2}),
        [*zip("ab", [1, 2])],
    )


@functools.lru_cache(maxsize=None)
def cached(n):
    print("computed", n)
    return n * 2


def program_lru_cache():
    return cached(2), cached(2), cached(3), cached.cache_info().hits


def program_partial():
    def f(*a, **k):
        return a, k

    p = functools.partial(f, 1, x=2)
    q = functools.partial(p, 3, x=4)
    return p(5), q(6, y=7)


def program_singledispatch():
    @functools.singledispatch
    def f(x):
        return "anything", x

    @f.register
    def _(x: int):
        return "int", x

    return f("a"), f(3)


def program_debug_name():
    if __debug__:
        return "debug", __debug__
    return "optimised"


def program_raises_in_callback():
    def bad(x):
        return 1 / x

    return sorted([1, 0], key=bad)


def program_default_evaluation_error():
    def f(
        a=1 / 0,
    ):
        return a
