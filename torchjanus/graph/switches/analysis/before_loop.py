"""Names the tensors from before a switched loop so that the names do not depend on trip counts.

The names and the hash of the prefix are compared between runs. This module reads traces, not iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchjanus.core.remarks import NotMergeable
from torchjanus.core.trees import map_leaves
from torchjanus.trace.actions import Op
from torchjanus.trace.events import Trace
from torchjanus.trace.expressions import parts_of_expr
from torchjanus.trace.facts import Specialization, TensorPredicate
from torchjanus.trace.loops.records import LoopInstance, LoopSnapshots
from torchjanus.trace.operations import ops_of
from torchjanus.trace.terms import TensorRef, symbol_token
from torchjanus.trace.values import Expr

__all__ = ["NamesBeforeLoop"]


class NamesBeforeLoop:
    """The events before a loop, with names that are independent of the trip count of this loop and of earlier loops.

    Of an earlier countable loop only the first iteration is part of the hash."""

    def __init__(self, trace: Trace, frames: LoopSnapshots) -> None:
        self.trace = trace
        self.rows: dict[int, tuple[int, int]] = {}  # tensor -> (index of the unbind that made it, index of the row)
        self.unbindings: list[Op] = []
        self.made: list[int] = []  # other tensors, in order
        self._paths: dict[int, Any] = {}  # tensor -> its name
        self._tensors: dict[Any, int] = {}
        self._columns: dict[tuple[int, ...], Any] = {}  # per-iteration outputs of an earlier loop -> name
        start = frames.starts[0]
        loops = [one for one in _outermost(trace.loop_instances) if one.end < start]
        counts = (frames.count, *(one.count for one in loops))
        known = {expr.token for one in counts for expr in parts_of_expr(one) if isinstance(expr, Expr)}
        later = [position for one in loops for position in range(one.limits[1], one.end + 1)]
        for number, one in enumerate(loops):
            self._name_iterations(number, one)
        tokens: list[Any] = []
        skipped, anew = set(later), 0
        for position, event in enumerate(trace.events[:start]):
            if position in skipped:
                continue
            if not isinstance(event, Op):
                if not (isinstance(event, Specialization) and event.expr.token in known):
                    tokens.append(self._token(event))
                continue
            unbinding = event.name in ("Tensor.unbind", "torch.unbind")
            if unbinding:
                self.rows.update((ref.number, (len(self.unbindings), n)) for n, ref in enumerate(event.outs))
                self.unbindings.append(event)
            else:
                for ref in event.outs:
                    anew += self._name(ref.number, ("made", anew))
            args = self._with_names((event.args, event.kwargs))
            outs = () if unbinding else tuple(map(self._leaf, event.outs))
            tokens.append((event.name, symbol_token(args), outs, event.modes))
        self.made = list(self._paths)
        self.token = hash(tuple(tokens))

    def _name(self, tensor: int, path: Any) -> bool:
        if tensor in self._paths:
            return False
        self._paths[tensor], self._tensors[path] = path, tensor
        return True

    def _name_iterations(self, number: int, loop: LoopInstance) -> None:
        columns = list[list[int]]()
        for iteration, (start, end) in enumerate(loop.spans):
            which = "last" if iteration == len(loop.starts) - 1 else iteration
            made = [ref.number for event in ops_of(self.trace.events[start:end]) for ref in event.outs]
            columns.append(made)
            for place, tensor in enumerate(dict.fromkeys(made)):
                self._name(tensor, ("iteration", number, which, place))
        if len({len(made) for made in columns}) == 1:
            for place, column in enumerate(zip(*columns, strict=True)):
                self._columns[column] = ("column", number, place)

    def _token(self, event: Any) -> Any:
        if isinstance(event, TensorPredicate):
            return ("asserted", self.path(event.ref.number), event.place, event.outcome)
        return event.token

    def _with_names(self, value: Any) -> Any:
        """Return the arguments of an operation with names in place of tensors."""
        if isinstance(value, list | tuple) and len(value) > 1 and all(isinstance(part, TensorRef) for part in value):
            column = self._columns.get(tuple(part.number for part in value))
            if column is not None:
                return column
        if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
            return type(value)(map(self._with_names, value))
        return map_leaves(value, self._leaf)

    def _leaf(self, value: Any) -> Any:
        return self.path(value.number) if isinstance(value, TensorRef) else value

    def path(self, tensor: int) -> Any:
        """Return the name of a tensor from before the loop."""
        if tensor in self.rows:
            return ("row", *self.rows[tensor])
        if tensor in self._paths:
            return self._paths[tensor]
        access_path = self.trace.access_paths.get(tensor)
        return ("unknown", tensor) if access_path is None else access_path.token

    def tensor(self, path: Any, access_paths: Mapping[Any, int]) -> int:
        """Return the tensor of a name. ``access_paths``: those found in this run. Raises NotMergeable for none."""
        if path in self._tensors:
            return self._tensors[path]
        if path[0] == "row" and path[1] < len(self.unbindings) and path[2] < len(self.unbindings[path[1]].outs):
            return int(self.unbindings[path[1]].outs[path[2]].number)
        if path not in access_paths:
            raise NotMergeable("branch-carried", "an iteration takes a tensor that other runs do not find")
        return access_paths[path]


def _outermost(loops: Sequence[LoopInstance]) -> Iterator[LoopInstance]:
    """Yield the outermost countable loops."""
    end = -1
    for one in sorted((one for one in loops if one.starts), key=lambda one: (one.starts[0], -one.end)):
        if isinstance(one.count, Expr) and one.starts[0] >= end:
            yield one
            end = one.end
