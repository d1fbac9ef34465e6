"""Find repeated segments in a straight-line program: nodes that may be the iterations of one loop.

A segment may begin at any node of the loop body that the user wrote, and it need not come from a loop in the source.
This module compares nodes by their form and does not know what they compute.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchjanus.core.access_path import token_of
from torchjanus.core.errors import InternalFault
from torchjanus.core.trees import tree_token
from torchjanus.graph.ir.program import Node, Ref
from torchjanus.trace.loops.records import TensorTermination

__all__ = ["Segment", "begin_iterations", "end_iterations", "marked", "segments"]

LONGEST = 400  # the most nodes in an iteration


@dataclass(frozen=True, slots=True)
class Segment:
    """``iterations`` times ``length`` nodes from ``start`` on."""

    start: int
    length: int
    iterations: int
    count: Any = None  # the trip count of a call (slot or size), where these are only the first iterations
    until: TensorTermination | None = None  # where a tensor ends the loop
    least: int = 1  # the smallest trip count of the runs

    @property
    def end(self) -> int:
        return self.start + self.length * self.iterations

    @property
    def marks(self) -> int:
        """The number of mark nodes before it, and behind it."""
        return int(self.count is not None or self.until is not None)


def begin_iterations(count: int | None, kept: int, go: bool = True, limit: int | None = None, least: int = 1) -> None:
    """Marks where a loop of ``count`` iterations begins, of which ``kept`` follow, up to ``end_iterations``. Without a
    count the loop goes on as long as the assertion at the end of each iteration is ``go``: see
    ``TensorTermination``."""
    raise InternalFault("a loop that was cut down has not been rolled up")


def end_iterations() -> None:
    """Marks where the iterations end."""
    raise InternalFault("a loop that was cut down has not been rolled up")


def marked(nodes: Sequence[Node]) -> list[Segment] | None:
    """Return the innermost marked segments; None where the nodes between two marks are not equally long iterations."""
    found = []
    marks = [position for position, node in enumerate(nodes) if node.func in (begin_iterations, end_iterations)]
    for position, end in itertools.pairwise(marks):
        if nodes[position].func is begin_iterations and nodes[end].func is end_iterations:
            count, kept, *decided = nodes[position].args
            length, left = divmod(end - position - 1, kept)
            if left or not length:
                return None
            if decided:
                go, limit, least = decided
                found.append(Segment(position + 1, length, kept, None, TensorTermination(go, limit), least))
            else:
                found.append(Segment(position + 1, length, kept, count))
    return found


def _shape(value: Any) -> Any:
    """Return what two iterations of one loop have in common in a leaf of the arguments."""
    if isinstance(value, Ref):
        return "ref"
    return type(value).__name__ if type(value) in (int, float) else token_of(value)  # numbers may differ


def _token(node: Node) -> Any:
    return (token_of(node.func), node.modes, tree_token((node.args, node.kwargs), _shape), len(node.outs))


def segments(nodes: Sequence[Node], least: int) -> list[Segment]:
    """Return the segments of at least ``least`` equal iterations in program order. They do not overlap; shorter
    iterations are preferred."""
    numbers: dict[Any, int] = {}
    tokens = [numbers.setdefault(_token(node), len(numbers)) for node in nodes]
    found: list[Segment] = []
    taken = [False] * len(tokens)
    for length in range(1, min(LONGEST, len(tokens) // least) + 1):
        run = 0
        for position in range(length, len(tokens) + 1):
            same = position < len(tokens) and tokens[position] == tokens[position - length] and not taken[position]
            if same:
                run += 1
                continue
            iterations = run // length + 1
            start = position - run - length
            if run and iterations >= least and not any(taken[start : start + iterations * length]):
                found.append(Segment(start, length, iterations))
                taken[start : start + iterations * length] = [True] * (iterations * length)
            run = 0
    return sorted(found, key=lambda segment: segment.start)
