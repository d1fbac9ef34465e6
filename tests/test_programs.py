"""Every program of the corpus does the same speculated as eagerly, and is speculated or refused as it says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import torchjanus
from tests.programs import harness
from tests.programs.__main__ import INDEX, index

EVERY = harness.programs()
SLOW = harness.slow()


def test_the_index_is_what_the_files_say() -> None:
    assert INDEX.read_text() == index(), "python -m tests.programs --write"


def test_no_two_files_have_one_name_and_no_topic_is_large() -> None:
    paths = [path for path in harness.CORPUS.glob("*/*.py") if path.stem != "__init__"]
    assert len(harness.files()) == len(paths)
    assert max(Counter(path.parent for path in paths).values()) <= 20


def test_each_category_has_a_program_for_each_run() -> None:
    assert {category for category, _ in EVERY} == {category for category, _ in set(EVERY) - SLOW}


@pytest.mark.parametrize(
    ("category", "name"),
    [pytest.param(*pair, id="-".join(pair), marks=pytest.mark.slow if pair in SLOW else ()) for pair in EVERY],
)
def test_program(category: str, name: str) -> None:
    check(harness.files()[category], name)


def check(file: Path, name: str) -> None:
    """Run a program of a file both ways: it does the same, and is speculated or refused as it says."""
    spec = getattr(harness.load_file(file), name).spec
    eager = harness.run_in(harness.load_file(file), name, None)
    other = harness.run_in(harness.load_file(file), name, "replay")
    assert harness.compare(eager, other, spec.close) == []
    counts = [step.statistics() for step in other.steps]
    reported = [str(torchjanus.explain(step, detail=True)) for step in other.steps]
    events = [event for step in other.steps for event in step.events]
    assert [event.text for event in events if event.kind == "fault"] == []
    assert spec.reported in "\n".join(reported)
    speculated = sum(c.speculated for c in counts)
    if spec.refused:
        # Where that comes first, Python makes it, and what follows may be speculated on.
        assert speculated == 0 or any(event.kind == "cut" for event in events), "was speculated: pin it"
        assert spec.refused in "\n".join(reported)
    else:
        assert speculated >= spec.speculated, "\n".join(reported)
        assert sum(c.compiles for c in counts) <= spec.compiles
