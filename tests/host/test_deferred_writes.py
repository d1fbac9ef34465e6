"""What leaves a call is made again by later ones: the same types, order, sharing and cycles, and new at each call."""

from __future__ import annotations

import collections
import dataclasses
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

import torchjanus
from torchjanus.host.deferred_writes import set_item


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    loss: Any
    tags: list[Any] = dataclasses.field(default_factory=list)


class Node:
    def __init__(self, value: Any) -> None:
        self.value = value
        self.me = self


class Names(list):  # type: ignore[type-arg]
    pass


def cyclic(t: Any) -> Any:
    a: list[Any] = [t]
    a.append({"back": a})
    return a


def shared(t: Any) -> Any:
    part = [t]
    return [part, part, {"p": part}, [t]]


def subclassed(t: Any) -> Any:
    names = Names([t])
    names.title = "x"  # type: ignore[attr-defined]
    return names


def shape(value: Any, seen: dict[int, int] | None = None) -> Any:
    """The value as plain data: classes, parts, order, and which objects are one."""
    seen = {} if seen is None else seen
    if isinstance(value, torch.Tensor):
        return ("tensor", seen.setdefault(id(value), len(seen)), str(value.dtype), value.tolist(), value.requires_grad)
    if isinstance(value, int | float | str | type(None)):
        return (type(value).__name__, repr(value))
    if id(value) in seen:
        return ("again", seen[id(value)])
    seen[id(value)] = len(seen)
    parts: Any = ()
    if isinstance(value, dict):
        parts = [(shape(k, seen), shape(v, seen)) for k, v in value.items()]
    elif isinstance(value, list | tuple | collections.deque | set | frozenset):
        parts = [shape(v, seen) for v in value]
    own = [(k, shape(v, seen)) for k, v in vars(value).items()] if hasattr(value, "__dict__") else []
    return (type(value).__qualname__, getattr(value, "maxlen", None), parts, own)


MADE: dict[str, Any] = {
    "tuple": lambda t: (t, t.sum().item()),
    "one": lambda t: (t,),
    "empty": lambda t: ((), [], {}, set(), t),
    "nested": lambda t: [[t, {"a": (t + 1, None)}], "s", True, -0.0],
    "order of keys": lambda t: {"z": 1, "a": t, 3: 2.5, None: "n"},
    "ordered dictionary": lambda t: collections.OrderedDict([("b", t), ("a", 1)]),
    "named tuple": lambda t: Point(t, Point(1, [t])),
    "dataclass": lambda t: Record(t.sum().item(), [t]),
    "deque": lambda t: collections.deque([t, 1], maxlen=2),
    "endless deque": lambda t: collections.deque([t]),
    "set": lambda t: {1, "a"} and (frozenset([2]), t),
    "shared": shared,
    "cyclic": cyclic,
    "cyclic object": lambda t: Node(t),
    "subclass of list": subclassed,
    "slice": lambda t: (slice(1, None), t),
    "text": lambda t: f"loss {t.sum().item():.3f}",
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
@pytest.mark.parametrize("where", ["returned", "stored", "appended"])
def test_made_again(make: Any, where: str) -> None:
    def program(make: Any, state: Any, x: torch.Tensor) -> Any:
        made = make(x * 2)
        if where == "stored":
            state.last = made
            return None
        if where == "appended":
            state.log.append(made)
            return None
        return made

    states = SimpleNamespace(log=[]), SimpleNamespace(log=[])
    step = torchjanus.speculate(program, executor="replay")
    results = []
    for at in range(6):
        x = torch.full((2,), 1.0 + at)
        mine, plain = step(make, states[0], x), program(make, states[1], x)
        results.append((mine, states[0].__dict__.get("last")))
        assert shape((mine, states[0])) == shape((plain, states[1]))
    assert step.statistics().speculated == 3, str(torchjanus.explain(step, detail=True))
    before, after = results[-2:]
    mutable = isinstance(after[0] or after[1], list | dict | Record | Node)
    assert not mutable or (before[0] or before[1]) is not (after[0] or after[1])


def test_what_was_there_is_returned_itself() -> None:
    kept = [1]
    step = torchjanus.speculate(lambda x: {"kept": kept, "x": x, "y": x + 1}, executor="replay")
    for _ in range(6):
        x = torch.ones(2)
        result = step(x)
        assert result["kept"] is kept and result["x"] is x
    assert step.statistics().speculated == 3


def test_a_defaultdict_keeps_its_factory() -> None:
    def step(x: torch.Tensor) -> Any:
        made: Any = collections.defaultdict(list)
        made["a"].append(x)
        return made

    fast = torchjanus.speculate(step, executor="replay")
    for _ in range(6):
        assert fast(torch.ones(1))["new"] == []
    assert fast.statistics().speculated == 3


class Slotted:
    __slots__ = ("n",)

    def __init__(self, n: float) -> None:
        self.n = n


@pytest.mark.parametrize("cls", [lambda n: SimpleNamespace(n=n), Slotted], ids=["namespace", "slots"])
def test_new_objects_hold_plain_numbers(cls: Any) -> None:
    step = torchjanus.speculate(lambda x: cls(x.sum().item()), executor="replay")
    for _ in range(6):
        assert type(step(torch.ones(2)).n) is float
    assert step.statistics().speculated == 3


def test_what_cannot_be_made_again_is_refused_and_holds_plain_numbers() -> None:
    class Held(torch.nn.Module):
        def __init__(self, n: float) -> None:
            super().__init__()
            self.n = n

    step = torchjanus.speculate(lambda x: {"held": Held(x.sum().item())}, executor="replay")
    for _ in range(5):
        assert type(step(torch.ones(2))["held"].n) is float
    assert "a new Held leaves the step" in str(torchjanus.explain(step, detail=True))


def test_writes_come_in_program_order() -> None:
    log: list[Any] = []
    state: dict[str, Any] = {}

    def step(x: torch.Tensor) -> None:
        state["a"] = x.sum().item()
        log.append(1)
        state["a"] = 2
        log.append("a")
        state["b"] = 1

    fast = torchjanus.speculate(step, executor="replay")
    for _ in range(6):
        fast(torch.ones(2))
    assert log == [1, "a"] * 6 and list(state.items()) == [("a", 2), ("b", 1)]
    assert fast.statistics().speculated >= 2


def test_set_item_goes_below_python_code() -> None:
    class Loud(dict):  # type: ignore[type-arg]
        def __setitem__(self, key: Any, value: Any) -> None:
            raise AssertionError("called")

    for held in (Loud(), collections.OrderedDict(), {}):
        set_item(held, "k", 1)
        assert held == {"k": 1}
    items = [0]
    set_item(items, 0, 1)
    assert items == [1]
