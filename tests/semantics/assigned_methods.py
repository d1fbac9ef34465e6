"""Programs by a table: a special method, and what kind of callable stands under its name.

Each makes a class of which one special method counts its calls and answers by the count; a step uses it, and reads the
count. Whatever is done with a stale answer, a lost count or a method that was not found shows in what the calls give.
"""

from __future__ import annotations

import builtins
import copy
import functools
import math
import operator
import os
from collections.abc import Callable
from typing import Any

import torch

import torchjanus

CALLS = 7


class Count:
    """What the methods count, and tell."""

    def __init__(self) -> None:
        self.n = 0

    def up(self) -> int:
        self.n += 1
        return self.n


def _function(core: Callable[..., Any]) -> Any:
    def method(self: Any, *args: Any) -> Any:
        return core(*args)

    return method


def _partialmethod(core: Callable[..., Any]) -> Any:
    return functools.partialmethod(_function(core))


def _partialmethod_of_object(core: Callable[..., Any]) -> Any:
    class Called:
        def __call__(self, receiver: Any, *args: Any) -> Any:
            return core(*args)

    return functools.partialmethod(Called())


def _classmethod(core: Callable[..., Any]) -> Any:
    return classmethod(lambda cls, *args: core(*args))


def _callable(core: Callable[..., Any]) -> Any:
    class Called:
        def __call__(self, *args: Any) -> Any:
            return core(*args)

    return Called()


def _class(core: Callable[..., Any]) -> Any:
    class Made:
        def __new__(cls, *args: Any) -> Any:
            return core(*args)

    return Made


def _descriptor(core: Callable[..., Any]) -> Any:
    class Gives:
        def __get__(self, instance: Any, owner: Any) -> Any:
            return lambda *args: core(*args)

    return Gives()


def _descriptor_of_partial(core: Callable[..., Any]) -> Any:
    class Gives:
        def __get__(self, instance: Any, owner: Any) -> Any:
            return functools.partial(core)

    return Gives()


def _property(core: Callable[..., Any]) -> Any:
    return property(lambda self: core)


def _own_property(core: Callable[..., Any]) -> Any:
    class Own(property):
        pass

    return Own(lambda self: core)


def _bound(core: Callable[..., Any]) -> Any:
    class Other:
        def method(self, *args: Any) -> Any:
            return core(*args)

    return Other().method


def _static_callable(core: Callable[..., Any]) -> Any:
    return staticmethod(_callable(core))


KINDS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "function": _function,
    "partial": functools.partial,
    "partialmethod": _partialmethod,
    "partialmethod of an object": _partialmethod_of_object,
    "staticmethod": staticmethod,
    "staticmethod of an object": _static_callable,
    "classmethod": _classmethod,
    "object": _callable,
    "class": _class,
    "descriptor": _descriptor,
    "descriptor of a partial": _descriptor_of_partial,
    "property": _property,
    "own property": _own_property,
    "bound method": _bound,
    "None": lambda core: None,
    "builtin": lambda core: callable,
    "getter": lambda core: operator.attrgetter("real"),
}

Use = Callable[[Any], Any]


def _statement(source: str) -> Use:
    """A function of ``o`` that runs these lines; they may say what they return."""
    lines = "\n".join(f"    {line}" for line in source.splitlines())
    space: dict[str, Any] = {"math": math, "operator": operator, "copy": copy, "os": os, "builtins": builtins}
    exec(compile(f"def use(o):\n{lines}\n", f"<{source}>", "exec"), space)
    used: Use = space["use"]
    return used


class Merged(Exception):
    pass


class Steps:
    """An iterator of two."""

    def __init__(self, n: int) -> None:
        self.left = [1, n]

    def __iter__(self) -> Steps:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        return self.left.pop()


def _number(count: Count, *args: Any) -> Any:
    return count.up()


def _text(count: Count, *args: Any) -> Any:
    return "t" * count.up()


def _truth(count: Count, *args: Any) -> Any:
    return count.up() % 2 == 0


def _nothing(count: Count, *args: Any) -> Any:
    count.up()


def _steps(count: Count, *args: Any) -> Any:
    return Steps(count.up())


def _list(count: Count, *args: Any) -> Any:
    return ["a"] * count.up()


def _float(count: Count, *args: Any) -> Any:
    return float(count.up())


def _complex(count: Count, *args: Any) -> Any:
    return complex(count.up(), 1)


def _next(count: Count, *args: Any) -> Any:
    if count.up() % 3 == 0:
        raise StopIteration
    return count.n


def _bytes(count: Count, *args: Any) -> Any:
    return b"b" * count.up()


def _element(count: Count, *args: Any) -> Any:
    if args[-1] == 2:
        raise IndexError
    return count.up()


_BINARY = {
    "add": "+", "sub": "-", "mul": "*", "matmul": "@", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "lshift": "<<", "rshift": ">>", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

# (special method, what it does, how it is used)
METHODS: list[tuple[str, Callable[..., Any], str]] = [
    ("__getattr__", _number, "return o.missing"),
    ("__getattr__", _number, "return getattr(o, 'missing', 0) + hasattr(o, 'other')"),
    ("__setattr__", _nothing, "o.a = 1"),
    ("__setattr__", _nothing, "setattr(o, 'a', 1)"),
    ("__delattr__", _nothing, "del o.a"),
    *((f"__{name}__", _number, f"return o {op} 2") for name, op in _BINARY.items()),
    *((f"__r{name}__", _number, f"return 2 {op} o") for name, op in list(_BINARY.items())[:6]),
    ("__radd__", _number, "return [1] + o"),
    ("__rmul__", _number, "return [1] * o"),
    *((f"__i{name}__", _number, f"p = o\np {op}= 2\nreturn p") for name, op in list(_BINARY.items())[:6]),
    ("__ior__", _number, "return operator.ior(o, 1)"),
    ("__neg__", _number, "return -o"),
    ("__pos__", _number, "return +o"),
    ("__invert__", _number, "return ~o"),
    ("__abs__", _number, "return abs(o)"),
    *((f"__{name}__", _truth, f"return 2 if o {op} 1 else 3") for name, op in _COMPARE.items()),
    ("__lt__", _truth, "return 2 if 1 > o else 3"),
    ("__eq__", _truth, "return 2 if o in [1, 2] else 3"),
    ("__hash__", _number, "return hash(o)"),
    ("__hash__", _number, "return {o: 5}[o]"),
    ("__bool__", _truth, "return 2 if o else 3"),
    ("__bool__", _truth, "return 2 if not o else 3"),
    ("__len__", _number, "return len(o)"),
    ("__len__", _number, "return 2 if o else 3"),
    ("__length_hint__", _number, "return operator.length_hint(o)"),
    ("__contains__", _truth, "return 2 if 1 in o else 3"),
    ("__getitem__", _number, "return o[0]"),
    ("__getitem__", _element, "return sum(o)"),
    ("__setitem__", _nothing, "o[0] = 1"),
    ("__delitem__", _nothing, "del o[0]"),
    ("__iter__", _steps, "return sum([i for i in o])"),
    ("__iter__", _steps, "a, b = o\nreturn a - b"),
    ("__iter__", _steps, "return len([*o]) + max(o)"),
    ("__next__", _next, "return next(o, 9)"),
    ("__reversed__", _steps, "return sum(reversed(o))"),
    ("__call__", _number, "return o(1)"),
    ("__enter__", _number, "with o as n:\n    return n"),
    ("__exit__", _truth, "with o:\n    raise KeyError\nreturn 4"),
    ("__int__", _number, "return int(o)"),
    ("__float__", _float, "return float(o)"),
    ("__float__", _float, "return math.sqrt(o)"),
    ("__complex__", _complex, "return complex(o).real"),
    ("__index__", _number, "return [5] * 20 and list(range(20))[o]"),
    ("__index__", _number, "return len(hex(o)) + operator.index(o)"),
    ("__round__", _number, "return round(o)"),
    ("__trunc__", _number, "return math.trunc(o)"),
    ("__floor__", _number, "return math.floor(o)"),
    ("__ceil__", _number, "return math.ceil(o)"),
    ("__divmod__", _number, "return divmod(o, 2)"),
    ("__str__", _text, "return len(str(o))"),
    ("__str__", _text, "return len(f'{o}')"),
    ("__repr__", _text, "return len(repr(o)) + len('%r' % (o,))"),
    ("__format__", _text, "return len(f'{o:3}')"),
    ("__bytes__", _bytes, "return len(bytes(o))"),
    ("__init__", _nothing, "type(o)()"),
    ("__init__", _nothing, "type(o)(1)"),
    ("__new__", _number, "return type(o)()"),
    ("__class_getitem__", _number, "return type(o)[0]"),
    ("__missing__", _number, "return o['missing']"),
    ("__copy__", _number, "return copy.copy(o)"),
    ("__deepcopy__", _number, "return copy.deepcopy(o)"),
    ("__dir__", _list, "return len(dir(o))"),
    ("__fspath__", _text, "return len(os.fspath(o))"),
    ("__sizeof__", _number, "return o.__sizeof__()"),
    ("__get__", _number, "return o.holder().d"),
    ("__set__", _nothing, "o.holder().d = 1"),
    ("__delete__", _nothing, "del o.holder().d"),
    ("__instancecheck__", _truth, "return 2 if isinstance(1, o) else 3"),
    ("__subclasscheck__", _truth, "return 2 if issubclass(int, o) else 3"),
]  # fmt: skip


def build(name: str, answer: Callable[..., Any], kind: str, use: str) -> tuple[Callable[[Any], Any], Count]:
    """A step for the combination, and what its method counts."""
    count = Count()

    def core(*args: Any) -> Any:
        return answer(count, *args)

    base: type = dict if name == "__missing__" else object
    space: dict[str, Any] = {"kept": 1, "__repr__": lambda self: "an odd one", name: KINDS[kind](core)}
    if name == "__exit__":
        space["__enter__"] = lambda self: self
    elif name == "__enter__":
        space["__exit__"] = lambda self, *args: None
    made = type("Odd", (base,), space)
    # A new object is made by what is assigned to __new__ or __init__, unless that is gone iteration.
    obj = base.__new__(made)
    if name in ("__get__", "__set__", "__delete__"):
        holder = type("Holder", (), {"d": obj})()
        made.holder = staticmethod(lambda: holder)
    used = _statement(use)

    def step(x: torch.Tensor) -> Any:
        found = used(obj)
        number = found if isinstance(found, int | float) and not isinstance(found, bool) else 1
        return x * number, x + count.n

    return step, count


def outcome(name: str, answer: Callable[..., Any], kind: str, use: str, speculated: bool) -> tuple[Any, Any]:
    """What the calls of a combination give or raise, and how many were served."""
    step, count = build(name, answer, kind, use)
    called: Any = torchjanus.speculate(step, executor="replay") if speculated else step
    seen: list[Any] = []
    for _ in range(CALLS):
        try:
            seen.append([float(value) for value in called(torch.ones(()))])
        except Exception as error:
            seen.append((type(error).__name__, str(error)))
        seen.append(count.n)
    return seen, called.statistics() if speculated else None


COMBINATIONS = [(kind, name, answer, use) for kind in KINDS for name, answer, use in METHODS]
