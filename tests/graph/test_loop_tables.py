"""Words looked up in the iterations of a loop are looked up before the loop, where their table is large."""

from __future__ import annotations

import pytest

from tests.programs import harness
from tests.sampling import every
from torchjanus.graph.loops.roll import inputs

CATEGORY = "lookups_in_loops"
NAMES = [name for category, name in harness.programs() if category == CATEGORY]


@pytest.mark.parametrize("name", every(3, NAMES))
def test_gradients_are_eagers_up_to_rounding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LARGE_TABLE", 1)
    hoisted = []
    looks_up = inputs.IterationInputs._looks_up

    def watched(self: inputs.IterationInputs, *given: object) -> bool:
        hoisted.append(looks_up(self, *given))  # type: ignore[arg-type]
        return hoisted[-1]

    monkeypatch.setattr(inputs.IterationInputs, "_looks_up", watched)
    eager, other = (harness.run(CATEGORY, name, executor) for executor in (None, "replay"))
    assert harness.compare(eager, other, 1e-5) == []
    expected = (
        "a_language_model_by_hand",
        "texts_of_any_length",
        "one_word_after_the_other",
        "columns_with_their_numbers",
    )
    assert any(hoisted) or name not in expected
