"""The benchmark of a step with two branches: it counts what it says, on a small step."""

from __future__ import annotations

from benchmarks.speed.branches import WARM, compared


def test_a_small_step_is_served_and_equal() -> None:
    rows = {row.name: row for row in compared(calls=WARM + 30, width=16, names=("eager", "replay"))}
    ours = rows["replay"]
    assert (ours.served, ours.unequal) == (1.0, 0)
    assert ours.compiles is not None and ours.compiles <= 8
    assert rows["eager"].served is None
    assert rows["eager"].ratio == 1.0
