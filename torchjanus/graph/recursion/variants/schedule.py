"""In which stage a variant of a recursive function computes each tensor and makes each of its calls.

A stage ends where the variant waits for the calls that it makes. Knows neither segments nor cells.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torchjanus.core.errors import Place, Refused
from torchjanus.graph.ir.program import Node, Ref
from torchjanus.graph.recursion.variants.nodes import is_call, slots_of
from torchjanus.graph.recursion.variants.reads import calls_of, given_tensors
from torchjanus.trace.actions import InvokeOp
from torchjanus.trace.events import FunctionEntry, FunctionExit, Trace
from torchjanus.trace.recipes import Number

__all__ = ["Schedule", "Site"]


@dataclass(frozen=True, slots=True)
class Site:
    """A call that the variant makes, at a ``stage``. ``args``: the tensors passed, each with the token of the callee's
    access path. ``frames``: how many frames deeper than the variant eager makes it."""

    event: InvokeOp
    frames: int
    stage: int
    args: tuple[tuple[Any, Ref], ...]
    outs: tuple[Ref, ...]


class Schedule:
    """The earliest stage of each tensor and call of a trace. Raises Refused."""

    def __init__(
        self,
        trace: Trace,
        nodes: Sequence[Node],
        slots: Sequence[Any],
        inputs: Container[int],
        not_followed: Callable[[str, Place], Refused],
    ) -> None:
        """``slots``: the expressions of the numbers in ``nodes``; ``inputs``: the tensors that are not computed;
        ``not_followed`` makes the error for a reason and a place."""
        self.sites: list[Site] = []
        self.calls: dict[int, tuple[int, int]] = {}  # result of a call -> (site, index)
        self._made: dict[int, int] = {}  # tensor -> stage in which it is computed
        events = _calls(trace)
        for node in nodes:
            waits = [self._made[ref.index] for ref in node.inputs if ref.index in self._made]
            numbers = [slots[slot.index] for slot in slots_of((node.args, node.kwargs))]
            event, frames = next(events) if is_call(node) else (None, 0)
            if event is not None:
                numbers += [recipe.expr for _, recipe in event.given if isinstance(recipe, Number)]
            waits += [self.sites[call].stage + 1 for expr in numbers for call in calls_of(expr)]
            stage = max(waits, default=0)
            if event is not None:
                args = tuple(zip(given_tensors(event), node.args, strict=True))
                for index, ref in enumerate(node.outs):
                    self._made[ref.index] = stage + 1
                    self.calls[ref.index] = (len(self.sites), index)
                self.sites.append(Site(event, frames, stage, args, node.outs))
                continue
            for ref in node.outs:
                if ref.index in inputs or ref.index in self._made:
                    if ref.index in inputs or ref.index in self.calls or self._made[ref.index] != stage:
                        raise not_followed("it changes a tensor in place that it did not just make", node.place)
                self._made[ref.index] = stage
        self.stages = max((*self._made.values(), *(site.stage for site in self.sites)), default=0) + 1

    def latest(self, nodes: Sequence[Node], results: Iterable[Ref], changed: Container[int]) -> dict[int, int]:
        """Return the latest stage possible of each node, by its number. ``changed``: the tensors that
        are changed in place."""
        wanted: dict[int, int] = {}

        def want(refs: Any, stage: int) -> None:
            for ref in refs:
                wanted[ref.index] = min(stage, wanted.get(ref.index, stage))

        want(results, self.stages - 1)
        for site in self.sites:
            want((ref for _, ref in site.args), site.stage)
        at: dict[int, int] = {}
        for number, node in reversed(list(enumerate(nodes))):
            if is_call(node):
                continue
            earliest = max((self._made[ref.index] for ref in node.outs), default=0)
            stage = min((wanted[ref.index] for ref in node.outs if ref.index in wanted), default=earliest)
            if any(ref.index in changed for ref in (*node.outs, *node.inputs)):
                stage = earliest
            at[number] = max(stage, earliest)
            for ref in node.outs:
                self._made[ref.index] = at[number]
            want(node.inputs, at[number])
        return at


def _calls(trace: Trace) -> Iterator[tuple[InvokeOp, int]]:
    """Yield the calls of a trace, each with its depth in frames."""
    depth = 1
    for event in trace.events:
        depth += isinstance(event, FunctionEntry) - isinstance(event, FunctionExit)
        if isinstance(event, InvokeOp):
            yield event, depth
