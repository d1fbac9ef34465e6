"""Extract segments of a graph with cuts, before the last one, as graphs of their own, which any executor can run.

Where several processes train together, what follows a collective has to be computed by the same code on all of them,
or parameters that are equal drift apart. Gradients may be rounded differently on each before they are added up: all get
the same sum. ``private_nodes`` selects what has no other effect. Knows neither how graphs are run nor what is sent.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import torch

from torchjanus.graph.aten.clean_up import is_random, is_view
from torchjanus.graph.aten.segments import Tail, example_of, flags_at, given_at, known_from, stages_of
from torchjanus.graph.ir.lowered import Fresh, Lowered, Source, ViewOf
from torchjanus.graph.ir.program import Input

__all__ = ["Middle", "middles_of", "private_nodes"]

Node = torch.fx.Node
LEAST = 12  # operations of a graph of its own: a run of it costs as much as some


@dataclass(frozen=True, slots=True)
class Middle:
    """Operations of one segment. ``lowered`` takes the values of ``taken``, inputs of the whole graph, and of ``live``,
    nodes computed before, and then all slots. It returns ``values``.

    ``own``: its nodes; ``before``: those of the segment that are computed before it, the others come after it;
    ``again``: those of its nodes that are computed once more after it, from its values: views, and what is no tensor.
    """

    stage: int
    lowered: Lowered
    taken: tuple[Node, ...]
    live: tuple[Node, ...]
    values: tuple[Node, ...]
    own: frozenset[Node]
    before: frozenset[Node]
    again: tuple[Node, ...]


def private_nodes(lowered: Lowered) -> frozenset[Node]:
    """Return the nodes of which only sums over all processes depend: not what the graph returns, updates or asserts,
    and no random numbers; nor do they depend on the result of a collective."""
    nodes = list(lowered.graph.graph.nodes)
    results = nodes[-1].args[0]
    elsewhere = {position for cut in lowered.program.cuts if not cut.sums for position in cut.outputs}
    summed = {position for cut in lowered.program.cuts if cut.sums for position in cut.outputs} - elsewhere
    values = {_index(lowered.outputs[position].source) for position in summed}
    values -= {_index(one.source) for position, one in enumerate(lowered.outputs) if position not in summed}
    values -= {_index(leaf.result.source) for leaf in lowered.leaves}
    values -= {_index(one.result.source) for one in lowered.replaced}
    kept = [node for index, node in enumerate(results) if index not in values]
    others = {node for index, node in enumerate(results) if index in values}.difference(kept)
    kept += [node for node in nodes if node.op == "call_function" and is_random(node)]
    early, late = _and_what_they_use(kept), set[Node]()
    if not others:
        return frozenset()
    known = known_from(lowered)
    for place, node in enumerate(nodes):
        waits = place < len(known) and known[place]
        if waits or any(used in late for used in node.all_input_nodes):
            late.add(node)
    return frozenset(node for node in nodes if node.op == "call_function" and node not in early and node not in late)


def _index(source: Source) -> int | None:
    """Return the index of the graph's value that is the source, or of which it is a view."""
    base = source.base if isinstance(source, ViewOf) else source
    return base.index if isinstance(base, Fresh) else None


def _and_what_they_use(nodes: Collection[Node]) -> set[Node]:
    found, waiting = set[Node](), list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return found


def middles_of(lowered: Lowered, tail: Tail, among: Collection[Node] | None = None) -> list[Middle]:
    """Return the segments before the last as graphs. ``among``: only of these nodes, between which no other of their
    segment may lie."""
    nodes, stages = list(lowered.graph.graph.nodes), stages_of(lowered)
    found: list[Middle] = []
    for stage in reversed(range(len(lowered.program.cuts))):
        inside = [node for node in nodes if stages[node] == stage and node.op == "call_function"]
        own = [node for node in inside if among is None or node in among]
        if sum(not is_view(node) and node.target.__class__ is torch._ops.OpOverload for node in own) < LEAST:
            continue
        if all(_is_plain(node) for node in own):
            wanted = set(tail.wanted).union(*(one.live for one in found))
            made = _middle(lowered, wanted, stage, stages, inside, own)
            found += [] if made is None else [made]
    return found[::-1]


def _is_plain(node: Node) -> bool:
    """Whether any executor can compute the node: it is no loop, switch or call, which programs hold."""
    if isinstance(node.target, torch._ops.OpOverload):
        return node.target.namespace in ("aten", "prims")
    return not isinstance(node.target, torch._ops.HigherOrderOperator)


def _middle(
    lowered: Lowered, wanted: set[Node], stage: int, stages: dict[Node, int], inside: list[Node], own: list[Node]
) -> Middle | None:
    graph, mine = lowered.graph.graph, frozenset(own)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    count = len(lowered.program.inputs)
    # ``wanted``: by graphs of later segments
    wanted = {*wanted, *given_at(lowered, lowered.program.cuts[stage]), *flags_at(lowered)}
    values, again = _needed_outside(own, mine, wanted)
    before = _and_what_they_use(own) & {node for node in inside if node not in mine}
    # What is used before and after: views of it, and what is no tensor, are computed in the graph.
    live: dict[Node, None] = {}
    copied: dict[Node, None] = {}
    waiting = [used for node in own for used in node.all_input_nodes if used not in mine]
    while waiting:
        node = waiting.pop(0)
        if node in live or node in copied or node.op == "placeholder":
            continue
        if node.op != "call_function":
            return None
        if _crosses(node):
            live[node] = None
        else:
            copied[node] = None
            waiting += node.all_input_nodes
    order = {node: place for place, node in enumerate(graph.nodes)}
    later = {
        used
        for node in graph.nodes
        if stages.get(node, 0) > stage or node.op == "output"
        for used in node.all_input_nodes
    }
    later |= wanted | {used for node in again for used in node.all_input_nodes}
    later |= {used for node in inside if node not in mine and node not in before for used in node.all_input_nodes}
    held = [node for node in live if node in later]
    freed = [node for node in live if node not in later]
    used = {one for node in (*own, *copied) for one in node.all_input_nodes}
    places = [place for place, node in enumerate(placeholders[:count]) if node in used]
    taken = [placeholders[place] for place in places]
    new, copies = torch.fx.Graph(), dict[Node, Node]()
    for node in (*taken, *held, *freed, *placeholders[count:]):
        copies[node] = new.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in sorted((*copied, *own), key=order.__getitem__):
        copies[node] = new.node_copy(node, copies.__getitem__)
    new.output([copies[node] for node in values])
    module = torch.fx.GraphModule(lowered.graph, new)
    new.lint()
    module.recompile()
    inputs = [replace(entry, stage=0) for entry in map(lowered.program.inputs.__getitem__, places)]
    inputs += [Input(example_of(node.meta["val"]), False, True) for node in (*held, *freed)]
    slots = tuple(replace(slot, stage=0) for slot in lowered.program.slots)
    program = replace(lowered.program, inputs=tuple(inputs), slots=slots, nodes=(), outputs=(), assertions=(), cuts=())
    part = replace(
        lowered, program=program, graph=module, fresh=len(values), mutated=(), outputs=(), leaves=(), replaced=(),
        requires_grad_set=(), restored=(), uncounted=(), sized=(), drawn=(), lent=len(taken) + len(held), saves=None,
        random=any(map(is_random, own)), nodes=sum(node.op == "call_function" for node in new.nodes),
    )  # fmt: skip
    return Middle(stage, part, tuple(taken), (*held, *freed), tuple(values), mine, frozenset(before), tuple(again))


def _needed_outside(own: list[Node], mine: frozenset[Node], wanted: Collection[Node]) -> tuple[list[Node], list[Node]]:
    """Return the values that others need, and the nodes that are computed again from them, in order."""
    waiting = [node for node in own if node in wanted or any(user not in mine for user in node.users)]
    values, again = dict[Node, None](), set[Node]()
    while waiting:
        node = waiting.pop()
        if node in values or node in again or node not in mine:
            continue
        if _crosses(node):
            values[node] = None
        else:
            again.add(node)
            waiting += node.all_input_nodes
    return [node for node in own if node in values], [node for node in own if node in again]


def _crosses(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not is_view(node)
