"""Native code that reads containers from before the call: elements, lengths, order, membership."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch

from tests.agreement import agree
from tests.programs.harness import Program
from torchjanus.semantics.watch.run import watch_call
from torchjanus.trace.facts import HeapRead, NumberPredicate, Specialization


def raised(fn: Any, *args: Any) -> str:
    try:
        return repr(fn(*args))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


READS: dict[str, Any] = {
    "sorted": lambda s, x: sorted(s["numbers"]),
    "sorted backwards by a key": lambda s, x: sorted(s["words"], key=len, reverse=True),
    "sorted by a key of ties": lambda s, x: sorted(s["words"], key=lambda word: 0),
    "least and largest": lambda s, x: (min(s["numbers"]), max(s["numbers"], key=lambda n: -n)),
    "least of nothing": lambda s, x: (min(s["empty"], default=3), raised(min, s["empty"])),
    "sum": lambda s, x: (sum(s["numbers"]), sum(s["empty"]), sum(s["empty"], 2.5)),
    "any and all": lambda s, x: (any(s["empty"]), all(s["empty"]), any(s["numbers"])),
    "membership": lambda s, x: (2 in s["numbers"], "no" in s["words"], 2 in s["empty"], 3 in s["set"]),
    "membership of a key": lambda s, x: ("k" in s["table"], "j" in s["table"]),
    "lengths": lambda s, x: [len(s[name]) for name in ("numbers", "empty", "set", "table", "queue")],
    "elements at both ends": lambda s, x: (s["numbers"][0], s["numbers"][-1], s["queue"][-1]),
    "an index that there is not": lambda s, x: (raised(lambda: s["numbers"][9]), raised(lambda: s["empty"][-1])),
    "slices": lambda s, x: (s["numbers"][1:], s["numbers"][::-1], s["empty"][1:], s["numbers"][5:]),
    "copies": lambda s, x: (list(s["queue"]), tuple(s["empty"]), dict(s["table"]), set(s["numbers"])),
    "equality": lambda s, x: (s["numbers"] == [3, 1, 2], s["empty"] == [], s["table"] == {"k": 1}),
    "order": lambda s, x: (s["numbers"] < [3, 2], s["empty"] < s["numbers"]),
    "views": lambda s, x: (list(s["table"].items()), s["table"].keys() & {"k", "q"}),
    "enumerated and zipped": lambda s, x: (list(enumerate(s["words"], 1)), list(zip(s["numbers"], s["empty"]))),
    "reversed": lambda s, x: (list(reversed(s["numbers"])), list(reversed(s["empty"]))),
    "truth": lambda s, x: [bool(s[name]) for name in ("numbers", "empty", "table")],
    "unlike kinds": lambda s, x: raised(sorted, [*s["numbers"], *s["words"]]),
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_what_native_code_reads_is_eagers(name: str) -> None:
    read = READS[name]

    def make() -> Program:
        state: dict[str, Any] = {
            "numbers": [3, 1, 2],
            "words": ["bb", "a", "cc"],
            "empty": [],
            "set": {3, 4},
            "table": {"k": 1},
            "queue": deque([1.5, 2.5], 2),
        }

        def step(x: torch.Tensor) -> Any:
            return x * 2, read(state, x)

        def grow() -> None:
            state["numbers"].append(0)
            state["empty"].append(7)
            state["words"].insert(0, "dddd")
            state["set"].discard(3)
            state["table"] = {"j": 2}
            state["queue"].append(3.5)

        return Program(step, [(torch.ones(2),)] * 12, before={5: grow}, state=state)

    (speculated,) = agree(make)
    counts = speculated.statistics()
    assert counts.speculated >= 4
    assert counts.missed >= 1  # what was read has changed


def test_an_element_that_native_code_finds_is_one_that_was_found() -> None:
    state = [1.5, 2.5]
    _, trace = watch_call(lambda x: x * max(state), (), (torch.ones(2),), {})
    found = [str(event.access_path) for event in trace.events if isinstance(event, HeapRead)]
    assert "state[0]" in found
    assert "state[1]" in found


def test_a_length_is_held() -> None:
    state = [1, 2]
    _, trace = watch_call(lambda x: x * len(state) if len(state) > 1 else x, (), (torch.ones(2),), {})
    assert any("len" in str(event) for event in trace.events if isinstance(event, NumberPredicate | Specialization))


def test_numbers_that_change_may_change_places() -> None:
    def make() -> Program:
        state = {"a": 1.0, "b": 2.0}

        def step(x: torch.Tensor) -> Any:
            state["a"], state["b"] = state["b"] + 1, state["a"]
            return x * sorted(state.values())[0], max(state.values())

        return Program(step, [(torch.ones(2),)] * 10, state=state)

    (speculated,) = agree(make)
    assert speculated.statistics().speculated >= 5
