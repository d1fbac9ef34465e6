"""Work beside the program rests, and leaves no trace of that."""

from __future__ import annotations

import sys

import pytest

from torchjanus.core import slices


def depth(number: int) -> int:
    return 1 + depth(number - 1) if number else 0


def test_work_rests_between_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(slices, "_WORK", -1.0)  # no work without one
    monkeypatch.setattr(slices.time, "sleep", rests.append)
    before = sys.getprofile()
    with slices.in_slices():
        assert depth(10) == 10
    assert len(rests) >= 20  # at each call, and at each end of one
    assert sys.getprofile() is before
    rested = len(rests)
    depth(10)
    assert len(rests) == rested


def test_an_error_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sys.getprofile()
    with pytest.raises(ZeroDivisionError), slices.in_slices():
        depth(1 // 0)
    assert sys.getprofile() is before
