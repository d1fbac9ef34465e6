"""Every program of the corpus does the same speculated as eagerly, and is speculated or refused as it says."""

from __future__ import annotations

import pytest

import torchjanus
from tests.programs import harness

EVERY = list(harness.programs())


@pytest.mark.parametrize(("category", "name"), EVERY, ids=[f"{c}-{n}" for c, n in EVERY])
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
