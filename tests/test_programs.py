"""Every program of the corpus does the same speculated as eagerly, and is speculated or refused as it says."""

from __future__ import annotations

from typing import Any

import pytest

import torchjanus
from tests.programs import harness

EVERY = list(harness.programs())

# Known to be wrong: each is an open fault, and must leave this list when it is repaired.
OPEN = {
    (
        "externs",
        "iterator_restarted_when_it_ends",
    ): "a watched iter() of a list from before the call iterates over a copy",
    ("materialise", "text_that_decides"): "its refusal is worded otherwise since extern calls are fed",
    ("modes", "forward_hook_made_inside"): "weakref.ref() is given a copy of a dictionary from before the call",
    ("modes", "weight_norm_of_both_kinds"): "the deprecated weight_norm warns while the program is made",
}


def _case(category: str, name: str) -> Any:
    reason = OPEN.get((category, name))
    marks = [] if reason is None else [pytest.mark.xfail(reason=reason, strict=True)]
    return pytest.param(category, name, id=f"{category}-{name}", marks=marks)


@pytest.mark.parametrize(("category", "name"), [_case(c, n) for c, n in EVERY])
def test_program(category: str, name: str) -> None:
    spec = getattr(harness.load(category), name).spec
    eager = harness.run(category, name, None)
    other = harness.run(category, name, "replay")
    assert harness.compare(eager, other) == []
    counts = [step.statistics() for step in other.steps]
    told = [str(torchjanus.explain(step)) for step in other.steps]
    events = [event for step in other.steps for event in step.events]
    assert [event.text for event in events if event.kind == "fault"] == []
    speculated = sum(c.speculated for c in counts)
    if spec.refused:
        assert speculated == 0, "was speculated: pin it"
        assert spec.refused in "\n".join(told)
    else:
        assert speculated >= spec.speculated, "\n".join(told)
        assert sum(c.compiles for c in counts) <= spec.compiles
