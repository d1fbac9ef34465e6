"""Tables that know functions of torchjanus by their names know functions that exist."""

from __future__ import annotations

import pytest

from torchjanus.graph.generalize import known_numbers
from torchjanus.graph.loops.rewrites import accumulators
from torchjanus.graph.recursion.entry_loops import finding


@pytest.mark.parametrize("table", [known_numbers._COMPUTING, finding._ADDING])
def test_functions_of_our_own_exist_under_their_names(table: frozenset[str]) -> None:
    own = [name for name in table if "." not in name]
    assert own
    assert all(callable(getattr(accumulators, name)) for name in own)
