"""Keyword names of the program that might also be parameters of the library: self, fn, args, kwargs, name, at."""

import collections
import contextlib
import functools
import types
from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.programs.harness import CALLS, Call, Program, program


def inputs():
    return [(torch.randn(3),) for _ in range(CALLS)]


def named(**more):
    return [Call(torch.randn(3), **more) for _ in range(CALLS)]


@program()
def given_to_the_step():
    def step(x, **kw):
        return x * kw["self"] + kw["fn"]

    return Program(step, named(self=2.0, fn=0.5))


@program()
def those_of_the_engine_given_to_the_step():
    def step(x, args, kwargs, watch, executor, journal, live, verify=0, *, semantics, run, item):
        return x * args + kwargs - watch * executor + journal + live + verify + semantics + run + item

    more = dict(args=1.0, kwargs=2.0, watch=3.0, executor=4.0, journal=5.0, live=6.0, semantics=7.0, run=8.0, item=9.0)
    return Program(step, named(verify=1.0, **more))


@program()
def numbers_that_change_by_any_name():
    def step(x, self, fn):
        return x * self + fn

    return Program(step, [Call(torch.randn(3), self=k * 0.5, fn=k) for k in range(CALLS)])


@program()
def given_to_functions():
    def scaled(x, *, self, fn, at, obj, name, value, method, owner):
        return x * self + fn + at + obj + name + value + method + owner

    def any_way(*args, **kwargs):
        return scaled(*args, **kwargs)

    def step(x):
        return any_way(x, self=1.0, fn=2.0, at=3.0, obj=4.0, name=5.0, value=6.0, method=7.0, owner=8.0)

    return Program(step, inputs())


@program()
def given_to_constructors():
    class Box:
        def __init__(this, **kw):
            this.kw = kw

    class Made:
        def __new__(klass, **kw):
            made = object.__new__(klass)
            made.kw = kw
            return made

        def __init__(this, **kw):
            pass

    def step(x):
        a, b = Box(self=1.0, cls=2.0, fn=3.0), Made(cls=4.0, self=5.0, obj=6.0)
        return x * a.kw["self"] + a.kw["cls"] + b.kw["cls"] * b.kw["obj"]

    return Program(step, inputs())


@program()
def given_to_methods():
    class Box:
        scale = 2.0

        def scaled(me, self, fn=1.0):
            return me.scale * self + fn

        @classmethod
        def of_class(klass, cls, self):
            return klass.scale * cls - self

        @staticmethod
        def alone(self, fn):
            return self * fn

        def __call__(me, **kw):
            return kw["self"] * me.scale

    box = Box()

    def step(x):
        y = x * box.scaled(self=3.0, fn=0.5) + Box.of_class(cls=2.0, self=1.0)
        return y + box.alone(self=1.5, fn=2.0) * box(self=0.25)

    return Program(step, inputs())


@program()
def given_to_partials():
    def scaled(x, **kw):
        return x * kw["self"] + kw["func"] - kw["args"]

    with_self = functools.partial(scaled, self=2.0, func=1.0)

    def step(x):
        inner = functools.partial(with_self, args=3.0, func=0.5)
        return inner(x) + with_self(x, args=1.0)

    return Program(step, inputs())


@program()
def given_to_modules_and_their_hooks():
    class Scaled(nn.Module):
        def forward(this, x, fn=1.0, args=0.0, kwargs=0.0, module=0.0):
            return x * fn + args - kwargs + module

    module = Scaled()

    def before(mod, args, kwargs):
        return args, {**kwargs, "fn": kwargs["fn"] + 1.0}

    def after(mod, args, kwargs, out):
        return out * kwargs["module"]

    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, with_kwargs=True)

    def step(x):
        return module(x, fn=2.0, args=1.0, kwargs=0.5, module=3.0)

    return Program(step, inputs())


@program()
def given_to_containers():
    kept, ordered = {}, collections.OrderedDict()

    def step(x):
        kept.update(self=1.0, owner=2.0, shadow=3.0, fn=4.0)
        kept.update({"other": 5.0}, sources=6.0, named=7.0)
        ordered.update(self=8.0, key=9.0)
        made = dict(self=1.0, fn=2.0, args=3.0, given=4.0)
        more = collections.OrderedDict(self=5.0, fn=6.0)
        more.update(self=7.0)
        count = collections.Counter(self=2, iterable=3)
        space = types.SimpleNamespace(self=1.5, fn=2.5)
        either = collections.defaultdict(float, self=3.5, default=4.5)
        total = sum(made.values()) + sum(more.values()) + sum(either.values()) + count["self"] * count["iterable"]
        return x * sum(kept.values()) + ordered.pop(key="key") + total + space.self + space.fn

    return Program(step, inputs(), state=(kept, ordered))


@program()
def given_to_texts():
    names = []

    def step(x):
        names.append("{self} {fn:.1f} {owner} {name}".format(self=len(names), fn=2.5, owner="o", name="n"))
        return x * len(names[-1])

    return Program(step, inputs(), state=names)


@program()
def fields_of_data_classes():
    @dataclass
    class Options:
        fn: float
        args: float = 1.0
        cls: float = 2.0

    Pair = collections.namedtuple("Pair", ["cls", "fn"])

    def step(x):
        options, pair = Options(fn=2.0, cls=3.0), Pair(fn=0.5, cls=1.5)
        return x * options.fn + options.args * options.cls - pair.fn * pair._replace(cls=4.0).cls

    return Program(step, inputs())


@program()
def given_to_generators_and_managers():
    @contextlib.contextmanager
    def scaled(**kw):
        yield kw["self"] * kw["func"] + kw["args"]

    def each(**kw):
        yield from kw.values()

    def step(x):
        with scaled(self=2.0, func=3.0, args=0.5) as factor:
            return x * factor + sum(each(self=1.0, gen=2.0, value=3.0))

    return Program(step, inputs())


@program()
def given_through_wrappers():
    def wrapped(fn):
        @functools.wraps(fn)
        def call(*args, **kwargs):
            return fn(*args, **kwargs) * kwargs["fn"]

        return call

    @wrapped
    def scaled(x, self, fn):
        return x * self + fn

    @functools.singledispatch
    def shown(value, **kw):
        return kw["self"]

    @shown.register
    def _(value: float, **kw):
        return kw["cls"] * value

    def step(x):
        return scaled(x, self=2.0, fn=3.0) + shown(1.5, self=1.0, cls=2.0) + shown("a", self=1.0, cls=2.0)

    return Program(step, inputs())


@program(speculated=0)
def given_to_classes_as_they_are_made():
    class Base:
        kept = 0.0

        def __init_subclass__(klass, /, self=0.0, fn=0.0, **kw):
            klass.kept = self + fn

    def step(x):
        class Made(Base, self=1.0, fn=2.0):
            pass

        return x * Made.kept

    return Program(step, inputs())


@program()
def given_to_metaclasses():
    class Meta(type):
        def __call__(klass, *args, **kw):
            made = super().__call__(*args)
            made.kw = kw
            return made

    class Box(metaclass=Meta):
        pass

    def step(x):
        return x * Box(cls=2.0, self=3.0, args=4.0).kw["self"]

    return Program(step, inputs())


@program()
def a_speculated_function_within_another(jit):
    @jit
    def inner(x, self, fn):
        return x * self + fn

    @jit
    def outer(x, **kw):
        return inner(x, **kw) + inner(x, fn=1.0, self=kw["fn"])

    return Program(outer, named(self=2.0, fn=3.0))


@program()
def a_speculated_method(jit):
    class Trainer:
        scale = 2.0

        @jit
        def step(me, x, self, fn=0.0):
            return x * me.scale + self - fn

    trainer = Trainer()
    return Program(lambda x, **kw: trainer.step(x, **kw), named(self=1.0, fn=0.25))


@program()
def given_through_a_checkpoint():
    lin = nn.Linear(3, 3)

    def block(x, self, name):
        return lin(x) * self + name

    def step(x):
        loss = checkpoint(block, x, self=2.0, name=1.0, use_reentrant=False).sum()
        loss = loss + checkpoint(function=lambda: lin(x).sum(), use_reentrant=False)
        lin.zero_grad()
        loss.backward()
        return loss.detach()

    return Program(step, inputs(), state=lin)


@program()
def found_by_name_in_a_dictionary():
    settings = {"self": 1.0, "fn": 2.0, "args": 3.0}

    def total(**kw):
        return kw["self"] + kw["fn"] * kw["args"]

    def step(x):
        settings["self"] += 1.0
        return x * total(**settings)

    return Program(step, inputs(), state=settings)
