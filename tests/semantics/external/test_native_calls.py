"""Calls of native code: known ones are recorded for what they mean, unknown ones refused by name, all carried out."""

from __future__ import annotations

import collections
import functools
import math
import operator
import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchjanus.host.journal import Journal, method
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.actions import Extern, name_of
from torchjanus.trace.effects import WORLD
from torchjanus.trace.events import Trace
from torchjanus.trace.facts import HeapRead
from torchjanus.trace.values import Traced


def watched(fn: Any, *args: Any) -> tuple[Any, Trace]:
    return watch_call(fn, (), args, {})


def heap() -> SimpleNamespace:
    return SimpleNamespace(
        n=3, f=2.5, s="text", items=[3, 1, 2], table={"a": 1, "b": 2}, queue=collections.deque([1, 2], 3), group={4, 5}
    )


UNDERSTOOD: dict[str, Any] = {
    "len": lambda h: len(h.items),
    "sum": lambda h: sum(h.items),
    "sorted": lambda h: sorted(h.items),
    "min and max": lambda h: (min(h.items), max(h.f, h.n)),
    "zip": lambda h: list(zip(h.items, h.table)),
    "enumerate": lambda h: list(enumerate(h.items)),
    "reversed": lambda h: list(reversed(h.items)),
    "range": lambda h: list(range(h.n)),
    "map": lambda h: list(map(lambda v: v + 1, h.items)),
    "any": lambda h: any(v > 2 for v in h.items),
    "isinstance": lambda h: isinstance(h.n, int),
    "type": lambda h: (type(h.n), type(h.f), type(h.s)),
    "math": lambda h: math.sqrt(h.n) + math.exp(h.f),
    "round": lambda h: round(h.f),
    "int and float": lambda h: (int(h.f), float(h.n), str(h.n), bool(h.n)),
    "getattr": lambda h: (getattr(h, "n"), getattr(h, "nothing", 4), hasattr(h, "f")),
    "setattr": lambda h: setattr(h, "n", 9),
    "dict methods": lambda h: (h.table.get("a"), h.table.setdefault("c", 3)),
    "pop": lambda h: h.table.pop("a"),
    "append": lambda h: h.items.append(h.n),
    "extend": lambda h: h.items.extend([h.n, h.f]),
    "deque": lambda h: h.queue.append(h.n),
    "set": lambda h: h.group.add(h.n),
    "str methods": lambda h: (h.s.upper(), f"{h.n:03d}", "-".join([h.s, h.s]), h.s.startswith("t")),
    "copy of a list": lambda h: (list(h.items), h.items.copy(), tuple(h.items), dict(h.table)),
    "operator": lambda h: operator.add(h.n, h.f),
    "partial": lambda h: functools.partial(max, h.n)(1),
}


@pytest.mark.parametrize("fn", UNDERSTOOD.values(), ids=UNDERSTOOD)
def test_understood(fn: Any) -> None:
    mine, plain = heap(), heap()
    result, trace = watched(fn, mine)
    expected = fn(plain)
    assert (repr(result), repr(vars(mine))) == (repr(expected), repr(vars(plain)))
    assert not any(isinstance(v, Traced) for v in [result, *vars(mine).values(), *mine.items, *mine.queue, *mine.group])
    assert trace.refusals == []


def externs(trace: Trace) -> list[str]:
    return [name_of(event.func) for event in trace.events if isinstance(event, Extern)]


def test_unknown_native_code_is_an_extern_call_whose_result_is_fed() -> None:
    source = random.Random(3)

    def step(x: torch.Tensor) -> float:
        return source.random() * 2

    result, trace = watched(step, torch.ones(1))
    assert result == random.Random(3).random() * 2
    assert trace.refusals == [] and externs(trace) == [".random"]
    assert [e.access_path.waits_for for e in trace.events if isinstance(e, HeapRead) and e.kind == "number"] == [1]


def test_files_are_written_by_extern_calls(tmp_path: Any) -> None:
    path = tmp_path / "log"

    def step() -> None:
        with open(path, "w") as log:
            log.write("once")

    _, trace = watched(step)
    assert path.read_text() == "once"
    assert trace.refusals == []
    assert [name.rpartition(".")[2] for name in externs(trace)] == ["open", "__enter__", "write", "__exit__"]


def test_what_a_journal_holds_is_not_called_again() -> None:
    source = random.Random(3)

    def step() -> float:
        return source.random() + source.random()

    journal = Journal()
    first = journal.make(0, WORLD, False, method("random"), source)
    result, _ = watch_call(step, (), (), {}, journal)
    again = random.Random(3)
    assert first == again.random() and result == first + again.random()
    assert source.getstate() == again.getstate() and journal.close() == []
