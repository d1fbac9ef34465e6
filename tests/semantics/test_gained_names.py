"""A class that has no such attribute or method, and a module that has no such global, may get one between two calls: it
counts from then on."""

from __future__ import annotations

import builtins
import linecache
from typing import Any

import pytest
import torch

from torchjanus import speculate

CALLS, EDGE = 12, 7

# What the step asks, the name that the class gains, and what that is.
GAINED = (
    ("1 if o else 2", "__bool__", "lambda s: False"),
    ("1 if o else 2", "__len__", "lambda s: 0"),
    ("1 if o == p else 2", "__eq__", "lambda s, t: True"),
    ("1 if o != p else 2", "__ne__", "lambda s, t: False"),
    ("1 if o in [p] else 2", "__eq__", "lambda s, t: True"),
    ("o.n", "__getattribute__", "lambda s, n: 7.0"),
    ("o.n", "n", "property(lambda s: 9.0)"),
    ("o.missed", "missed", "4.0"),
    ("getattr(o, 'zz', 5)", "__getattr__", "lambda s, n: 7.0"),
    ("getattr(o, 'zz', 5)", "zz", "4"),
    ("1 if hasattr(o, 'zz') else 2", "zz", "4"),
    ("put(o)", "__setattr__", "lambda s, n, v: object.__setattr__(s, n, v * 2)"),
    ("len(str(o)) * 0.01", "__str__", "lambda s: 'abc'"),
    ("len(f'{o}') * 0.01", "__format__", "lambda s, f: 'abc'"),
    ("tried(lambda: o + 1)", "__add__", "lambda s, t: 4"),
    ("tried(lambda: 1 + o)", "__radd__", "lambda s, t: 4"),
    ("tried(lambda: o < p)", "__lt__", "lambda s, t: 4"),
    ("tried(lambda: 3 in o)", "__contains__", "lambda s, t: True"),
    ("tried(lambda: len(list(o)))", "__iter__", "lambda s: iter([1, 2])"),
    ("tried(lambda: int(o))", "__int__", "lambda s: 4"),
    ("tried(lambda: float(o))", "__float__", "lambda s: 4.0"),
    ("1 if callable(o) else 2", "__call__", "lambda s: 4"),
    ("C().n", "__init__", "lambda s: setattr(s, 'n', 4.0)"),
    ("C().n", "__new__", "lambda c: other(c)"),
    ("d['a']", "__missing__", "lambda s, k: 2.0"),
    ("1 if isinstance(o, Other) else 2", "__bases__", "(Other,)"),
)

CLASSES = """
import torch

class Base:
    pass

class Other:
    pass

class C(Base):
    def __init__(self):
        self.n = 1.0

    def __getattr__(self, name):
        if name != "missed":
            raise AttributeError(name)
        return 0.5

class Plain(Base):
    def __init__(self):
        self.n = 1.0

class D(dict):
    def __missing__(self, key):
        return 0.5

def tried(f):
    try:
        return f()
    except TypeError:
        return -1

def put(o):
    o.n = 1.5
    return o.n

def other(cls):
    made = object.__new__(cls)
    made.k = 3
    return made
"""

_files = iter(range(10**6))


def made(text: str) -> dict[str, Any]:
    """The globals of a module with this text."""
    name = f"/made/gained_{next(_files)}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    module: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), module)
    return module


def results(text: str, change: str, executor: str | None) -> tuple[list[Any], Any]:
    torch.manual_seed(0)
    module = made(text)
    step = module["step"] if executor is None else speculate(module["step"], executor=executor)
    seen = []
    for number in range(CALLS):
        if number == EDGE:
            exec(change, module)
        seen.append(step(torch.randn(3)).tolist())
    return seen, step


def check(text: str, change: str) -> None:
    eager, _ = results(text, change, None)
    speculated, step = results(text, change, "replay")
    assert speculated == eager
    assert step.statistics().speculated >= EDGE - 3  # all was served that was like what was watched


@pytest.mark.parametrize(("asked", "name", "value"), GAINED, ids=lambda text: str(text)[:20])
def test_a_class_gains_a_name(asked: str, name: str, value: str) -> None:
    cls = "C" if asked == "o.missed" or asked.startswith("C()") else "D" if asked.startswith("d[") else "Plain"
    objects = f"o, p, d = {'C' if cls == 'C' else 'Plain'}(), Plain(), D()"
    text = f"{CLASSES}\n{objects}\n\ndef step(x):\n    return x + ({asked})\n"
    check(text, f"{cls}.{name} = {value}")


@pytest.mark.parametrize("name", ["abs", "len", "max"])
def test_a_module_gains_a_name_of_a_builtin(name: str) -> None:
    call = {"abs": "abs(-2)", "len": "len([1, 2])", "max": "max(1, 2)"}[name]
    check(f"def step(x):\n    return x + {call}\n", f"{name} = lambda *given: 9")


def test_a_builtin_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    module = made("def step(x):\n    return x + reported(1.0)\n")
    monkeypatch.setattr(builtins, "reported", lambda x: x, raising=False)
    step = speculate(module["step"], executor="replay")
    for _ in range(6):
        assert step(torch.zeros(1)).item() == 1.0
    monkeypatch.setattr(builtins, "reported", lambda x: x + 4.0, raising=False)
    assert step(torch.zeros(1)).item() == 5.0
    assert step.statistics().speculated == 3


class Longer(list[float]):
    def append(self, value: float) -> None:
        super().append(value * 2)

    def __len__(self) -> int:
        return super().__len__() + 1


def test_a_list_that_counts_in_its_own_way() -> None:
    own = Longer([1.0, 2.0])

    def step(x: torch.Tensor) -> Any:
        new = Longer([1.0])
        new.append(3.0)
        return x + len(own), len(own), len(new), own.index(2.0), own[-1]

    watched = speculate(step, executor="replay")
    for _ in range(8):
        _, *rest = watched(torch.zeros(2))
        assert rest == [3, 3, 1, 2.0]
    assert watched.statistics().speculated == 5


def test_all_that_is_local_is_new() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        class Local:
            n = 2.0

        return x * Local().n + (1 if Local() else 0)

    watched = speculate(step, executor="replay")
    for _ in range(6):
        assert watched(torch.ones(1)).item() == 3.0
