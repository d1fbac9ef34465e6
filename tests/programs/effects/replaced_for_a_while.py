"""What a step replaces in libraries for a while (streams, functions, settings), and code that has no hooks.

Calls of the host are made when the step has put that back, so they must be given it, or the step is refused.
"""

import argparse
import contextlib
import io
import os
import pprint
import string
import sys
import types
import warnings
from unittest import mock

import torch

from tests.programs.harness import Program, program


def inputs(count=18):
    return [(torch.randn(6, 5),) for _ in range(count)]


def scaled(body, *state, **options):
    """A program that multiplies by what a body makes of the number of the call, and of a number that changes."""
    n = [0]

    def step(x):
        n[0] += 1
        return x * body(n[0], float(n[0] % 7) + 0.5)

    return Program(step, inputs(), state=(n, *state), **options)


@program(speculated=14, compiles=4)
def output_into_a_buffer():
    out = io.StringIO()

    def body(n, k):
        with contextlib.redirect_stdout(out):
            print("k", k, sep="=", end=";")
        return len(out.getvalue())

    return scaled(body, out)


@program(speculated=14, compiles=4)
def output_into_a_new_buffer():
    def body(n, k):
        with contextlib.redirect_stdout(io.StringIO()) as out:
            print("k", k)
            print("n")
        print("seen", out.getvalue())
        return len(out.getvalue())

    return scaled(body)


@program(speculated=14, compiles=4)
def output_suppressed():
    def body(n, k):
        with contextlib.redirect_stdout(None):
            print("hidden", k)
        print("shown")
        return k

    return scaled(body)


@program(speculated=14, compiles=4)
def output_of_a_tensor():
    out = io.StringIO()

    def step(x):
        with contextlib.redirect_stdout(out):
            print("sum", (x * 2).sum().item(), x[0, :2])
        print(len(out.getvalue()))
        return x * 2

    return Program(step, inputs(), state=out)


@program(speculated=14, compiles=4)
def stream_assigned():
    out = io.StringIO()

    def body(n, k):
        old = sys.stdout
        sys.stdout = out
        try:
            print("k", k)
            sys.stdout.write("w")
        finally:
            sys.stdout = old
        print("after")
        return len(out.getvalue())

    return scaled(body, out)


@program(speculated=14, compiles=4)
def errors_into_a_buffer():
    out = io.StringIO()

    def body(n, k):
        with contextlib.redirect_stderr(out):
            print("k", k, file=sys.stderr)
            sys.stderr.write("w")
        return len(out.getvalue())

    return scaled(body, out)


@program(refused="is called in the middle of the step, and may read sys.stderr")
def warning_into_a_buffer():
    out = io.StringIO()

    def body(n, k):
        with contextlib.redirect_stderr(out):
            warnings.warn("careful")
        return len(out.getvalue())

    def around(i):
        @contextlib.contextmanager
        def c():
            with warnings.catch_warnings():
                warnings.simplefilter("always")
                yield

        return c()

    return scaled(body, out, around=around)


@program(refused="is called in the middle of the step, and may read sys.stdout")
def helper_prints():
    out = io.StringIO()

    def show(k):
        print("k", k)
        pprint.pprint([k])

    def body(n, k):
        with contextlib.redirect_stdout(out):
            show(k)
        return len(out.getvalue())

    return scaled(body, out)


@program(speculated=14, compiles=4)
def nested_redirects():
    a, b = io.StringIO(), io.StringIO()

    def body(n, k):
        with contextlib.redirect_stdout(a):
            print("a")
            with contextlib.redirect_stdout(b):
                print("b", k)
            print("a2")
        return len(a.getvalue()) + len(b.getvalue())

    return scaled(body, a, b)


@program(refused="calls unittest.mock")
def argv_replaced():
    def body(n, k):
        with mock.patch.object(sys, "argv", ["prog", "--k", str(k)]):
            p = argparse.ArgumentParser()
            p.add_argument("--k", type=float)
            return p.parse_args().k

    return scaled(body)


@program(refused="is called in the middle of the step, and may read sys.argv")
def argv_assigned():
    def body(n, k):
        old, sys.argv = sys.argv, ["prog", "--k", str(k)]
        try:
            p = argparse.ArgumentParser()
            p.add_argument("--k", type=float)
            return p.parse_args().k
        finally:
            sys.argv = old

    return scaled(body)


@program(speculated=0, compiles=4)
def stdin_replaced():
    def body(n, k):
        old, sys.stdin = sys.stdin, io.StringIO(f"{k}\n")
        try:
            return float(input())
        finally:
            sys.stdin = old

    return scaled(body)


@program(refused="calls unittest.mock")
def library_constant_patched():
    def body(n, k):
        with mock.patch.object(string, "digits", "0" * (n % 3 + 1)):
            return float(len(string.digits))

    return scaled(body)


@program(refused="calls unittest.mock")
def environ_patched():
    def body(n, k):
        with mock.patch.dict(os.environ, {"TJ_P": str(k)}):
            return float(os.environ["TJ_P"]) + ("TJ_P" in os.environ)

    return scaled(body)


@program(refused="calls unittest.mock")
def own_module_patched():
    class C:
        v = 1.0

    def body(n, k):
        with mock.patch.object(C, "v", k):
            r = C.v + C().v
        return r + C.v

    return scaled(body, C)


@program(speculated=14, compiles=4)
def directory_changed():
    def body(n, k):
        old = os.getcwd()
        os.chdir("/tmp")
        try:
            return float(len(os.getcwd())) + len(os.path.abspath("a"))
        finally:
            os.chdir(old)

    return scaled(body)


@program(speculated=0, compiles=4)
def loader_always():
    ds = torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))
    dl = torch.utils.data.DataLoader(ds, batch_size=4, shuffle=True)
    st = {"it": None}

    def step(x):
        st["it"] = iter(dl)
        a, b = next(st["it"])
        return x[:2, :2] + a.sum() * b.float().mean()

    return Program(step, inputs(), state=None)


@program(speculated=10, compiles=4)
def loader_iterated():
    ds = torch.utils.data.TensorDataset(torch.arange(40.0).view(20, 2), torch.arange(20))
    dl = torch.utils.data.DataLoader(ds, batch_size=4, shuffle=True)
    st = {"it": iter(dl)}

    def step(x):
        try:
            a, b = next(st["it"])
        except StopIteration:
            st["it"] = iter(dl)
            a, b = next(st["it"])
        return x[:2, :2] + a.sum() * b.float().mean()

    return Program(step, inputs(), state=None)


@program(refused="was changed by code that is not watched")
def module_without_source():
    def body(n, k):
        import tj_counter_module as m

        m.count += 1
        m.table["k"] = k
        return m.bump(k) + m.count + m.table["k"]

    m = types.ModuleType("tj_counter_module")
    exec("count = 0\ntable = {}\ndef bump(k):\n    global count\n    count += 10\n    return k + count", m.__dict__)
    sys.modules["tj_counter_module"] = m
    return scaled(body)
