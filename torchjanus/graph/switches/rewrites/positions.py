"""Maps positions of a run to the rewritten run: events, loops, and the states of variables in later loops.

Of the events that replace the iterations only the number is known here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.graph.switches.analysis.numbers import KINDS
from torchjanus.graph.switches.rewrites.row_reads import RowReadRewriter
from torchjanus.trace.loops.records import LoopInstance, LoopSnapshots, TensorTermination
from torchjanus.trace.values import Expr

__all__ = ["PositionRewriter"]


class PositionRewriter(RowReadRewriter):
    """The part of the rewriter that maps positions."""

    def position_map(self, found: int, iterations: int, check: int, leading: int) -> Any:
        """Return the function that maps an event's position to the new run, before facts are dropped."""

        def place(position: int) -> int:
            if position <= self.start:
                return position
            if position < self.end:
                return self.start + found
            marks = sum(event <= position for _, event in self.marks_behind)
            moved = self.start + found + iterations + position - self.end + marks
            return moved + (check if position - self.end >= leading else 0)

        return place

    def moved_records(self, place: Any, starts: tuple[int, ...]) -> Iterator[Any]:
        """Yield the loop records of all loops; the iterations of this one start at ``starts``."""
        for record in self.old.loop_records:
            if tuple(record.starts) == self.frames.starts:
                yield replace(record, starts=list(starts), end=place(self.end))
            elif record.end is not None and record.end < self.start:
                yield record
            elif not any(self.start <= position < self.end for position in record.starts):
                ended = None if record.end is None else place(record.end)
                yield record.elsewhere([place(position) for position in record.starts], ended)

    def moved_instances(self, place: Any) -> Iterator[LoopInstance]:
        """Yield the loops before and after this one that may have another trip count. A later loop whose trip count, or
        what it asks for, comes from this loop is left out: it stays unrolled."""
        for one in self.old.loop_instances:
            starts = tuple(map(place, one.starts))
            if one.end <= self.start:
                yield replace(one, starts=starts, end=place(one.end))
            elif one.starts and one.starts[0] >= self.end:
                assert not isinstance(one.count, TensorTermination)  # those are found when all has been rewritten
                try:
                    count, asked = self.expr(one.count), tuple(map(self.expr, one.asked))
                except NotMergeable:
                    continue
                yield replace(one, starts=starts, end=place(one.end), count=count, asked=asked)

    def _known_as(self, name: Any, tensor: int) -> int:
        """Return the tensor in the new run that a variable holds after the loop; -1 where it is not known."""
        after = self.after
        names = after.names.get(tensor, [])
        if tensor not in after.made and not any(one in after.resolving.rebound for one in names):
            return self.marked.get(tensor, tensor)
        if tensor in after.made and name in names and name in self.last:
            return int(self.last[name])
        try:
            if tensor not in after.made:  # the arm may have left it there, or what comes after the loop
                variable = after.held(tensor)
                return tensor if variable is None else self.last.get(variable, -1)
            source = after.resolving.choose({("name", one) for one in names}, True)
        except NotMergeable:
            return -1
        return self.last.get(source[1], -1)

    def _state(self, at: Any, where: Any, name: Any, value: Any) -> Any:
        """Return what a variable holds between the events after the loop. ``at``: see ``LiveOutUses.at``; ``where``:
        the state among those of a loop, since Python numbers change without any event."""
        self.after.at_state(at, (where, name))
        if value[0] == "tensor":
            return ("tensor", self._known_as(name, value[1]))
        if value[0] not in KINDS:
            return value
        try:
            if isinstance(value[1], Expr):
                return (value[0], self.expr(value[1]))
            if name[-1] == "length":
                return value
            variable = self.after.number(value[1])
        except NotMergeable:
            return ("object", "unknown", name)
        if variable is None:
            return value
        if variable not in self.acting.values:  # nothing after the loop uses it
            return ("object", "unknown", name)
        found = self.acting.values[variable]
        return ("number", found) if isinstance(found, Expr) else (value[0], found)

    def moved_frames(self, place: Any) -> Iterator[LoopSnapshots]:
        """Yield the frames of the loops after this one."""
        for frames in self.old.frames:
            if frames.starts[0] < self.end:
                continue
            found = enumerate(zip(frames.limits, frames.states, strict=True))
            states = tuple(
                {
                    name: self._state(self.seen_at[position], (frames.place, number), name, value)
                    for name, value in state.items()
                }
                for number, (position, state) in found
            )
            count = None if frames.count is None else self.expr(frames.count)
            starts = tuple(map(place, frames.starts))
            yield replace(frames, starts=starts, end=place(frames.end), states=states, count=count)

    def moved_plain(self, place: Any) -> Iterator[Any]:
        """Yield the plain computations; those within the loop lose their operands, which are resolved."""
        inside = range(self.frames.untraced_counts[0], self.frames.untraced_counts[-1])
        for number, plain in enumerate(self.old.plain):
            operands = () if number in inside else plain.operands
            yield replace(plain, position=place(plain.position), operands=operands)
