"""Pieces of staged graphs under speculation: back ends for whole steps run them as they run steps and parts of steps.

So a piece is watched on real values, lowered with its backward pass, compiled, and used once it has agreed with replay;
sizes and numbers that vary, random numbers and writes in place are what they are in a step. What it cannot hold is run
by Python, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchjanus.core.errors import Place
from torchjanus.execute.backends.pieces import Piece
from torchjanus.runtime.decorators import speculate
from torchjanus.runtime.speculated_function import Speculated

__all__ = ["PieceReport", "Pieces"]

WATCH = 2  # calls of a piece that are watched: its path is always the same


@dataclass(frozen=True)
class PieceReport:
    """What runs a piece. ``function``, ``place``, ``last``: the graph function it is of, and the places in the program
    of its first and last operation; ``operations``: on tensors; ``calls``: so far; ``served``: those by a graph.

    ``by``: who runs it now: a back end, "replay" (a graph, by calls of ATen), several of them where there are several
    graphs, or "Python"; ``why``: why it is not the back end that was asked for, "" if it is."""

    function: str
    place: Place
    last: Place
    operations: int
    calls: int
    served: int
    by: str
    why: str

    def __str__(self) -> str:
        lines = f"{self.place}" if self.place.line == self.last.line else f"{self.place} to line {self.last.line}"
        why = f" ({self.why})" if self.why else ""
        return (
            f"{lines}: {self.operations} operations by {self.by}{why}, {self.served} of {self.calls} calls by a graph"
        )


class Pieces:
    """The pieces of one staged graph, and what runs them. ``backend``: see ``speculate``."""

    def __init__(self, backend: str | Callable[..., Any]) -> None:
        self._backend = backend
        self._known: list[tuple[Piece, Speculated[Any, Any]]] = []

    def compile(self, piece: Piece) -> Speculated[..., tuple[Any, ...]]:
        """Return a piece of the graph as a function that is speculated on, with the back end."""
        made: Speculated[..., tuple[Any, ...]] = speculate(piece.function(), backend=self._backend, watch=WATCH)
        self._known.append((piece, made))
        return made

    def wait(self) -> None:
        """Return when nothing is being compiled."""
        for _, step in self._known:
            step.wait()

    def report(self) -> list[PieceReport]:
        """Return what runs each piece, in the order in which they were first met."""
        return [_reported(piece, step) for piece, step in self._known]


def _reported(piece: Piece, step: Speculated[Any, Any]) -> PieceReport:
    counts, places = step.statistics(), piece.places
    engines = [entry.engine for entry in step.entries]
    by = ", ".join(dict.fromkeys(engine.current for engine in engines))
    if not engines or step.given_up:
        by = "Python"
    others = [engine for engine in engines if engine.current in ("replay", "Python")]
    notes = [note for engine in others for note in engine.notes[-1:]]
    refused = [f"{piece.program_place(one.place)}: {one.what}. {one.remedy}" for one in step.refusals]
    why = ""
    if by == "Python":
        why = next(iter((*refused, step.given_up)), "")
    elif others:
        why = next(iter(notes), "")
    if not why and (by == "Python" or "replay" in by):
        why = "it has not been called often enough"
    return PieceReport(
        piece.name, places[0], places[-1], piece.operations, counts.calls, counts.speculated, by, why
    )  # fmt: skip
