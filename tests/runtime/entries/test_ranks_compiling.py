"""Of several ranks one compiles each part of a step, and the others load that."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.runtime.entries.ranks_compiling import CALLS, run_both

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")


@pytest.mark.slow
@pytest.mark.parametrize("separate", [False, True])
def test_one_rank_compiles_for_all_that_share_a_folder(separate: bool, tmp_path: Path) -> None:
    """Where they share none, each compiles for itself, at its own time; the parameters are equal all the same."""
    both = run_both(tmp_path, separate=separate)
    counts: dict[str, int] = {}
    for apart, equal, served, notes in both:
        assert equal and apart < 1e-4
        assert served >= CALLS - 6
        said = [note for note in notes if "compiled the graph in" in note or "had compiled in" in note]
        assert len(said) >= 2, notes  # a part before the last one, and the last one
        assert not any("could not compile" in note for note in notes), notes
        for note in said:
            part = note.partition("inductor")[0]
            counts[part] = counts.get(part, 0) + ("compiled the graph in" in note)
    assert set(counts.values()) == {2 if separate else 1}, [notes for *_, notes in both]
