"""What is asked of dictionaries only when they have been written is what would be found by asking each time."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torchjanus.host.dictionaries import Dictionaries, DictionaryAssumptions

RATE, PART, OTHER = 0.5, object(), object()
KEY, STATE = torch.zeros(2), {"step": 1}


def heap() -> list[dict[Any, Any]]:
    return [
        {"rate": RATE, "part": PART, "on": True},
        {"part": PART},
        {},
        {KEY: STATE},
        collections.OrderedDict(a=1, b=2),
        collections.defaultdict(list, a=PART),
    ]


def asked_of(held: list[dict[Any, Any]]) -> list[DictionaryAssumptions]:
    """What is true of the heap as it is made."""
    first, second, third, fourth, fifth, sixth = found = [DictionaryAssumptions(one) for one in held]
    first.equal.append(("rate", RATE))
    first.identical += [("part", PART), ("on", True)]
    first.absent.append("forward")
    second.keys.append(("part",))
    third.filled.append(False)
    fourth.items.append((KEY, STATE))
    fifth.present.append("b")
    sixth.identical.append(("a", PART))
    sixth.filled.append(True)
    return found


WRITES: dict[str, Callable[[list[dict[Any, Any]]], object]] = {
    "nothing": lambda h: None,
    "a name that nothing is asked of": lambda h: h[0].update(loss=object()),
    "an equal number": lambda h: h[0].update(rate=float("0.5")),
    "another number": lambda h: h[0].update(rate=0.25),
    "the number again": lambda h: h[0].update(rate=RATE),
    "another part": lambda h: h[0].update(part=OTHER),
    "the part again": lambda h: h[0].update(part=PART),
    "no part": lambda h: h[0].pop("part", None),
    "an own forward": lambda h: h[0].setdefault("forward", print),
    "no own forward": lambda h: h[0].pop("forward", None),
    "another key": lambda h: h[1].update(more=1),
    "the key no more": lambda h: h[1].pop("more", None),
    "filled": lambda h: h[2].update(a=1),
    "emptied": lambda h: h[2].clear(),
    "another state": lambda h: h[3].update({KEY: dict(STATE)}),
    "the state again": lambda h: h[3].update({KEY: STATE}),
    "the state of another": lambda h: h[3].update({torch.zeros(2): STATE}),
    "another order": lambda h: h[4].move_to_end("a"),  # type: ignore[attr-defined]
    "an ordered one without it": lambda h: h[4].pop("b", None),
    "an ordered one with it": lambda h: h[4].update(b=3),
    "a default is made": lambda h: h[5]["z"],
}


@given(st.lists(st.lists(st.sampled_from(sorted(WRITES)), max_size=3), min_size=1, max_size=24))
def test_the_answer_is_that_of_asking_each_time(iterations: list[list[str]]) -> None:
    held = heap()
    dictionaries = Dictionaries(asked_of(held))
    assert dictionaries.unbroken()
    for writes in iterations:
        for write in writes:
            WRITES[write](held)
        expected = all(questions.answered() for questions in asked_of(held))
        assert dictionaries.unbroken() is expected
        assert dictionaries.unbroken() is expected


@pytest.mark.parametrize("written", ["rate", "whatever"])
def test_one_that_is_written_at_each_call_is_asked_at_each(written: str) -> None:
    held = heap()
    dictionaries = Dictionaries(asked_of(held))
    for iteration in range(10):
        held[0][written] = 0.5 if iteration < 9 else 0.25
        assert dictionaries.unbroken() is (written != "rate" or iteration < 9)
    held[0]["rate"] = 0.5
    assert dictionaries.unbroken()
    held[2]["a"] = 1  # the others are still watched
    assert not dictionaries.unbroken()


def test_the_contents_of_a_heap_are_not_written() -> None:
    held = heap()
    before = [list(one.items()) for one in held]
    assert Dictionaries(asked_of(held)).unbroken()
    assert [list(one.items()) for one in held] == before


class Loud(dict[Any, Any]):
    def _answer(self, *_: Any) -> Any:
        raise AssertionError("a guard ran Python code of the user's")

    __getitem__ = __contains__ = __len__ = __iter__ = get = items = __bool__ = _answer


def test_no_method_written_in_python_is_called() -> None:
    questions = DictionaryAssumptions(Loud(a=PART, b=1))
    questions.identical.append(("a", PART))
    questions.equal.append(("b", 1))
    questions.absent.append("c")
    questions.present.append("a")
    questions.filled.append(True)
    assert not questions.ordered
    assert Dictionaries([questions]).unbroken()
    dict.pop(questions.container, "a")
    assert not Dictionaries([questions]).unbroken()
