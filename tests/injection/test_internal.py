"""What watches a program fails, hook by hook and note by note: the program does not notice."""

from __future__ import annotations

import pytest

import torchjanus
from tests.injection.internal import EVERYDAY, HOOKS, check
from tests.programs import harness
from torchjanus.semantics.record.recording import Recording
from torchjanus.semantics.watch.objects.heap import Heap
from torchjanus.semantics.watch.watch import Watch

PROGRAMS = harness.programs_in(harness.load_file(EVERYDAY))
NOTES = [name for name, method in vars(Recording).items() if hasattr(method, "__noted__")]
QUICK = (("attr", "objects"),)  # the first operation of the step runs code of the program
CASES = [
    *((Watch, name, program) for name in HOOKS for program in PROGRAMS),
    *((Recording, name, program) for name in NOTES for program in PROGRAMS),
]


@pytest.mark.parametrize(
    ("owner", "name", "program"),
    [
        pytest.param(
            *case, id=f"{case[1]}-{case[2]}", marks=pytest.mark.slow if number % 48 and case[1:] not in QUICK else ()
        )
        for number, case in enumerate(CASES)
    ],
)
def test_the_program_does_not_notice(owner: type, name: str, program: str) -> None:
    check(program, owner, name)


def test_what_failed_is_reported_and_no_graph_is_made_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(self, *args, **kwargs):
        raise KeyError("of ours")

    monkeypatch.setattr(Heap, "_load_instance_attr", failing)

    class Held:
        n = 2

    held = Held()
    step = torchjanus.speculate(lambda x: x * held.n, executor="replay")
    assert [step(3) for _ in range(5)] == [6] * 5
    assert step.statistics().speculated == 0
    assert "torchjanus itself failed in 'attr': KeyError: 'of ours'" in str(torchjanus.explain(step, detail=True))


def test_errors_of_the_program_are_not_taken_for_ours() -> None:
    class Held:
        pass

    held = Held()

    @torchjanus.speculate(executor="replay")
    def step(x):
        try:
            return held.missing
        except AttributeError:
            pass
        try:
            return {}["missing"] + x
        except KeyError:
            pass
        try:
            return "a" + 1
        except TypeError:
            return x * 2

    for _ in range(5):
        step(2)
    assert "itself failed" not in str(torchjanus.explain(step, detail=True))
