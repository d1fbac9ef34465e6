"""Watching loops that take numbers from lists element by element: as rows of a tensor, where ``columns`` says so.

To the trace it looks as if the program had a tensor there, and fetched its elements. Knows hooks, not what is made of
rounds.
"""

from __future__ import annotations

from typing import Any

import torch

from torchjanus.origin import Origin, Step
from torchjanus.rewrite import Site
from torchjanus.semantics.columns import column_of
from torchjanus.semantics.watch_rounds import RoundWatch

__all__ = ["ColumnWatch"]


class ColumnWatch(RoundWatch):
    """The leaves, as far as such lists are concerned."""

    def load_item(self, at: Site, obj: Any, key: Any) -> Any:
        if type(key) is int and type(obj) in (list, tuple) and 0 <= key < len(obj) and self._is_going_round(at):
            self.at(at)
            origin = self._kept(obj)
            if self.recording.is_written(obj):
                self.columns.hold(self.recording.place)
            elif origin is not None and not origin.waits_for and self.columns.at(self.recording.place, obj, key):
                column = self._column(origin, obj)
                if column is not None:
                    return self._element(column, key)
        return super().load_item(at, obj, key)

    def _is_going_round(self, at: Site) -> bool:
        """Whether a loop whose rounds have numbers is going on. Rounds that make recursive calls are calls themselves:
        what they take from lists is theirs (see graph.root_finding)."""
        counting = bool(self._known("_counters")) and self.outer is None and not self.recursions.known
        return counting and not self._in_library(at)

    def _column(self, origin: Origin, container: Any) -> torch.Tensor | None:
        """The tensor of a list; None where that cannot be one."""
        known = self._known("_columns")
        if id(container) not in known:
            try:
                made = self.recording.found(origin.then(Step.OF, column_of), column_of(container))
            except TypeError:
                made = None
            known[id(container)] = (container, made)
        column: torch.Tensor | None = known[id(container)][1]
        return column

    def _element(self, column: torch.Tensor, key: int) -> Any:
        """An element, as if it was fetched."""
        self.columns.used.add(self.recording.place)
        row = column[key]
        return bool(row) if row.dtype == torch.bool else row.item()
