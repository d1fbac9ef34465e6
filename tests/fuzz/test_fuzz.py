"""Made-up programs do the same speculated as eagerly: 25 in a run, 300 in the slow tests, more by ``make fuzz``."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import pytest

from tests.fuzz import running
from tests.fuzz.campaign import campaign, reduce_failure
from tests.fuzz.reducing import reduced
from tests.fuzz.running import Outcome, check
from tests.programs import harness

BATCHES = 6
PROGRAMS = 50
EACH_RUN = 25  # of the first batch; the others are slow tests
ABOUT_OBJECTS = 24


def test_some_made_up_programs(tmp_path: Path) -> None:
    all_agree("training", EACH_RUN, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(BATCHES))
def test_made_up_programs(seed: int, tmp_path: Path) -> None:
    all_agree("training", PROGRAMS, seed, tmp_path)


def test_made_up_programs_about_objects(tmp_path: Path) -> None:
    all_agree("objects", ABOUT_OBJECTS, 2, tmp_path)


def all_agree(topic: str, count: int, seed: int, tmp_path: Path) -> None:
    found: list[tuple[str, Outcome]] = []
    summary = campaign(count, seed, lambda source, outcome: found.append((source, outcome)), topic=topic)
    if found:
        source, outcome = found[0]
        small = reduce_failure(source, outcome)
        path = tmp_path / "found.py"
        path.write_text(small)
        reported = "\n".join(outcome.found)
        pytest.fail(f"{len(found)} differ. The first, as {path} (python -m tests.fuzz {path}):\n{small}\n{reported}")
    assert summary.programs == count
    assert summary.nondeterministic == 0
    # A fuzzer of refused programs would show nothing.
    assert summary.late_speculated > 0.5 * summary.late


BROKEN = """
import torch
from tests.programs.harness import Call, Program, program

class State:
    pass

@program()
def fuzzed():
    st = State()
    st.n = 0
    junk = [1, 2, 3]

    def step(x):
        y = x * 2
        if junk:
            for i in range(2):
                y = y + 1
        st.n += 1
        return y.sum()

    return Program(step, [(torch.randn(4),) for _ in range(10)])
"""


def test_a_difference_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees a result that is off by one bit in one call."""
    sides = []

    def wrong(root: object) -> object:
        sides.append(root)
        return ["right"] if len(sides) != 15 else ["wrong"]

    monkeypatch.setattr(harness, "snapshot", wrong)
    outcome = check(BROKEN, tmp_path)
    assert outcome.found == ["call 3, result and state: eager 'right', speculated 'wrong'"]


def test_when_cycles_are_collected_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    def differs(path: Path, name: str) -> bool:
        seen.append(gc.isenabled())
        return gc.isenabled()

    monkeypatch.setattr(running, "_differs", differs)
    monkeypatch.setattr(harness, "compare", lambda one, other: ["differs"] if other.steps else [])
    outcome = check(BROKEN, tmp_path)
    assert (outcome.found, outcome.nondeterministic, seen) == ([], True, [True, False])
    assert gc.isenabled()


def test_programs_become_small() -> None:
    def fails(text: str) -> bool:
        ast.parse(text)
        return "st.n += 1" in text and "Program(step" in text

    small = reduced(BROKEN, fails)
    assert "junk" not in small
    assert "y" not in small.replace("Program", "")
    assert len(small) < len(BROKEN) / 2


def test_what_fails_no_more_is_left_as_it_is() -> None:
    assert reduced(BROKEN, lambda _: False) == BROKEN
