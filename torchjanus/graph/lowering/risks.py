"""Find what may raise in a lowered graph, in the iterations of its loops and in the arms of its switches."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from torchjanus.graph.aten.may_fail import Bound, bounds_of, is_lost, may_fail, root_of
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.graph.lowering.prepared_bytes import Condition, Geometry, fitting, solvable
from torchjanus.graph.operators.loop_op import (
    BACKWARD,
    FORWARD,
    FORWARD_RANDOM,
    UNTIL,
    UNTIL_BACKWARD,
    UNTIL_RANDOM,
    is_until,
)
from torchjanus.graph.regions.partition import Partition, Source, SourcedGraph
from torchjanus.graph.regions.switch import SwitchPartition

__all__ = ["Limits", "Risks", "cannot_fail_within", "risks_of"]

_LOOPS = (FORWARD, FORWARD_RANDOM, BACKWARD, UNTIL, UNTIL_RANDOM, UNTIL_BACKWARD)


@dataclass(frozen=True, slots=True)
class Risks:
    """What may raise. ``bounds`` on inputs and conditions on ``sizes`` rule out some errors; ``open``: others remain;
    ``lost``: an operation whose check a compiler would drop, or that would crash."""

    bounds: tuple[Bound, ...]
    sizes: tuple[Condition, ...]
    open: bool
    lost: str


def risks_of(lowered: Lowered, loops: Iterable[Partition] = (), switches: Iterable[SwitchPartition] = ()) -> Risks:
    """Return what may raise in this graph and in the graphs that it runs."""
    inputs = [node for node in lowered.graph.graph.nodes if node.op == "placeholder"]
    found = _RiskFinder({partition.key: partition for partition in loops}, solvable(_taken(lowered)))
    found.look(lowered.graph, {node: number for number, node in enumerate(inputs)})
    found.known = frozenset()  # the graphs of arms have symbols of their own
    for arm in (arm for switch in switches for arm in switch.arms):
        for direction in (arm.forward, arm.backward):
            if direction is not None:
                found.look(direction.graph, {})
    return Risks(tuple(found.bounds), tuple(found.sizes), found.open, found.lost)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on inputs, and a condition on their sizes. ``inputs``: the inputs that these check."""

    bounds: tuple[Bound, ...]
    fits: Callable[[Any], bool] | None
    inputs: tuple[int, ...]

    def hold(self, inputs: Mapping[int, torch.Tensor]) -> bool:
        """Whether these inputs, by number, are within the limits."""
        return (self.fits is None or self.fits(inputs)) and all(bound.holds(inputs) for bound in self.bounds)


def cannot_fail_within(
    lowered: Lowered, loops: Iterable[Partition], switches: Iterable[SwitchPartition]
) -> Limits | None:
    """Return the limits within which no operation of the graph raises; None where there are none."""
    for node in lowered.graph.graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and target.namespace != "aten" and target not in _LOOPS:
            return None
    risks = risks_of(lowered, loops, switches)
    if risks.open or risks.lost:
        return None
    taken = _taken(lowered)
    asked = {bound.index for bound in risks.bounds}
    if risks.sizes:
        asked.update(n for n, one in enumerate(taken) if not all(isinstance(size, int) for size in one.size))
    return Limits(risks.bounds, fitting(taken, risks.sizes), tuple(sorted(asked)))


def _taken(lowered: Lowered) -> list[Geometry]:
    """Return the geometries of the inputs of the step."""
    placeholders = [node for node in lowered.graph.graph.nodes if node.op == "placeholder"]
    return [Geometry.of(node.meta["val"]) for node in placeholders[: len(lowered.program.inputs)]]


class _RiskFinder:
    """Collects what may raise in a graph and its loops' iterations. ``known``: the symbols that are sizes of inputs."""

    def __init__(self, loops: Mapping[int, Partition], known: Container[Any]) -> None:
        self.loops = loops
        self.known = known
        self.sizes: dict[Condition, None] = {}
        self.bounds: dict[Bound, None] = {}
        self.open, self.lost = False, ""

    def look(self, graph: torch.fx.GraphModule, inputs: Mapping[torch.fx.Node, int]) -> None:
        """Examine a graph. ``inputs``: the placeholders that hold only elements of one step input, with its number."""
        for node in graph.graph.nodes:
            if node.op != "call_function":
                continue
            if node.target in _LOOPS:
                self._iterations(node, inputs)
            elif may_fail(node):
                self._operation(node, inputs)

    def _operation(self, node: torch.fx.Node, inputs: Mapping[torch.fx.Node, int]) -> None:
        bounds = bounds_of(node, inputs)
        if bounds is None and is_lost(node):
            self.lost = self.lost or str(node.target)
        elif bounds is None:
            self.open = True
        else:
            for bound in bounds:
                if isinstance(bound, Bound):
                    self.bounds[bound] = None
                elif all(symbol in self.known for symbol in bound.condition.free_symbols):
                    self.sizes[bound.condition] = None
                else:
                    self.open = True

    def _iterations(self, node: torch.fx.Node, inputs: Mapping[torch.fx.Node, int]) -> None:
        """Examine the graph that the iterations of a loop run."""
        direction, given = _given(node, self.loops[node.args[0]])  # type: ignore[index]
        places = (one for one in direction.graph.graph.nodes if one.op == "placeholder")
        known = {}
        for place, source in zip(places, direction.sources, strict=True):
            if source in given and (root := root_of(given[source])) in inputs:
                known[place] = inputs[root]
        if is_until(node.target):  # there may be no row for an iteration
            stacked: Any = node.args[6]
            self.open |= not all(_has_rows(rows, node.args[3]) for rows in stacked)
        outside, self.known = self.known, frozenset()  # the iterations have symbols of their own
        self.look(direction.graph, known)
        self.known = outside


def _has_rows(stacked: torch.fx.Node, iterations: Any) -> bool:
    """Whether a stacked tensor has a row for each of the iterations, whatever their number."""
    rows = stacked.meta["val"].size(0)
    count = iterations.meta["val"] if isinstance(iterations, torch.fx.Node) else iterations
    if isinstance(rows, int) and isinstance(count, int):
        return 0 <= count <= rows
    symbolic = isinstance(rows, torch.SymInt) and isinstance(count, torch.SymInt)
    return symbolic and bool(rows.node.expr == count.node.expr)


def _given(node: torch.fx.Node, partition: Partition) -> tuple[SourcedGraph, dict[Source, torch.fx.Node]]:
    """Return the graph that the iterations of a loop node run, and its loop-invariant and scanned inputs."""
    target, args = node.target, node.args
    found: dict[Source, torch.fx.Node] = {}
    backward = target in (BACKWARD, UNTIL_BACKWARD)
    if target is BACKWARD:
        kept = zip(partition.kept, args[5], strict=True)  # type: ignore[arg-type]
        found = {source: value for source, value in kept if source.kind in ("stacked", "invariant")}
    else:
        first = 4 if target in (FORWARD, FORWARD_RANDOM) else 6
        for kind, values in zip(("stacked", "invariant"), args[first : first + 2], strict=True):
            found |= {Source(kind, number): value for number, value in enumerate(values)}  # type: ignore[arg-type]
    direction = partition.backward if backward else partition.forward
    assert direction is not None
    return direction, found
