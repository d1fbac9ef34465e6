"""Lists of pairs of tensors: what is made of them, and when they are none."""

from __future__ import annotations

import pytest
import torch

from torchjanus.graph.loops.rewrites.pairs import PairPart


def test_a_part_is_what_a_key_finds_in_each_element() -> None:
    pairs = [(torch.zeros(2), torch.ones(3)), (torch.zeros(2), torch.ones(3))]
    found = PairPart.of(tuple, 2, 1)(pairs)
    assert [one is pair[1] for one, pair in zip(found, pairs, strict=True)] == [True, True]


def test_a_dictionary_may_hold_more() -> None:
    one, other = {"x": torch.zeros(2)}, {"x": torch.zeros(2), "more": None}
    assert len(PairPart.of(dict, 1, "x")([one, other])) == 2


@pytest.mark.parametrize(
    "elements",
    [[(1, 2), (1, 2, 3)], [(1, 2), [1, 2]], [(1, 2), 3], {0: (1, 2)}],
    ids=["length", "class", "none", "no list"],
)
def test_elements_of_another_make_are_none(elements: object) -> None:
    with pytest.raises(TypeError):
        PairPart.of(tuple, 2, 0)(elements)


def test_equal_parts_are_one() -> None:
    assert PairPart.of(tuple, 2, 0) is PairPart.of(tuple, 2, 0)
    assert PairPart.of(tuple, 2, 0) is not PairPart.of(tuple, 2, 1)
