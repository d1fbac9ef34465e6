"""The flat trace of a tree: its events in order, with tensors numbered as they were met and positions counted."""

from __future__ import annotations

from typing import Any

from torchjanus.core.errors import Place
from torchjanus.trace.actions import Extern, InvokeOp, Op
from torchjanus.trace.events import FunctionEntry, FunctionExit, LoopEnd, Trace
from torchjanus.trace.terms import TensorRef
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, Size
from torchjanus.tracegraph.graph import Block, Fact, Graph, Node, Value, refs_in, walk
from torchjanus.tracegraph.kinds import KINDS
from torchjanus.tracegraph.operands import Lowerer

__all__ = ["flatten"]


def flatten(graph: Graph) -> Trace:
    """Return the flat trace: its tokens are those of the trace of which the tree was made."""
    return _Flattening(graph).trace


class _Flattening:
    """The flat trace in the making."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.exprs: dict[int, Expr] = {}  # by id of a number
        self.numbers: dict[int, int] = {}  # by id of a tensor
        self.facts = {fact.id: fact for fact in graph.facts}
        self.ops = self.externs = 0
        self.escaping: list[tuple[Any, Node, int]] = []
        self.trace = Trace(ambient=self._lowerer().lower(graph.ambient))
        for one in sorted((value for value in _values(graph) if value.is_tensor), key=lambda value: value.id):
            self.numbers.setdefault(one.id, len(self.numbers))
        for given in graph.inputs:
            path = self._lowerer().path(given.path)
            if given.value.is_tensor:
                self.trace.access_paths[self.numbers[given.value.id]] = path
            else:
                self.exprs[given.value.id] = Read(path)
        self._block(graph.body)
        for event, node, after in self.escaping:
            assert node.recipes is not None
            self.trace.recipes[id(event)] = tuple(map(self._lowerer(after).lower, node.recipes))
        if graph.result is not None:
            self.trace.result = self._lowerer().lower(graph.result)

    def _lowerer(self, after: int = 0) -> Lowerer:
        return Lowerer(lambda ref: self.numbers[ref.value.id], lambda ref: self.exprs[ref.value.id], after)

    def _block(self, block: Block) -> None:
        for node in block.nodes:
            match node.kind:
                case "loop" | "switch":
                    for inner in node.blocks:
                        self._block(inner)
                    if node.get("exit") is not None:
                        self.trace.events.append(LoopEnd(len(node.blocks), node.site))
                case "call":
                    self._call(node)
                case "read" if node.outs[0].value.is_tensor:
                    number = self.numbers[node.outs[0].value.id]
                    self.trace.access_paths[number] = self._lowerer().path(node.get("path"))
                case "compute" | "fetch" | "size" | "read" | "index":
                    self.exprs[node.outs[0].value.id] = self._expr(node)
                case "meet":
                    pass
                case "rely":
                    self._event(self.facts[self._lowerer().lower(node.get("fact"))], node, node.site)
                case _:
                    self._event(node, node, node.site)

    def _call(self, node: Node) -> None:
        name = node.get("name").value
        self.trace.events.append(FunctionEntry(name, node.site))
        self._block(node.blocks[0])
        if (defined := node.get("defined")) is not None:
            self.trace.events.append(FunctionExit(name, Place(*self._lowerer().lower(defined))))

    def _expr(self, node: Node) -> Expr:
        given = {name: self._lowerer().lower(operand) for name, operand in node.fields}
        match node.kind:
            case "compute":
                return Apply(given["func"], given["args"], node.site)
            case "read":
                return Read(given["path"])
            case "index":
                return InductionVariable(**given)
        given["ref"] = given["ref"].number
        given.setdefault("after", self.ops)
        return Size(**given) if node.kind == "size" else Fetch(**given, place=node.site)

    def _event(self, said: Node | Fact, node: Node, site: Place) -> None:
        kind = KINDS[said.kind]
        given = {name: self._lowerer().lower(operand) for name, operand in said.fields}
        if issubclass(kind.event, Op):
            given["outs"] = tuple(TensorRef(self.numbers[out.value.id]) for out in node.outs)
            given.setdefault("kwargs", {})
            given.setdefault("modes", self._lowerer().lower(self.graph.modes))
        if kind.event is InvokeOp and node.call is not None:
            given["call"] = flatten(node.call)
        if "after" in kind.derived:
            given.setdefault("after", self.ops)
        if kind.event is Extern:
            given.setdefault("number", self.externs)
            self.externs += 1
        event = kind.event(**given, place=site)
        self.trace.events.append(event)
        if node.recipes is not None:
            self.escaping.append((event, node, given.get("after", self.ops)))
        self.ops += issubclass(kind.event, Op)


def _values(graph: Graph) -> list[Value]:
    """Return all values that are named in the graph."""
    found = [given.value for given in graph.inputs]
    for node in walk(graph.body):
        operands = (node.outs, tuple(one for _, one in node.fields), node.recipes or ())
        found += [ref.value for ref in refs_in(operands)]
    return found
