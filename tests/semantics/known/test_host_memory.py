"""Memory of the host: where it lies, and what lies in it at a moment."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from torchjanus.semantics.known.host_memory import Snapshot, bounds_of, memory_within

OWNERS = [
    np.arange(6.0),
    np.arange(12.0)[::2],
    np.arange(12.0).reshape(3, 4).T,
    array.array("d", range(6)),
    bytearray(b"abc"),
    memoryview(bytearray(b"abc")),
]


@pytest.mark.parametrize("owner", OWNERS, ids=lambda owner: type(owner).__name__)
def test_memory_is_put_back_as_it_was(owner: Any) -> None:
    before = bytes(owner)
    snapshot = Snapshot([{"held": [owner]}])
    owner[0] = owner[-1]
    assert bytes(owner) != before
    snapshot.put_back()
    assert bytes(owner) == before


def test_two_ways_to_one_memory_are_one() -> None:
    whole = np.arange(4)
    snapshot = Snapshot([whole[1:], whole])
    whole[:] = 0
    snapshot.put_back()
    assert whole.tolist() == [0, 1, 2, 3]


def test_what_has_moved_since_is_left_alone() -> None:
    owner = bytearray(b"ab")
    snapshot = Snapshot([owner])
    owner.extend(b"c" * 10_000)
    snapshot.put_back()
    assert owner == b"ab" + b"c" * 10_000


def test_what_cannot_be_written_or_is_counted_is_not_taken_down() -> None:
    fixed = np.arange(3)
    fixed.setflags(write=False)
    objects = np.array([object(), None], dtype=object)
    held = objects[0]
    snapshot = Snapshot([b"text", fixed, objects])
    objects[0] = None
    snapshot.put_back()
    assert objects.tolist() == [None, None] and held is not None
    assert bounds_of(b"text") is not None and bounds_of(3) is None


def test_memory_is_found_through_what_holds_it() -> None:
    owner = np.arange(3)

    def closed_over() -> Any:
        return owner

    assert list(memory_within([closed_over])) == [bounds_of(owner)]
    assert list(memory_within([iter([owner])])) == [bounds_of(owner)]
