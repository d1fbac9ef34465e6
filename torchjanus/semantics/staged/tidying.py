"""Prepares a staged graph for the user: without what nothing uses, with values, versions and alias classes numbered in
the order of its text."""

from __future__ import annotations

import operator
from collections import Counter
from typing import Any

from torchjanus.tracegraph.graph import (
    Block,
    Dict,
    Graph,
    Node,
    Operand,
    Path,
    Record,
    Ref,
    Sequence,
    Value,
    refs_in,
    walk,
)

__all__ = ["tidy"]

_NEVER_RAISE = frozenset({
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.not_, operator.is_,
    operator.is_not, operator.and_, operator.or_, operator.add, operator.sub, operator.mul, operator.neg, bool, len,
    min, max, abs,
})  # fmt: skip


def tidy(graph: Graph) -> Graph:
    """Drop what cannot be noticed and is not used, and number the rest."""
    while _drop_unused(graph):
        pass
    _Numbering(graph).run()
    return graph


def _drop_unused(graph: Graph) -> bool:
    """Drop nodes, results of switches and inputs that nothing uses. Return whether there were any."""
    used = {ref.value for ref in refs_in((graph.result or (),))}
    for node in walk(graph.body):
        used |= {ref.value for ref in refs_in(tuple(operand for _, operand in node.fields))}
        for block in node.blocks:
            used |= {ref.value for ref in refs_in(block.yields)}
    dropped = _prune(graph.body, used)
    for node in walk(graph.body):
        if node.kind == "switch" and any(ref.value not in used for ref in node.outs):
            keep = [number for number, ref in enumerate(node.outs) if ref.value in used]
            node.outs = tuple(node.outs[number] for number in keep)
            for block in node.blocks:
                block.yields = tuple(block.yields[number] for number in keep)
            dropped = True
    kept = [one for one in graph.inputs if one.value in used or one.path.step != "const"]
    dropped = dropped or len(kept) < len(graph.inputs)
    graph.inputs = kept
    return dropped


def _prune(block: Block, used: set[Value]) -> bool:
    kept = [node for node in block.nodes if not _is_idle(node, used)]
    dropped = len(kept) < len(block.nodes)
    block.nodes = kept
    for node in kept:
        for inner in node.blocks:
            dropped = _prune(inner, used) or dropped
    return dropped


def _is_idle(node: Node, used: set[Value]) -> bool:
    """Whether a node can be dropped: its results are not used, and it can neither write nor raise."""
    if any(ref.value in used for ref in node.outs):
        return False
    match node.kind:
        case "size":
            return True
        case "compute":
            func = node.get("func").value
            return getattr(func, "__hash__", None) is not None and func in _NEVER_RAISE
        case "switch":
            return not any(block.nodes for block in node.blocks)
    return False


class _Numbering:
    """New numbers, in the order of the text."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.values: dict[Value, Value] = {}
        self.aliases: dict[int, int] = {}
        self.versions: Counter[int] = Counter()

    def run(self) -> None:
        graph = self.graph
        for one in graph.inputs:
            one.value = self.value(one.value)
            one.path = self.operand(one.path)  # type: ignore[assignment]
        self.block(graph.body)
        if graph.result is not None:
            graph.result = self.operand(graph.result)
        graph.aliases = len(self.aliases)

    def value(self, value: Value) -> Value:
        known = self.values.get(value)
        if known is None:
            alias = None if value.alias is None else self.aliases.setdefault(value.alias, len(self.aliases))
            known = self.values[value] = Value(len(self.values), value.type, alias)
        return known

    def block(self, block: Block) -> None:
        block.params = tuple(map(self.ref, block.params))
        for node in block.nodes:
            self.node(node)
        block.yields = tuple(map(self.operand, block.yields))

    def node(self, node: Node) -> None:
        node.fields = tuple((name, self.operand(operand)) for name, operand in node.fields)
        writes = [self.aliases.setdefault(alias, len(self.aliases)) for alias, _ in node.writes]
        self.versions.update(Counter(writes))
        node.writes = tuple((alias, self.versions[alias]) for alias in writes)
        values = [self.value(ref.value) for ref in node.outs]  # the text names them first, though they are there last
        for inner in node.blocks:
            self.block(inner)
        node.outs = tuple(Ref(one, 0 if one.alias is None else self.versions[one.alias]) for one in values)

    def ref(self, ref: Ref) -> Ref:
        value = self.value(ref.value)
        return Ref(value, 0 if value.alias is None else self.versions[value.alias])

    def operand(self, operand: Operand) -> Operand:
        match operand:
            case Ref():
                return self.ref(operand)
            case Sequence(cls=cls, items=items):
                return Sequence(cls, tuple(map(self.operand, items)))
            case Dict(items=items):
                return Dict(tuple((self.operand(key), self.operand(one)) for key, one in items))
            case Path(step=step, base=base, key=key, label=label):
                under: Any = None if base is None else self.operand(base)
                return Path(step, under, self.operand(key), label)
            case Record(name=name, fields=fields):
                return Record(name, tuple((field, self.operand(one)) for field, one in fields))
        return operand
