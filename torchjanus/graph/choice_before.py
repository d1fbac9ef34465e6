"""What came before a loop in which tensors decide, said in words that do not depend on how many rounds there will be.

Knows runs, not rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torchjanus.graph.loop_scan import UnlikeRounds
from torchjanus.trace.events import Frames, Op, Pinned, TensorRef, Trace, symbol_token

__all__ = ["Before", "map_values"]


def map_values(value: Any, leaf: Callable[[Any], Any]) -> Any:
    """The arguments of an operation with other leaves."""
    if isinstance(value, list | tuple):
        parts = [map_values(part, leaf) for part in value]
        return parts if isinstance(value, list) else type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, dict):
        return {key: map_values(part, leaf) for key, part in value.items()}
    if isinstance(value, slice):
        return slice(*(map_values(part, leaf) for part in (value.start, value.stop, value.step)))
    return leaf(value)


class Before:
    """What came before a loop, said in words that do not depend on how many rounds there will be."""

    def __init__(self, trace: Trace, frames: Frames) -> None:
        self.trace = trace
        self.rows: dict[int, tuple[int, int]] = {}  # tensor -> which unbinding made it, the how-manieth row it is
        self.unbindings: list[Op] = []
        self.made: list[int] = []  # other tensors, in order
        self._order: dict[int, int] = {}
        count = None if frames.count is None else frames.count.token
        tokens: list[Any] = []
        for event in trace.events[: frames.starts[0]]:
            if not isinstance(event, Op):
                if not (isinstance(event, Pinned) and event.expr.token == count):
                    tokens.append(event.token)
                continue
            unbinding = event.name in ("Tensor.unbind", "torch.unbind")
            if unbinding:
                self.rows.update((ref.number, (len(self.unbindings), n)) for n, ref in enumerate(event.outs))
                self.unbindings.append(event)
            else:
                for ref in event.outs:
                    self._order.setdefault(ref.number, len(self._order))
            args = map_values((event.args, event.kwargs), self._leaf)
            outs = () if unbinding else tuple(map(self._leaf, event.outs))
            tokens.append((event.name, symbol_token(args), outs, event.modes))
        self.made = list(self._order)
        self.token = hash(tuple(tokens))

    def _leaf(self, value: Any) -> Any:
        return self.path(value.number) if isinstance(value, TensorRef) else value

    def path(self, tensor: int) -> Any:
        """What a tensor from before the loop is called."""
        if tensor in self.rows:
            return ("row", *self.rows[tensor])
        if tensor in self._order:
            return ("made", self._order[tensor])
        origin = self.trace.origins.get(tensor)
        return ("unknown", tensor) if origin is None else origin.token

    def tensor(self, path: Any, origins: Mapping[Any, int]) -> int:
        """The tensor of this name. ``origins``: those that were found. Raises UnlikeRounds where there is none."""
        if path[0] == "made" and path[1] < len(self.made):
            return int(self.made[path[1]])
        if path[0] == "row" and path[1] < len(self.unbindings) and path[2] < len(self.unbindings[path[1]].outs):
            return int(self.unbindings[path[1]].outs[path[2]].number)
        if path not in origins:
            raise UnlikeRounds
        return origins[path]
