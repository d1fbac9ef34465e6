"""Every special method, and every kind of callable that may stand under its name: a table of combinations."""

from __future__ import annotations

import pytest

from tests.semantics.assigned_methods import COMBINATIONS, KINDS, METHODS, outcome

# Each method is tried with one kind after the other: one of them here, all of them in the slow tests.
QUICK = {(list(KINDS)[(number * 7) % len(KINDS)], *method) for number, method in enumerate(METHODS)}


@pytest.mark.parametrize(
    ("kind", "name", "answer", "use"),
    [
        pytest.param(*each, id=f"{each[0]}-{each[1]}-{number}", marks=() if each in QUICK else pytest.mark.slow)
        for number, each in enumerate(COMBINATIONS)
    ],
)
def test_it_is_called_as_python_calls_it(kind, name, answer, use):
    expected, _ = outcome(name, answer, kind, use, speculated=False)
    seen, _ = outcome(name, answer, kind, use, speculated=True)
    assert seen == expected
