"""Numbers and sizes that the user has marked to vary, and tensors that are others in each call: they are inputs from
the first graph on. Knows nothing of graphs."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

from torchjanus.core.access_path import AccessPath, Step
from torchjanus.core.kinds import isinstance
from torchjanus.graph.ir.dimensions import Geometry, decides_alike
from torchjanus.runtime.runs.paths import Group
from torchjanus.trace.facts import HeapRead

__all__ = ["Marks"]


class Marks:
    """The marked names: access paths as a report prints them, in which ``*`` stands for any text."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add(self, names: Iterable[str]) -> None:
        """Mark these, too."""
        self.names += [name for name in names if name not in self.names]

    def _matches(self, access_path: AccessPath) -> bool:
        text = str(access_path)
        return any(re.fullmatch(re.escape(name).replace(r"\*", ".*"), text) for name in self.names)

    def apply(self, group: Group) -> Iterator[str]:
        """Make what is marked vary in the graph of this path. Yields what cannot vary, in a sentence each."""
        if not self.names:
            return
        trace, sizes = group.traces[-1], set[tuple[Any, int]]()
        for event in trace.events:
            if not isinstance(event, HeapRead):
                continue
            if event.kind == "number" and self._matches(event.access_path):
                group.relaxed.add(event.access_path.token)
            elif event.kind == "tensor" and isinstance(event.detail[3], tuple):
                token, count = event.access_path.token, len(event.detail[2])
                if self._matches(event.access_path):
                    group.relaxed.add(token)
                found = [dim for dim in range(count) if self._matches(event.access_path.then(Step.SIZE, dim))]
                sizes.update((token, dim) for dim in found)
                if found:
                    group.relaxed.add(token)  # where all watched runs saw one tensor, too
        if not sizes or not group.geometries:
            return
        known = group.geometries[-1]
        row = {token: _resized(one, {dim for of, dim in sizes if of == token}) for token, one in known.items()}
        if not decides_alike(trace, row):
            yield "sizes that are marked to vary stay constant: the step does something else for other sizes"
        elif row not in group.borrowed and not group.isolated:
            group.borrowed = [*group.borrowed, row]


def _resized(one: Geometry, dims: set[int]) -> Geometry:
    """Return the geometry of a tensor that has other sizes in these dimensions and lies in memory likewise: smaller
    ones, since a graph is traced with the largest."""
    sizes, strides = one
    others = tuple(_other(size) if dim in dims else size for dim, size in enumerate(sizes))
    order = sorted(range(len(sizes)), key=lambda dim: (strides[dim], sizes[dim] > 1))
    inner = {dim: order[: order.index(dim)] for dim in order}
    return others, tuple(
        math.prod(others[i] for i in inner[dim])
        if math.prod(sizes[i] for i in inner[dim]) == strides[dim]
        else strides[dim]
        for dim in range(len(sizes))
    )


def _other(size: int) -> int:
    """Return another size, of at least 2: smaller ones are special to torch."""
    half = max(2, size // 2)
    return half if half != size else size + 1
