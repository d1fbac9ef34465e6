"""Statements: assignment, loops, exceptions, with, match."""

import contextlib

LOG = []


def note(value):
    LOG.append(value)
    return value


class Recorder:
    def __init__(self):
        object.__setattr__(self, "data", {})

    def __setattr__(self, name, value):
        LOG.append(("set", name, value))
        object.__setattr__(self, name, value)

    def __delattr__(self, name):
        LOG.append(("del", name))
        super().__delattr__(name)

    def __getattr__(self, name):
        LOG.append(("missing", name))
        if name.startswith("auto"):
            return name
        raise AttributeError(f"no {name}")

    def __getitem__(self, key):
        LOG.append(("get", key))
        return self.data[key]

    def __setitem__(self, key, value):
        LOG.append(("put", key, value))
        self.data[key] = value

    def __delitem__(self, key):
        LOG.append(("drop", key))
        del self.data[key]


def program_targets():
    r = Recorder()
    r.a = 1
    r.a += 2
    r["k"] = r["j"] = 5
    r["k"] **= 2
    r.b, (r["l"], *r.rest), [r.c] = 1, "xyz", [9]
    r.d = r.e = x, y = "pq"
    del r.a, r["k"], (r.b, [r.c])
    return r.auto_z, vars(r), x, y, LOG


def program_missing_attribute():
    r = Recorder()
    r.a = 1
    return r.a.bit_length().nope


def program_missing_attribute_from_getattr():
    return Recorder().nope


def program_delete_missing():
    r = Recorder()
    del r["x"]


def program_unpacking():
    a, b = [1, 2]
    c, *d = "xyz"
    *e, f = range(3)
    g, (h, (*i, j)), k = 1, (2, "abc"), 3
    [m, n] = {5: 1, 6: 2}
    (o,) = (7,)
    () = []
    [*p] = (1, 2)
    a, b = b, a
    x = y, z = w = (1, 2)
    return a, b, c, d, e, f, g, h, i, j, k, m, n, o, p, x, y, z, w


def program_unpack_order():
    d = {}

    class Two:
        def __init__(self, name):
            self.name = name

        def __iter__(self):
            LOG.append(f"iter {self.name}")
            yield self.name + "1"
            yield self.name + "2"

    d[note("k1")], (d[note("k2")], d[note("k3")]) = note("v"), Two("b")
    (p, q) = r = (s, *t) = Two("c")
    return d, p, q, r.name, s, t, LOG


def program_unpack_too_few():
    a, b, c = (n for n in range(2))


def program_unpack_too_many():
    a, b = {1: 2, 3: 4, 5: 6}


def program_unpack_starred_too_few():
    a, *b, c = [1]


def program_unpack_a_number():
    a, b = 5


def program_unpack_nested_error():
    out = {}
    try:
        out["a"], (out["b"], c) = 1, (2,)
    except ValueError as error:
        return out, str(error)


def program_unpack_in_loop_error():
    for (
        a,
        b,
    ) in [(1, 2), (3,)]:
        LOG.append(a)


def program_unpack_infinite():
    def forever():
        n = 0
        while True:
            LOG.append(n)
            yield n
            n += 1

    try:
        a, b = forever()
    except ValueError as error:
        return str(error), LOG


def program_annotated():
    class Box:
        pass

    box = Box()
    box.x: int = 3
    d: dict = {}
    d["k"]: note("annotation") = 4
    y: int
    (z): int = 5
    return box.x, d, z, LOG


def program_loops():
    out = []
    for i in range(5):
        if i == 1:
            continue
        if i == 4:
            break
        out.append(i)
    else:
        out.append("not here")
    for _ in ():
        pass
    else:
        out.append("else")
    n = 3
    while n:
        n -= 1
        if n == 1:
            continue
        out.append(n)
    else:
        out.append("done")
    while True:
        n += 1
        if n > 3:
            break
    for i, (a, *b) in enumerate(["xyz", "uv"]):
        out += [i, a, b]
    return out, n


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n <= 0:
            raise StopIteration
        self.n -= 1
        LOG.append(self.n)
        return self.n


def program_python_iterators():
    c = Countdown(3)
    out = [n for n in c], list(Countdown(2)), [*Countdown(2)], sum(Countdown(4)), tuple(Countdown(1))
    a, b = Countdown(2)
    it = iter(Countdown(2))
    return out, a, b, next(it), next(it), next(it, "end"), max(Countdown(3)), dict(zip("ab", Countdown(2))), LOG


def program_not_an_iterator():
    class Wrong:
        def __iter__(self):
            return 3

    for _ in Wrong():
        pass


def program_iterate_a_number():
    for _ in 5:
        pass


def program_error_in_next():
    class Wrong:
        def __iter__(self):
            return self

        def __next__(self):
            raise ValueError("in next")

    for n in Wrong():
        print(n)


def program_try():
    out = []
    for error in (ValueError("v"), KeyError("k"), TypeError("t"), None):
        try:
            if error:
                raise error
            out.append("fine")
        except ValueError as e:
            out.append(str(e))
        except (KeyError, IndexError):
            out.append("lookup")
        except Exception:
            out.append("other")
        else:
            out.append("else")
        finally:
            out.append("finally")
    return out


def lines(error):
    out = []
    step = error.__traceback__
    while step is not None:
        out.append((step.tb_lineno, step.tb_frame.f_code.co_name))
        step = step.tb_next
    return out


def fails(n):
    if n == 0:
        return {}["missing"]
    return fails(n - 1)


def program_traceback_in_handler():
    import sys

    try:
        fails(2)
    except KeyError as error:
        first = lines(error), [frame[1] for frame in [(sys.exc_info()[1] is error, sys.exc_info()[0].__name__)]]
        try:
            [1].index(5)
        except ValueError as second:
            return first, lines(second), lines(second.__context__)


def program_traceback_in_finally():
    import sys

    out = []
    try:
        try:
            fails(1)
        finally:
            out.append(lines(sys.exc_info()[1]))
    except KeyError as error:
        out.append(lines(error))
    return out


def program_raise_from():
    try:
        try:
            fails(0)
        except KeyError as error:
            raise ValueError("wrapped") from error
    except ValueError as error:
        raise RuntimeError("again") from None


def program_raise_context():
    try:
        fails(0)
    except KeyError:
        fails(1)


def program_reraise():
    try:
        fails(1)
    except KeyError:
        LOG.append("seen")
        raise


def program_raise_class():
    raise ValueError


def program_raise_nothing():
    raise


def program_raise_a_number():
    raise 3


def program_raise_from_a_number():
    raise ValueError("x") from 3


def program_return_in_finally():
    def f():
        try:
            return note("body")
        finally:
            note("finally")

    def g():
        for n in range(3):
            try:
                continue
            finally:
                note(n)
        return "g"

    return f(), g(), LOG


def program_exception_name_is_deleted():
    try:
        fails(0)
    except KeyError as e:
        pass
    try:
        e  # noqa: B018
    except NameError as error:
        return str(error)


def program_bad_handler():
    try:
        fails(0)
    except 3:
        pass


def program_groups():
    out = []
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2), ExceptionGroup("h", [ValueError(3), KeyError(4)])])
    except* ValueError as group:
        out.append([str(e) for e in group.exceptions])
    except* (TypeError, KeyError) as group:
        out.append([str(e) for e in group.exceptions])
    else:
        out.append("else")
    finally:
        out.append("finally")
    return out


def program_group_left_over():
    def bad():
        raise KeyError("deep")

    try:
        try:
            bad()
        except KeyError as error:
            raise ExceptionGroup("g", [error, ValueError(2)])
    except* ValueError:
        pass


class Managed:
    def __init__(self, name, swallow=False):
        self.name, self.swallow = name, swallow

    def __enter__(self):
        LOG.append(f"enter {self.name}")
        return self.name, self

    def __exit__(self, kind, error, traceback):
        LOG.append((f"exit {self.name}", kind and kind.__name__, error and lines(error), traceback is None))
        return self.swallow


def program_with():
    with Managed("a") as (name, a), Managed("b"):
        LOG.append(name)
    with (
        Managed("c", True) as c,
        Managed("d") as (*d, e),
    ):
        fails(1)
    out = []
    with Managed("f") as out_pair:
        pass
    for n in range(2):
        with Managed(n):
            if n:
                break
            continue
    return c[0], d, e.name, out_pair[0], LOG


def program_with_error():
    with Managed("a"), Managed("b"):
        fails(1)


def program_with_return():
    def f():
        with Managed("a"):
            return note("value")

    return f(), LOG


def program_with_targets():
    class Box:
        pass

    box, d = Box(), {}
    with Managed("a") as box.x, Managed("b") as d["k"]:
        pass
    return box.x[0], d["k"][0]


def program_with_not_a_manager():
    with 3:
        pass


def program_with_half_a_manager():
    class Half:
        def __enter__(self):
            return 1

    with Half():
        pass


def program_with_enter_error():
    class Wrong(Managed):
        def __enter__(self):
            raise ValueError("in enter")

    with Managed("outer", True):
        with Wrong("a"):
            LOG.append("never")
    return LOG


def program_with_exit_error():
    class Wrong(Managed):
        def __exit__(self, *args):
            raise ValueError("in exit")

    with Wrong("a"):
        fails(0)


@contextlib.contextmanager
def managed(name, swallow=False):
    LOG.append(f"begin {name}")
    try:
        yield name
    except KeyError as error:
        LOG.append(lines(error))
        if not swallow:
            raise
    finally:
        LOG.append(f"end {name}")


def program_contextmanager():
    with managed("a") as name, managed("b", True):
        fails(1)

    @managed("decorated")
    def f():
        return 1

    with contextlib.suppress(KeyError):
        fails(0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(managed("c"))
        stack.callback(note, "callback")
    with contextlib.closing(x for x in ()) as g, contextlib.nullcontext(4) as four:
        pass
    return name, f(), g is not None, four, LOG


def program_contextmanager_error():
    with managed("a"):
        fails(1)


def program_assert():
    assert note(True), note("never")
    assert LOG == [True]
    assert LOG == [], f"message {note('seen')}"


def program_assert_plain():
    assert 1 + 1 == 3


def program_match():
    class Point:
        __match_args__ = ("x", "y")

        def __init__(self, x, y):
            self.x, self.y = x, y

    class Colour:
        RED = "red"

    def f(value):
        match value:
            case 0 | 1:
                return "small"
            case int(n) if n > 100:
                return "big", n
            case [a, b]:
                return "pair", a, b
            case [first, *rest] if note(rest):
                return "list", first, rest
            case {"k": v, **others}:
                return "dict", v, others
            case Point(x=0, y=y):
                return "axis", y
            case Point(x, y) as p:
                return "point", x, y, p is value
            case Colour.RED:
                return "red"
            case "s" | None:
                return "literal"
            case _:
                return "other"

    values = [0, 200, 50, (1, 2), [1, 2, 3], [], {"k": 1, "z": 2}, Point(0, 3), Point(1, 2), "red", "s", None, 3.5]
    return [f(v) for v in values], LOG


def program_match_subject():
    match note(1), note("x"):
        case (1, other):
            return other


def program_delete_local():
    x = 1
    del x
    return x


def program_pass_and_global_statements():
    global LOG
    pass
    x = 1
    x
    ...
    "not a docstring"
    return x


def program_assign_to_none_attribute():
    x = None
    x.y = 1


def program_augmented_errors():
    out = []
    for bad in ("a", None, {}):
        try:
            bad["x"] += 1
        except Exception as error:
            out.append((type(error).__name__, str(error)))
        try:
            bad.x += 1
        except Exception as error:
            out.append((type(error).__name__, str(error)))
        try:
            bad += 1
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return out


def program_tuple_item_augmented():
    t = ([],)
    try:
        t[0] += [1]
    except TypeError as error:
        return t, str(error)
