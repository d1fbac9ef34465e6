"""What stands for ``heapq`` leaves the same lists, and compares the same elements in the same order."""

from __future__ import annotations

import heapq
import random
from typing import Any

import pytest

from torchjanus.semantics.protocols.heaps import HEAPS


class Merged:
    """A number that notes with what it is compared."""

    def __init__(self, number: int, reported: list[Any]) -> None:
        self.number, self.reported = number, reported

    def __lt__(self, other: Merged) -> bool:
        self.reported.append((self.number, other.number))
        return self.number < other.number


@pytest.mark.parametrize("size", [0, 1, 2, 7, 40])
def test_lists_and_comparisons_are_the_librarys(size: int) -> None:
    seen = []
    for known in (dict.fromkeys(HEAPS), HEAPS):
        generator, reported = random.Random(3), list[Any]()

        def call(fn: Any, *args: Any, known: Any = known) -> Any:
            return (known[fn] or fn)(*args)

        heap = [Merged(generator.randrange(9), reported) for _ in range(size)]
        call(heapq.heapify, heap)
        taken = []
        for _ in range(30):
            item = Merged(generator.randrange(9), reported)
            taken.append(call(heapq.heappushpop, heap, item).number)
            call(heapq.heappush, heap, item)
            taken.append(call(heapq.heapreplace, heap, item).number)
        taken += [call(heapq.heappop, heap).number for _ in range(len(heap))]
        heap = [Merged(generator.randrange(9), reported) for _ in range(size + 1)]
        call(heapq._heapify_max, heap)  # type: ignore[attr-defined]
        for _ in range(30):
            item = Merged(generator.randrange(9), reported)
            taken.append(call(heapq._heapreplace_max, heap, item).number)  # type: ignore[attr-defined]
        seen.append((taken + [item.number for item in heap], reported))
    assert seen[0] == seen[1]


def test_nothing_can_be_taken_of_an_empty_heap() -> None:
    for fn in (heapq.heappop, lambda heap: heapq.heapreplace(heap, 1)):
        with pytest.raises(IndexError):
            fn([])
    with pytest.raises(IndexError):
        HEAPS[heapq.heappop]([])
    with pytest.raises(IndexError):
        HEAPS[heapq.heapreplace]([], 1)
