"""Assign each operation of a graph with cuts to a segment, and extract the last segment as a graph.

Most of a step comes after its last cut, at least backward and optimizer. As a graph of its own, every executor can run
it. Knows neither how graphs are run nor what the host does at a cut.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchjanus.core.errors import InternalFault
from torchjanus.graph.aten.clean_up import is_random, is_view
from torchjanus.graph.aten.flags import flags_of
from torchjanus.graph.aten.may_fail import may_fail
from torchjanus.graph.aten.symbolic_sizes import hint
from torchjanus.graph.ir.lowered import Fresh, Lowered
from torchjanus.graph.ir.program import Cut, Input
from torchjanus.ops.aten import operator_of
from torchjanus.trace.blanks import blank

__all__ = ["Tail", "example_of", "flags_at", "given_at", "known_from", "stages_of", "tail_of"]

Node = torch.fx.Node
_aten = torch.ops.aten
# Gradients of a bucket are scaled and laid side by side at the end of the backward pass: that is done before the cut.
_PACKS = frozenset(
    {_aten.mul.Tensor, _aten.div.Tensor, _aten.cat.default, _aten.view.default, _aten.reshape.default}
    | {_aten.clone.default, _aten._unsafe_view.default, _aten.detach.default, _aten.alias.default}
)


@dataclass(frozen=True, slots=True)
class Tail:
    """The last segment of a graph with cuts.

    ``lowered`` takes the inputs of the whole graph and then the values of ``live``, nodes that earlier segments have
    computed. ``fresh``: for each fresh value of the whole, its index in ``lowered`` or the node of an earlier segment.
    """

    lowered: Lowered
    live: tuple[Node, ...]
    fresh: tuple[int | Node, ...]

    @property
    def wanted(self) -> tuple[Node, ...]:
        """The values of earlier segments that are needed at the end."""
        return tuple(dict.fromkeys((*self.live, *(one for one in self.fresh if not isinstance(one, int)))))


def known_from(lowered: Lowered) -> list[int]:
    """Return for each placeholder the segment from which it has its value."""
    program = lowered.program
    return [*(entry.stage for entry in program.inputs), *(slot.stage for slot in program.slots)]


def stages_of(lowered: Lowered) -> dict[Node, int]:
    """Return the segment of each node: the earliest possible; for random operations the one in which eager draws. What
    a cut that begins work beside the graph does not need is computed after it; updates that only the end needs, at the
    end, where they overwrite what they update."""
    stages, cuts = _earliest(lowered), lowered.program.cuts
    if not any(cut.begins for cut in cuts):
        return stages
    ends, packing = _ends(lowered, stages)
    for place, node in enumerate(stages):
        if node.op == "placeholder":
            continue
        stages[node] = max(stages[node], *(stages[used] for used in node.all_input_nodes), 0)
        while stages[node] < len(cuts) and place > ends[stages[node]] and node not in packing[stages[node]]:
            stages[node] += 1
    _delay_updates(lowered, stages)
    return stages


def _delay_updates(lowered: Lowered, stages: dict[Node, int]) -> None:
    """Put operations that could overwrite what the call updates into the last segment, if only that needs them.

    Before it, their results would need memory of their own, and copying at the end."""
    entries = [node for node in stages if node.op == "placeholder"]
    updating = {entries[index] for index in lowered.mutated}
    chain = []
    for node in stages:
        known, target = operator_of(node.target), node.args[0] if node.args else None
        several = target if isinstance(target, list | tuple) else [target]
        picks = node.target is operator.getitem
        if node.op == "call_function" and (known.same_in_place or picks) and all(one in updating for one in several):
            updating.add(node)
            chain.append(node)
    last = len(lowered.program.cuts)
    for node in reversed(chain):
        if all(stages[user] == last or user.op == "output" for user in node.users):
            stages[node] = last


def _ends(lowered: Lowered, earliest: dict[Node, int]) -> tuple[list[int], list[set[Node]]]:
    """Return for each segment the place of its last node in the graph (the end, if its cut does not begin work), and
    the nodes after that place that only pack values for the host."""
    nodes, ends, packing = list(earliest), list[int](), list[set[Node]]()
    places = {node: place for place, node in enumerate(nodes)}
    flags = flags_at(lowered)
    for segment, cut in enumerate(lowered.program.cuts):
        packing.append(set())
        if not cut.begins:
            ends.append(len(nodes))
            continue
        given, waiting = list[Node](), given_at(lowered, cut)
        while waiting:
            node = waiting.pop()
            if node.target not in _PACKS:
                given.append(node)
            elif node not in packing[-1]:
                packing[-1].add(node)
                waiting += node.all_input_nodes
        checked = zip(flags, lowered.assertions, strict=True)
        given += [flag for flag, assertion in checked if assertion.after <= cut.after and earliest[flag] <= segment]
        if cut.begins == "here":  # eager has computed before it what might raise
            given += [node for node in nodes if earliest[node] <= segment and _may_raise(node)]
        # Nodes before the last of these in the graph's order, which is eager's, are computed before the cut, too.
        ends.append(max((places[node] for node in given), default=0))
    return ends, packing


def _may_raise(node: Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    return not operator_of(node.target).aten or may_fail(node)


def given_at(lowered: Lowered, cut: Cut) -> list[Node]:
    """Return the nodes whose values the host needs at a cut."""
    values: Any = lowered.graph.graph.output_node().args[0]
    sources = [lowered.outputs[number].source for number in cut.outputs]
    for source in sources:
        if not isinstance(source, Fresh):
            raise InternalFault(f"{source} is needed at a cut, and is no value of the graph's own")
    return [values[source.index] for source in sources]  # type: ignore[union-attr]


def flags_at(lowered: Lowered) -> list[Node]:
    """Return the flags of the assertions."""
    if lowered.flags is None:
        return []
    values: Any = lowered.graph.graph.output_node().args[0]
    stacked = values[lowered.flags]
    flags = flags_of(stacked)
    if flags is None:
        raise InternalFault(f"the flags are not stacked but made by {stacked.target}")
    return flags


def _earliest(lowered: Lowered) -> dict[Node, int]:
    entries = known_from(lowered)
    stages: dict[Node, int] = {}
    position = draws = last_draw = 0
    for node in lowered.graph.graph.nodes:
        if node.op == "placeholder":
            stages[node] = entries[position]
            position += 1
            continue
        stages[node] = max((stages[used] for used in node.all_input_nodes), default=0)
        if is_random(node):
            last_draw = max(last_draw, stages[node], sum(before <= draws for before in lowered.drawn))
            stages[node] = last_draw
            draws += 1
    return stages


def tail_of(lowered: Lowered) -> Tail:
    """Return the last segment of a graph with cuts."""
    return _TailExtraction(lowered).tail()


class _TailExtraction:
    """Copies the last segment node by node."""

    def __init__(self, lowered: Lowered) -> None:
        self.lowered = lowered
        self.stages = stages_of(lowered)
        self.last = len(lowered.program.cuts)
        self.graph = torch.fx.Graph()
        self.copies: dict[Node, Node] = {}
        self.live: list[Node] = []

    def tail(self) -> Tail:
        lowered, nodes = self.lowered, list(self.lowered.graph.graph.nodes)
        given = [node for node in nodes if node.op == "placeholder"]
        count = len(lowered.program.inputs)
        results = nodes[-1].args[0]
        own = [node for node in nodes if self.stages[node] == self.last and node.op not in ("placeholder", "output")]
        made = set(own)
        fresh: list[int | Node] = []
        returned: list[Node] = []
        for value in results[: lowered.fresh]:
            fresh.append(len(returned) if value in made else value)
            returned += [value] if value in made else []
        rest = results[lowered.fresh :]
        self._find([*own, *rest], made)
        for node in (*given[:count], *self.live, *given[count:]):
            self.copies[node] = self.graph.placeholder(node.name)
            self.copies[node].meta = dict(node.meta)
        for node in own:
            self._copy(node)
        self.graph.output([self._value(value) for value in (*returned, *rest)])
        module = torch.fx.GraphModule(lowered.graph, self.graph)
        self.graph.lint()
        module.recompile()
        inputs = [replace(entry, stage=0) for entry in lowered.program.inputs]
        inputs += [Input(example_of(node.meta["val"]), False, True) for node in self.live]
        slots = tuple(replace(slot, stage=0) for slot in lowered.program.slots)
        program = replace(lowered.program, inputs=tuple(inputs), slots=slots, cuts=())
        part = replace(
            lowered, program=program, graph=module, fresh=len(returned), drawn=(), lent=count,
            scratch=self._scratch(count), random=any(map(is_random, own)),
            nodes=sum(node.op == "call_function" for node in module.graph.nodes),
        )  # fmt: skip
        return Tail(part, tuple(self.live), tuple(fresh))

    def _scratch(self, first: int) -> frozenset[int]:
        """Return which of the values from earlier segments, from input number ``first`` on, nothing else reads."""
        values: Any = self.lowered.graph.graph.output_node().args[0]
        results = values[: self.lowered.fresh]  # of cuts, too
        shown = {_root(value) for value in results if self.stages[value] < self.last}
        kept = [node for node in self.live if node in shown or not example_of(node.meta["val"]).is_floating_point()]
        return frozenset(place for place, node in enumerate(self.live, first) if node not in kept)

    def _find(self, nodes: list[Any], made: set[Node]) -> None:
        """Collect the values of earlier segments that the nodes need. Views and non-tensors are computed again."""
        seen: set[Node] = set()
        waiting = [used for node in nodes for used in ((node,) if node not in made else node.all_input_nodes)]
        while waiting:
            node = waiting.pop(0)
            if node in seen or node in made or node.op == "placeholder":
                continue
            seen.add(node)
            if _crosses(node):
                self.live.append(node)
            else:
                waiting += node.all_input_nodes

    def _value(self, node: Node) -> Node:
        if node not in self.copies:
            self._copy(node)
        return self.copies[node]

    def _copy(self, node: Node) -> None:
        for used in node.all_input_nodes:
            self._value(used)
        self.copies[node] = self.graph.node_copy(node, lambda part: self.copies[part])


def _root(node: Node) -> Node:
    """Return the node whose memory this one shows."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]
    return node


def _crosses(node: Node) -> bool:
    """Whether one segment may pass this value to another."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), torch.Tensor) and not is_view(node)


def example_of(value: Any) -> torch.Tensor:
    """Return a tensor without contents that is as this fake one."""
    if not isinstance(value, torch.Tensor):
        raise InternalFault("a value that one segment passes to the next is not a tensor")
    size, stride = ([hint(one) for one in numbers] for numbers in (value.size(), value.stride()))
    return blank(torch.empty_strided(size, stride, dtype=value.dtype, device=value.device))
