"""Extern calls are made once: by a graph, by the commit of the next, or by the program."""

from __future__ import annotations

from typing import Any

import pytest

from torchjanus.journal import ExternRaised, Journal
from torchjanus.trace.effects import Undo


def draw(log: list[int]) -> int:
    log.append(len(log))
    return log[-1]


def fail() -> None:
    raise ValueError("no")


def test_a_call_is_not_repeated() -> None:
    journal, log = Journal(), list[int]()
    assert journal.make(0, None, False, draw, log) == journal.make(0, None, False, draw, log) == 0
    assert journal.commit(0, draw, log) == 0
    assert journal.commit(1, draw, log) == 1
    assert log == [0, 1]


def test_an_error_is_raised_again_at_commit() -> None:
    journal = Journal()
    with pytest.raises(ExternRaised):
        journal.make(0, None, False, fail)
    with pytest.raises(ValueError, match="no"):
        journal.commit(0, fail)


def test_what_the_call_never_came_to_is_taken_back() -> None:
    journal, log = Journal(), list[int]()

    def restore(length: Any) -> None:
        del log[length:]

    undo = Undo(lambda: len(log), restore)
    for number in range(4):
        journal.make(number, undo if number != 2 else None, False, draw, log)
    assert journal.commit(0, draw, log) == 0
    (left,) = journal.close({1})
    assert left.func is draw
    assert log == [0, 1, 2]
    assert not journal.records
