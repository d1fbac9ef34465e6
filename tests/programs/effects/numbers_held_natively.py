"""Numbers of the step that native objects hold and give back: queues, context variables, arrays, tokens, tables."""

import array
import asyncio
import collections
import configparser
import contextvars
import copy
import ctypes
import datetime
import decimal
import functools
import io
import itertools
import json
import operator
import os
import pickle
import queue
import random
import sqlite3
import struct
import threading
import types

import numpy as np
import torch

from tests.programs.harness import Program, program


def inputs(count=18):
    return [(torch.randn(6, 5),) for _ in range(count)]


def scaled(body, state=None):
    """A program that multiplies by what a body makes of a number that changes."""
    n = [0]

    def step(x):
        n[0] += 1
        return x * body(float(n[0] % 7) + 0.5)

    return Program(step, inputs(), state=(n, state))


@program(speculated=15, compiles=2)
def thread_local():
    t = threading.local()

    def body(k):
        t.k = k
        return t.k

    return scaled(body)


@program(refused="reads the attribute '__dict__' of a _local")
def thread_local_dict():
    t = threading.local()

    def body(k):
        t.__dict__["k"] = k
        return getattr(t, "k") + vars(t)["k"]

    return scaled(body)


@program(speculated=15, compiles=2)
def queues():
    q = queue.Queue()

    def body(k):
        q.put(k)
        return q.get()

    return scaled(body)


@program(speculated=15, compiles=2)
def priority_queue():
    q = queue.PriorityQueue()

    def body(k):
        q.put((k, "a"))
        q.put((k / 2, "b"))
        a = q.get()
        b = q.get()
        return a[0] + b[0] * 2

    return scaled(body)


@program(speculated=15, compiles=2)
def array_items():
    a = array.array("d", [0.0] * 3)

    def body(k):
        a[1] = k
        a.append(k)
        v = a.pop()
        return a[1] + v

    return scaled(body, a)


@program(speculated=15, compiles=2)
def array_new():
    def body(k):
        a = array.array("f", [k, k * 2])
        return a[0] + a[1] + sum(a)

    return scaled(body)


@program(speculated=15, compiles=2)
def ctypes_double():
    c = ctypes.c_double(0.0)

    def body(k):
        c.value = k
        return c.value

    return scaled(body)


@program(speculated=15, compiles=2)
def ctypes_struct():
    class S(ctypes.Structure):
        _fields_ = [("a", ctypes.c_float), ("b", ctypes.c_int)]

    s = S()

    def body(k):
        s.a = k
        s.b = int(k)
        return s.a + s.b

    return scaled(body)


@program(speculated=15, compiles=2)
def numpy_cell():
    a = np.zeros(3)

    def body(k):
        a[1] = k
        return float(a[1])

    return scaled(body, a)


@program(speculated=15, compiles=2)
def struct_packing():
    buf = bytearray(8)

    def body(k):
        struct.pack_into("d", buf, 0, k)
        return struct.unpack_from("d", buf)[0]

    return scaled(body, buf)


@program(speculated=15, compiles=2)
def string_io():
    def body(k):
        s = io.StringIO()
        s.write(str(k))
        s.seek(0)
        return float(s.read())

    return scaled(body)


@program(speculated=15, compiles=2)
def string_io_kept():
    s = io.StringIO()

    def body(k):
        s.seek(0)
        s.truncate()
        s.write(str(k))
        return float(s.getvalue())

    return scaled(body, s)


@program(speculated=15, compiles=2)
def json_and_back():
    def body(k):
        return json.loads(json.dumps({"k": k}))["k"]

    return scaled(body)


@program(speculated=4, compiles=8)
def pickle_and_back():
    def body(k):
        return pickle.loads(pickle.dumps([k, {"k": k}]))[1]["k"]

    return scaled(body)


@program(speculated=15, compiles=2)
def decimals():
    def body(k):
        return float(decimal.Decimal(str(k)) * 2 + decimal.Decimal(1))

    return scaled(body)


@program(speculated=4, compiles=8)
def itertools_repeat():
    def body(k):
        return sum(itertools.repeat(k, 3)) + next(itertools.count(k, 0.5)) + next(itertools.chain([k], [1]))

    return scaled(body)


@program(speculated=4, compiles=8)
def partials():
    f = lambda a, b=1.0: a * 2 + b

    def body(k):
        return functools.partial(f, k, b=k)() + operator.methodcaller("__add__", k)(1.0)

    return scaled(body)


@program(speculated=15, compiles=2)
def attrgetters():
    def body(k):
        ns = types.SimpleNamespace(a=k, b=types.SimpleNamespace(c=k + 1))
        return operator.attrgetter("a", "b.c")(ns)[1] + ns.a

    return scaled(body)


@program(speculated=15, compiles=2)
def environment():
    def body(k):
        os.environ["TJ_TEST_K"] = str(k)
        v = float(os.environ["TJ_TEST_K"])
        del os.environ["TJ_TEST_K"]
        return v

    return scaled(body)


@program(speculated=15, compiles=2)
def sqlite_memory():
    db = sqlite3.connect(":memory:")
    db.execute("create table t (k real)")

    def body(k):
        db.execute("insert into t values (?)", (k,))
        return db.execute("select max(k) from t").fetchone()[0]

    return scaled(body)


@program(speculated=15, compiles=2)
def config_parser():
    c = configparser.ConfigParser()
    c.add_section("a")

    def body(k):
        c.set("a", "k", str(k))
        return c.getfloat("a", "k")

    return scaled(body)


@program(speculated=10, compiles=2)
def deques():
    d = collections.deque(maxlen=4)

    def body(k):
        d.append(k)
        d.rotate(1)
        return d[0] + max(d) + sum(d)

    return scaled(body, d)


@program(speculated=15, compiles=2)
def chain_maps():
    base = {"k": 1.0}

    def body(k):
        cm = collections.ChainMap({"j": k}, base)
        cm["k"] = k * 2
        return cm["k"] + cm["j"] + cm.parents["k"]

    return scaled(body, base)


@program(speculated=15, compiles=2)
def user_containers():
    class D(collections.UserDict):
        def __getitem__(self, k):
            return super().__getitem__(k) * 2

    d = D(a=1.0)
    items = collections.UserList([1.0])

    def body(k):
        d["a"] = k
        items.append(k)
        return d["a"] + items[-1] + len(items)

    return scaled(body, (d, items))


@program(speculated=15, compiles=2)
def locks_and_events():
    lock, ev, box = threading.RLock(), threading.Event(), {}

    def body(k):
        with lock:
            box["k"] = k
        ev.set()
        ok = ev.wait(0.1)
        ev.clear()
        return box["k"] + ok

    return scaled(body, box)


@program(speculated=15, compiles=2)
def token_old_value():
    v = contextvars.ContextVar("v", default=1.0)

    def body(k):
        a = v.set(k)
        b = v.set(k * 2)
        old = b.old_value
        v.reset(b)
        r = v.get() + old
        v.reset(a)
        return r + v.get()

    return scaled(body)


@program(speculated=15, compiles=2)
def var_in_recursion():
    v = contextvars.ContextVar("v", default=1.0)

    def rec(n):
        return v.get() if n == 0 else rec(n - 1) + v.get()

    def body(k):
        a = v.set(k)
        r = rec(3)
        v.reset(a)
        return r

    return scaled(body)


@program(speculated=15, compiles=2)
def var_holding_list():
    v = contextvars.ContextVar("v", default=None)

    def body(k):
        a = v.set([k, 2])
        v.get().append(k)
        r = sum(v.get())
        v.reset(a)
        return r

    return scaled(body)


@program(speculated=15, compiles=2)
def exceptions_hold():
    def body(k):
        try:
            raise ValueError(k, "a")
        except ValueError as e:
            e.extra = k
            e.add_note(f"{k}")
            return e.args[0] + e.extra + float(e.__notes__[0])

    return scaled(body)


@program(speculated=15, compiles=2)
def named_tuple_fields():
    P = collections.namedtuple("P", "a b")

    def body(k):
        p = P(k, 1)._replace(b=k * 2)
        return p.a + p[1] + P._make([k, k]).b + p._asdict()["b"]

    return scaled(body)


@program(speculated=15, compiles=2)
def properties_and_slots():
    class A:
        __slots__ = ("_k",)

        @property
        def k(self):
            return self._k

        @k.setter
        def k(self, v):
            self._k = v * 2

    a = A()

    def body(k):
        a.k = k
        b = copy.copy(a)
        b.k = 1
        return a.k + b.k

    return scaled(body, a)


@program(speculated=15, compiles=2)
def datetimes():
    def body(k):
        d = datetime.timedelta(seconds=k)
        return d.total_seconds() + (datetime.datetime(2020, 1, 1) + d).second

    return scaled(body)


@program(speculated=15, compiles=2)
def random_state_kept():
    r = random.Random(0)

    def body(k):
        r.seed(int(k))
        a = r.random()
        s = r.getstate()
        b = r.random()
        r.setstate(s)
        return a + b + r.random()

    return scaled(body, r)


@program(speculated=4, compiles=8)
def complex_numbers():
    def body(k):
        c = complex(k, 1) * 1j
        return c.real + abs(c) + c.conjugate().imag

    return scaled(body)


@program(speculated=12, compiles=2)
def token_first_old_value():
    v = contextvars.ContextVar("v", default=1.0)
    n = [0]

    def step(x):
        a = v.set(5.0)
        old = a.old_value
        m = old is contextvars.Token.MISSING
        v.reset(a)
        return x * (1.0 if m else old), m

    def change():
        n[0] += 1
        if n[0] > 6:
            v.set(float(n[0] % 5))

    return Program(step, inputs(), dict.fromkeys(range(18), change), state=n)


@program(speculated=15, compiles=2)
def restored_by_old_value():
    v = contextvars.ContextVar("v", default=1.0)
    n = [0]

    def step(x):
        n[0] += 1
        a = v.set(float(n[0] % 4))
        b = v.set(v.get() * 2)
        c = v.set(b.old_value)
        y = x * v.get()
        v.reset(c)
        v.reset(b)
        z = x + v.get()
        v.reset(a)
        return y, z, v.get()

    return Program(step, inputs(), state=n)


@program(speculated=14)
def context_set_get_reset():
    scale = contextvars.ContextVar("scale", default=1.0)
    n = [0]

    def step(x):
        n[0] += 1
        tok = scale.set(float(n[0] % 4))
        y = x * scale.get()
        scale.reset(tok)
        return y, scale.get()

    return Program(step, inputs(), state=n)


@program(speculated=14)
def context_in_function():
    scale = contextvars.ContextVar("scale", default=1.0)
    n = [0]

    def fwd(x):
        return x * scale.get()

    def step(x):
        n[0] += 1
        tok = scale.set(float(n[0] % 4))
        try:
            y = fwd(x)
        finally:
            scale.reset(tok)
        return y, scale.get()

    return Program(step, inputs(), state=n)


@program(speculated=12)
def context_run_in_context():
    scale = contextvars.ContextVar("scale", default=1.0)
    n = [0]

    def fwd(x):
        return x * scale.get()

    def step(x):
        n[0] += 1
        m = contextvars.copy_context().run(fwd, x)
        return m

    return Program(step, inputs(), state=n)


@program(refused="native code is given the function")
def context_set_and_run():
    scale = contextvars.ContextVar("scale", default=1.0)
    n = [0]

    def fwd(x):
        return x * scale.get()

    def step(x):
        n[0] += 1
        tok = scale.set(float(n[0] % 4))
        y = fwd(x)
        scale.reset(tok)
        m = contextvars.copy_context().run(fwd, x)
        return y, m

    return Program(step, inputs(), state=n)


@program(speculated=12)
def context_run_first():
    scale = contextvars.ContextVar("scale", default=1.0)
    n = [0]

    def fwd(x):
        return x * scale.get()

    def setting(v, x):
        scale.set(v)
        return fwd(x)

    def step(x):
        n[0] += 1
        m = contextvars.copy_context().run(setting, float(n[0]), x)
        return m, scale.get()

    return Program(step, inputs(), state=n)


@program(speculated=14)
def context_between_calls():
    scale = contextvars.ContextVar("scale", default=1.0)
    n = [0]

    def step(x):
        return x * scale.get()

    def change():
        n[0] += 1
        scale.set(float(n[0]))

    return Program(step, inputs(), dict.fromkeys(range(18), change), state=n)


@program(refused="native code is given the function")
def context_kept_context():
    scale = contextvars.ContextVar("scale", default=1.0)
    n = [0]
    ctx = contextvars.copy_context()

    def work(x):
        scale.set(scale.get() + 1)
        return x * scale.get()

    def step(x):
        return ctx.run(work, x), scale.get()

    return Program(step, inputs(), state=n)


@program(refused="subscript of a Context")
def context_subscript():
    scale = contextvars.ContextVar("scale", default=1.0)
    n = [0]

    def step(x):
        n[0] += 1
        tok = scale.set(float(n[0]))
        ctx = contextvars.copy_context()
        scale.reset(tok)
        return x * ctx[scale], len(ctx) > 0, scale in ctx

    return Program(step, inputs(), state=n)


def kept_until_thrown():
    """A generator from before the call that keeps what an error that is thrown into it holds."""
    kept = None
    while True:
        try:
            yield kept
        except ValueError as error:
            kept = error.args[0]


@program(refused="a new ValueError leaves the step")
def error_thrown_into_a_generator():
    kept = kept_until_thrown()
    next(kept)
    return scaled(lambda k: len(kept.throw(ValueError(f"reset {k}"))), kept)


@program(refused="a new ValueError leaves the step")
def number_thrown_into_a_generator():
    kept = kept_until_thrown()
    next(kept)
    return scaled(lambda k: kept.throw(ValueError(k)), kept)


@program(refused="gives back a ValueError that was made in this call")
def error_with_number_in_queue():
    waiting = queue.Queue()

    def body(k):
        waiting.put(ValueError(k))
        return type(waiting.get().args[0]).__name__ == "float"

    return scaled(body)


@program(speculated=3, compiles=8)
def partial_with_number_pickled():
    return scaled(lambda k: len(pickle.dumps(functools.partial(pow, k, exp=2.0 + k))))


@program(refused="a new method-wrapper leaves the step")
def method_of_object_with_number_pickled():
    return scaled(lambda k: pickle.loads(pickle.dumps([k].__len__))() + len(pickle.dumps([k].append)))


@program(refused="a new RuntimeError leaves the step")
def cause_with_number_pickled():
    def body(k):
        try:
            try:
                raise KeyError(k)
            except KeyError as error:
                raise RuntimeError(f"{k}") from error
        except RuntimeError as error:
            return len(pickle.dumps((error, error.__cause__)))

    return scaled(body)


@program(refused="a new coroutine leaves the step")
def coroutines_with_numbers():
    found = []

    async def later(k):
        await asyncio.sleep(0)
        return [k, f"{k}"]

    async def main(k):
        first = await asyncio.create_task(later(k))
        found.append((first, await later(k + 1.0), k))
        return first[0]

    return scaled(lambda k: asyncio.run(main(k)), found)


@program(refused="a new coroutine leaves the step")
def gathered_coroutines_with_numbers():
    found = []

    async def later(k, held):
        await asyncio.sleep(0)
        held.append(k)
        return {"k": k, "held": held}

    async def main(k):
        return await asyncio.gather(*(later(k + i, [k]) for i in range(2)))

    def body(k):
        found.append(asyncio.run(main(k)))
        return found[-1][0]["k"]

    return scaled(body, found)
