"""The functions of ``heapq`` in Python, with the same comparisons in the same order and so the same lists.

The library's C code hides what it compares and moves. These functions run in its place and are watched like the
program's own.
"""

from __future__ import annotations

import heapq
from builtins import reversed  # a program may rebind builtins.reversed
from collections.abc import Callable
from typing import Any

__all__ = ["HEAPS"]


def _heappush(heap: list[Any], item: Any) -> None:
    heap.append(item)
    _rise(heap, 0, len(heap) - 1)


def _heappop(heap: list[Any]) -> Any:
    last = heap.pop()
    if not heap:
        return last
    first, heap[0] = heap[0], last
    _sink(heap, 0)
    return first


def _heapreplace(heap: list[Any], item: Any) -> Any:
    first, heap[0] = heap[0], item
    _sink(heap, 0)
    return first


def _heappushpop(heap: list[Any], item: Any) -> Any:
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _sink(heap, 0)
    return item


def _heapify(heap: list[Any]) -> None:
    for place in reversed(range(len(heap) // 2)):
        _sink(heap, place)


def _heapify_max(heap: list[Any]) -> None:
    for place in reversed(range(len(heap) // 2)):
        _sink(heap, place, largest=True)


def _heapreplace_max(heap: list[Any], item: Any) -> Any:
    first, heap[0] = heap[0], item
    _sink(heap, 0, largest=True)
    return first


def _rise(heap: list[Any], top: int, place: int, largest: bool = False) -> None:
    item = heap[place]
    while place > top:
        parent = (place - 1) >> 1
        above = heap[parent]
        if not (above < item if largest else item < above):
            break
        heap[place] = above
        place = parent
    heap[place] = item


def _sink(heap: list[Any], place: int, largest: bool = False) -> None:
    end, top, item = len(heap), place, heap[place]
    child = 2 * place + 1
    while child < end:
        other = child + 1
        if other < end and not (heap[other] < heap[child] if largest else heap[child] < heap[other]):
            child = other
        heap[place] = heap[child]
        place = child
        child = 2 * place + 1
    heap[place] = item
    _rise(heap, top, place, largest)


HEAPS: dict[Any, Callable[..., Any]] = {
    heapq.heappush: _heappush,
    heapq.heappop: _heappop,
    heapq.heapreplace: _heapreplace,
    heapq.heappushpop: _heappushpop,
    heapq.heapify: _heapify,
    # nsmallest() uses these.
    heapq._heapify_max: _heapify_max,
    heapq._heapreplace_max: _heapreplace_max,  # type: ignore[attr-defined]
}
