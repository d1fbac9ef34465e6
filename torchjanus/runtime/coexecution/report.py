"""The outcome of the co-execution of one function, as plain data and as text. Knows neither paths nor runs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from torchjanus.core.errors import Place

__all__ = ["CoexecutionReport"]


@dataclass(frozen=True, slots=True)
class CoexecutionReport:
    """The outcome of co-execution. ``matched``: the share of operators that graphs made; ``transitions``: calls that
    diverged; ``points``: by source line, how often Python waited for the graph, and for how many seconds each time.
    ``skeleton``, ``graph``: seconds that Python and the graph took in a served call, on average; ``waits``: how long
    Python waited at points before the end. ``beside``: served calls whose graph ran beside the skeleton."""

    paths: int
    served: int
    recorded: int
    transitions: int
    matched: float
    points: tuple[tuple[Place, str, int, float], ...]
    skeleton: float
    graph: float
    waits: float
    beside: int
    merged: int
    operators: int

    def __str__(self) -> str:
        calls = f"co-executed: {self.served} calls, {self.recorded} recorded, {self.transitions} diverged"
        paths = f"{self.matched:.0%} of the operators by the graphs of {self.paths} paths"
        skeleton, graph, waits = (f"{seconds * 1e6:.0f} us" for seconds in (self.skeleton, self.graph, self.waits))
        times = f"skeleton {skeleton}, graph {graph} a call; Python waits {waits} in the middle"
        merged = f"; {self.merged} calls of {self.operators} merged operators" if self.merged else ""
        return f"{calls}; {paths}; {times}; in {self.beside} calls the graph ran beside Python{merged}"

    def data(self) -> dict[str, Any]:
        """Return everything as plain data."""
        points = [
            {"place": str(place), "what": what, "times": times, "seconds": seconds}
            for place, what, times, seconds in self.points
        ]
        return {**dataclasses.asdict(self), "points": points}
