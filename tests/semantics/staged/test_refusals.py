"""What a staged function is not: code for which a graph, made once, would give something else than the program."""

from __future__ import annotations

import abc
import collections
import contextvars
import functools
import itertools
import struct
import types
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import torchjanus
from tests.semantics.staged.checking import agree
from torchjanus import Rep

X = torch.ones(3)


class F(float):
    """A number with attributes."""


class Slim:
    __slots__ = ("a",)

    def __init__(self) -> None:
        self.a = 1


class Held:
    log: list[int] = []

    def __del__(self) -> None:
        Held.log.append(1)


class Kinds(type):
    inst: dict[Any, Any] = {}

    def __call__(cls, *args: Any) -> Any:
        if cls not in Kinds.inst:
            Kinds.inst[cls] = super().__call__(*args)
        return Kinds.inst[cls]


class Single(metaclass=Kinds):
    def __init__(self) -> None:
        self.n = 0


class Open(abc.ABC):
    pass


@functools.cache
def cached(n):
    return torch.rand(n)


def scaled(x, *, k=1):
    return x * k


def on_iterator(it):
    return lambda x: x * next(it)


def one_of_two(x):
    a, b = [x * 2], [x * 3]
    best = a if x.sum() > 0 else b
    best.append(x)
    return len(a), len(b)


def one_of_two_in_a_loop(x):
    a, b = [x * 2], [x * 3]
    best = a
    for t in x:
        best = a if t > 0 else b
    best.append(x)
    return len(a), len(b)


def compared_by_identity(x):
    a, b = [x], [x]
    best = a if x.sum() > 0 else b
    return best is a


def advanced_one_way(x):
    it = iter([1.0, 2.0, 3.0])
    if x.sum() > 0:
        x = x * next(it)
    return x * next(it)


def caught_unset(x):
    for t in x:
        if t > 0:
            best = 3
    try:
        return best
    except UnboundLocalError:
        return None


def registered(x):
    Open.register(Slim)
    return x


def dies(x):
    made = Held()
    del made
    return x, len(Held.log)


def single(x):
    a = Single()
    a.n += 1
    return x * a.n


def with_default(x):
    scaled.__kwdefaults__["k"] += 1
    return scaled(x)


def given(held: Any, use: Any) -> Any:
    return lambda x: use(held, x)


def number_with_state():
    f = F(2.0)
    f.k = 1

    def step(x):
        f.k += 1
        return x * f

    return step


def slots():
    one, member = Slim(), vars(Slim)["a"]

    def step(x):
        member.__set__(one, one.a + 1)
        return x + one.a

    return step


def viewed():
    held = {"inner": {"a": 1.0}}
    shown = types.MappingProxyType(held)

    def step(x):
        shown["inner"]["a"] += 1.0
        return x * held["inner"]["a"]

    return step


def queue():
    class Q(collections.deque):
        __lshift__ = collections.deque.append

    q = Q()

    def step(x):
        q << 1.0
        return x + len(q)

    return step


def native_method():
    held = []
    push = held.append

    def step(x):
        push(1)
        return x + len(held)

    return step


def generator_that_is_dropped():
    log = []

    def count(x):
        try:
            yield x
        finally:
            log.append(1)

    def step(x):
        for y in count(x):
            break
        return y, len(log)

    return step


THING = Slim()
CONTEXT = contextvars.ContextVar("scale", default=2.0)
ARRAY = np.zeros(3, dtype=np.float32)
REFUSED = {
    "an enumeration": (on_iterator(enumerate([1.0])), "staged-mutation"),
    "a cycle": (on_iterator(itertools.cycle([1.0, 2.0])), "staged-mutation"),
    "one of two lists": (one_of_two, "staged-mutation"),
    "one of two lists in a loop": (one_of_two_in_a_loop, "staged-mutation"),
    "which of two lists": (compared_by_identity, "staged-value"),
    "an iterator advanced one way": (advanced_one_way, "staged-mutation"),
    "a variable not set, in try": (caught_unset, "staged-try"),
    "a cache": (lambda x: x + cached(3), "staged-effect"),
    "a context": (given(contextvars.copy_context(), lambda c, x: c.run(torch.neg, x)), "staged-effect"),
    "a variable of a context": (given(CONTEXT, lambda v, x: x * v.get()), "staged-effect"),
    "an array": (given(ARRAY, lambda a, x: x * float(a[0])), "staged-value"),
    "an array's truth": (given(ARRAY, lambda a, x: x if a.sum() > 0 else -x), "staged-value"),
    "an array's text": (given(ARRAY, lambda a, x: f"{a}"), "staged-value"),
    "a function of an array": (
        given(np.frompyfunc(lambda n: ARRAY[n], 1, 1), lambda f, x: x * float(f(1))),
        "staged-value",
    ),
    "a generator of numpy": (given(np.random.default_rng(0), lambda g, x: x * g.standard_normal()), "staged-value"),
    "bytes": (given(bytearray(4), lambda b, x: x * struct.unpack_from("f", b, 0)[0]), "staged-value"),
    "a weak reference": (given(weakref.ref(cached), lambda r, x: x if r() else -x), "staged-value"),
    "a number with attributes": (number_with_state(), "staged-mutation"),
    "slots": (slots(), "staged-mutation"),
    "a view of a dictionary": (viewed(), "staged-mutation"),
    "a queue": (queue(), "staged-mutation"),
    "a method of a list": (native_method(), "staged-mutation"),
    "defaults": (with_default, "staged-mutation"),
    "a finalizer": (dies, "staged-mutation"),
    "one object of a class": (single, "staged-mutation"),
    "a registry": (registered, "staged-effect"),
    "a generator that is dropped": (generator_that_is_dropped(), "staged-mutation"),
    "a text": (lambda x: f"{[x.sum().item()]}", "staged-value"),
    "a text of a tensor": (lambda x: str([x]), "staged-value"),
    "strides": (lambda x: x if x.is_contiguous() else x * 2, "staged-value"),
    "a result of a class": (lambda x: collections.OrderedDict(a=x), "staged-result"),
    "a result with a queue": (lambda x: [collections.deque([x])], "staged-result"),
    "an error": (lambda x: [*x][3], "staged-raises"),
    "an error of native code": (lambda x: ",".join([x]), "staged-raises"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_something_else_is_refused(name):
    fn, code = REFUSED[name]
    with pytest.raises(torchjanus.NotStaged) as refused:
        torchjanus.staged(fn)(X)
    refusal = refused.value.refusal
    assert refusal.reason == code, refused.value
    assert refusal.place.file == __file__, refused.value
    assert refusal.place.line > 1, refused.value
    assert refusal.what, refused.value
    assert refusal.why, refused.value
    assert refusal.remedy, refused.value


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_functions_are_refused():
    scripted = torch.jit.script(torch.nn.ReLU())
    with pytest.raises(torchjanus.NotStaged) as refused:
        torchjanus.staged(lambda x: scripted(x))(X)
    assert refused.value.refusal.reason == "staged-effect"


def joins(x):
    return ",".join([x])


def test_the_place_of_an_error_is_where_it_is_raised():
    with pytest.raises(torchjanus.NotStaged) as refused:
        torchjanus.staged(lambda x: joins(x))(X)
    assert refused.value.refusal.reason == "staged-raises"
    assert refused.value.refusal.place.line == joins.__code__.co_firstlineno + 1
    assert refused.value.refusal.place.function == "joins"


def test_arrays_are_no_arguments():
    with pytest.raises(torchjanus.NotStaged, match="from_numpy"):
        torchjanus.staged(lambda x, a: x)(X, ARRAY)


def test_containers_of_other_classes_are_themselves():
    held = collections.deque([X, X * 2])
    staged = torchjanus.staged(lambda xs: xs[0] + xs[1])(held)
    torch.testing.assert_close(staged(held), X * 3)
    with pytest.raises(torchjanus.Unsupported, match="the graph was made for"):
        staged(collections.deque([X, X * 2, X]))


def test_attention_of_another_kernel_is_refused():
    def fn(x):
        q = x.reshape(1, 1, 3, 1)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    with pytest.raises(torchjanus.NotStaged) as refused:
        torchjanus.staged(fn)(X)
    assert refused.value.refusal.reason == "staged-mode"


def test_lists_that_are_made_on_the_ways_can_be_changed():
    def fn(x):
        if x.sum() > 0:
            found = [x]
        else:
            found = [x * 2]
        found.append(x + 1)
        return found

    agree(fn, (X,), (X,), (-X,))


def test_iterators_of_an_arm():
    def fn(x):
        if x.sum() > 0:
            for k, row in enumerate([x, x * 2]):
                x = x + row * k
        return x

    agree(fn, (X,), (X,), (-X,))


def test_sizes_that_are_returned_are_sizes():
    staged = agree(lambda x: (x.shape, x.t().shape), (torch.ones(2, 3),), (torch.ones(2, 3),))
    assert all(type(one) is torch.Size for one in staged(torch.ones(2, 3)))
    staged = torchjanus.staged(lambda x: x.shape)(Rep(torch.float32, ("N", 2)))
    assert type(staged(torch.ones(5, 2))) is torch.Size


def test_modules_that_look_for_overridden_operators():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 1).eval()

    def fn(x):
        with torch.no_grad():
            return model(x)

    torch.manual_seed(0)
    agree(fn, (torch.ones(2, 3, 8),), (torch.randn(2, 3, 8),))
