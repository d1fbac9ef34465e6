"""What a graph came upon on a class is found there at each call, or the graph is not used: methods, class attributes,
properties and other descriptors, special methods, whoever puts another one there and wherever."""

from __future__ import annotations

import functools
import linecache
import types
from typing import Any

import pytest
import torch

from tests.sampling import every
from torchjanus import speculate


class Descriptor:
    def __get__(self, instance: Any, owner: Any) -> float:
        return 0.4

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__["set"] = value


def made() -> types.SimpleNamespace:
    """Fresh classes."""

    class Base:
        k = 1.0
        desc = Descriptor()

        def meth(self, x):
            return x * 1.1

        @property
        def prop(self):
            return 2.0

        @classmethod
        def cm(cls):
            return cls.k

        @staticmethod
        def sm(x):
            return x + 0.1

        def __call__(self, x):
            return x * 1.2

        def __getitem__(self, i):
            return i * 0.3

        def __len__(self):
            return 3

        def __bool__(self):
            return True

        def __add__(self, other):
            return other + 0.5

        def __radd__(self, other):
            return other + 0.6

        def __iter__(self):
            return iter([0.1, 0.2])

        def __contains__(self, item):
            return item == 1

        def __enter__(self):
            return 0.7

        def __exit__(self, *given):
            return False

        def __float__(self):
            return 1.5

        def __index__(self):
            return 1

        def __eq__(self, other):
            return True

        def __lt__(self, other):
            return True

        def __hash__(self):
            return 1

        def __format__(self, spec):
            return "fmt"

        def __str__(self):
            return "str"

        def __getattr__(self, name):
            if name.startswith("dyn"):
                return len(name) * 0.1
            raise AttributeError(name)

        def __setattr__(self, name, value):
            object.__setattr__(self, name, value)

        def __delattr__(self, name):
            object.__delattr__(self, name)

        def __neg__(self):
            return 0.25

        def gen(self):
            yield 0.1
            yield 0.2

    class Sub(Base):
        pass

    class Plain:
        def __init__(self, v):
            self.v = v

    class PlainSub(Plain):
        pass

    class Meta(type):
        def __len__(cls):
            return 2

    class Made(metaclass=Meta):
        pass

    return types.SimpleNamespace(**locals())


def entered(o, x):
    with o as value:
        return x * value


def stored(o, x):
    o.tmp = 0.3
    return x * o.tmp


def deleted(o, x):
    o.tmp = 1.0
    del o.tmp
    return x * (3.0 if "tmp" in vars(o) else 2.0)


# What the step says, and what is put in place of what it came upon.
USES: dict[str, tuple[str, Any]] = {
    "meth": ("o.meth(x)", lambda self, x: x * 9),
    "prop": ("x * o.prop", property(lambda self: 9.0)),
    "cm": ("x * o.cm()", classmethod(lambda cls: 9.0)),
    "sm": ("o.sm(x)", staticmethod(lambda x: x + 9)),
    "k": ("x * o.k", 9.0),
    "desc": ("x * o.desc", property(lambda self: 9.0)),
    "__call__": ("o(x)", lambda self, x: x * 9),
    "__getitem__": ("x * o[2]", lambda self, i: 9.0),
    "__len__": ("x * len(o)", lambda self: 9),
    "__bool__": ("x * 2 if o else x * 3", lambda self: False),
    "__add__": ("o + x", lambda self, other: other + 9),
    "__radd__": ("1.0 + o + x", lambda self, other: other + 9),
    "__iter__": ("x + sum(o)", lambda self: iter([9.0])),
    "__contains__": ("x * (2 if 1 in o else 3)", lambda self, item: False),
    "__enter__": ("entered(o, x)", lambda self: 9.0),
    "__float__": ("x * float(o)", lambda self: 9.0),
    "__index__": ("x * [1, 2, 3][o]", lambda self: 2),
    "__eq__": ("x * (2 if o == 1 else 3)", lambda self, other: False),
    "__lt__": ("x * (2 if o < 1 else 3)", lambda self, other: False),
    "__hash__": ("x * hash(o)", lambda self: 9),
    "__format__": ("x * len(f'{o:q}')", lambda self, spec: "nine"),
    "__str__": ("x * len(str(o))", lambda self: "ninenine"),
    "__getattr__": ("x * o.dynx", lambda self, name: 9.0),
    "__setattr__": ("stored(o, x)", lambda self, name, value: object.__setattr__(self, name, value * 9)),
    "__delattr__": ("deleted(o, x)", lambda self, name: None),
    "__neg__": ("x * -o", lambda self: 9.0),
    "gen": ("x + sum(o.gen())", lambda self: iter([9.0])),
}


def put_on_base(w: Any, o: Any, name: str, new: Any) -> None:
    setattr(w.Base, name, new)


def put_on_subclass(w: Any, o: Any, name: str, new: Any) -> None:
    setattr(w.Sub, name, new)


def another_class(w: Any, o: Any, name: str, new: Any) -> None:
    object.__setattr__(o, "__class__", type("Other", (w.Base,), {name: new}))


def put_on_the_object(w: Any, o: Any, name: str, new: Any) -> None:
    function = getattr(new, "__func__", new)
    bound = isinstance(function, types.FunctionType) and not isinstance(new, staticmethod)
    o.__dict__[name] = types.MethodType(function, o) if bound else function


def new_code(w: Any, o: Any, name: str, new: Any) -> None:
    old, new = (getattr(raw, "fget", None) or getattr(raw, "__func__", raw) for raw in (vars(w.Base)[name], new))
    if isinstance(old, types.FunctionType) and isinstance(new, types.FunctionType):
        old.__code__ = new.__code__


def calls(text: str, change: Any, speculated: bool) -> tuple[list[torch.Tensor], int]:
    """What a step gives that says this, over a change after seven of fourteen calls."""
    w = made()
    o = w.Sub()
    code = f"def step(x):\n    y = {text}\n    return (y * y).sum() + y\n"
    file = f"<{__name__}: {text}>"
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    scope = {"o": o, "w": w, "entered": entered, "stored": stored, "deleted": deleted}
    exec(compile(code, file, "exec"), scope)
    step: Any = scope["step"]
    if speculated:
        step = speculate(step, executor="replay")
    results = []
    for at in range(14):
        if at == 7:
            change(w, o)
        results.append(step(torch.full((2,), float(at % 3 + 1))))
    return results, step.statistics().speculated if speculated else 0


def check(text: str, change: Any) -> None:
    expected, _ = calls(text, change, speculated=False)
    found, served = calls(text, change, speculated=True)
    assert all(map(torch.equal, found, expected)), text
    assert served >= 6, text


CHANGES = (put_on_base, put_on_subclass, another_class, put_on_the_object, new_code)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", every(3, USES))
def test_a_graph_sees_what_has_been_put_on_a_class(name: str, change: Any) -> None:
    text, new = USES[name]
    check(text, lambda w, o: change(w, o, name, new))


def test_a_new_initializer() -> None:
    for on in ("Plain", "PlainSub"):
        check(
            "x * w.PlainSub(2.0).v",
            lambda w, o, on=on: setattr(getattr(w, on), "__init__", lambda self, v: setattr(self, "v", 9.0)),
        )


def test_a_metaclass() -> None:
    check("x * len(w.Made)", lambda w, o: setattr(w.Meta, "__len__", lambda cls: 9))


def test_what_a_partial_function_holds() -> None:
    def scaled(x: torch.Tensor, k: float, b: float = 0.0) -> torch.Tensor:
        return x * k + b

    def run(wrap: Any) -> tuple[list[torch.Tensor], Any]:
        held = functools.partial(scaled, k=2.0)
        outer = functools.partial(held, b=3.0)

        def step(x: torch.Tensor, given: Any) -> torch.Tensor:
            return held(x) + outer(x) + given(x)

        step = wrap(step)
        results = []
        for at in range(14):
            if at == 7:
                held.keywords["k"] = 5.0
            if at == 9:
                held.keywords["b"] = 7.0
            results.append(step(torch.full((2,), at + 1.0), functools.partial(scaled, k=float(at), b=torch.ones(2))))
        return results, step

    expected, _ = run(lambda step: step)
    found, fast = run(lambda step: speculate(step, executor="replay"))
    assert all(map(torch.equal, found, expected))
    assert fast.statistics().speculated >= 9
