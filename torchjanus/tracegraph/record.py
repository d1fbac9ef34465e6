"""Builds the tree of a run that was watched with an outline: from its events and from where regions began among them.

``flatten`` is the way back. The tree holds nothing of the flat trace's numbering: numbers of tensors, how many
framework calls or extern calls come before something, and where loops and calls begin and end follow from where nodes
stand.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torchjanus.core.errors import NOWHERE, Place
from torchjanus.core.kinds import isinstance
from torchjanus.trace.actions import Extern, InvokeOp, Op
from torchjanus.trace.events import FunctionEntry, FunctionExit, LoopEnd, Trace
from torchjanus.trace.facts import HeapRead, TensorPredicate
from torchjanus.trace.loops.outline import IterationStart, Outline, Written
from torchjanus.trace.values import Apply, Expr, Fetch, InductionVariable, Read, Size
from torchjanus.tracegraph.graph import (
    Block,
    Const,
    Fact,
    Graph,
    Input,
    Node,
    Operand,
    Path,
    Ref,
    Sequence,
    TensorType,
    Value,
    refs_in,
    walk,
)
from torchjanus.tracegraph.kinds import EVENTS, defaults_of
from torchjanus.tracegraph.operands import Lifter
from torchjanus.tracegraph.regions import Regions

__all__ = ["tree_of"]

_DEFAULTS = {cls: defaults_of(cls) for cls in EVENTS}


def tree_of(trace: Trace, name: str = "step") -> Graph:
    """Return the run as a tree. Without an outline it has no loops and switches."""
    return _Building(trace, name).graph


class _Building:
    """The tree in the making."""

    def __init__(self, trace: Trace, name: str) -> None:
        self.trace = trace
        self.outline = trace.outline or Outline()
        self.lifter = Lifter(self._tensor, self._number)
        self.values = 0  # how many there are
        self.tensors: list[Value] = []  # by number
        self.numbers: dict[Any, Value] = {}  # by the token of an expression
        self.computed: dict[int, Value] = {}  # by id of an expression
        self.versions: Counter[int] = Counter()  # by alias class
        self.aliases: dict[Any, int] = {}  # by what the trace calls the memory
        self.facts: dict[Any, Fact] = {}  # by token
        self.place: Place = NOWHERE
        self.ops = self.externs = 0
        self.kinds = {
            event.access_path.token: type(event.value).__name__
            for event in trace.events
            if isinstance(event, HeapRead) and event.kind == "number"
        }
        ambient = self.lifter.lift(trace.ambient)
        modes = ambient.items[0] if isinstance(ambient, Sequence) else ambient
        self.graph = Graph(name, ambient, modes)
        self.regions = Regions(self.graph.body)
        self._build(self.outline.entries)
        self.graph.aliases = len(self.aliases)
        _mark_yields(self.graph)

    def _build(self, entries: list[tuple[int, Any]]) -> None:
        escaping: list[tuple[Node, tuple[Any, ...], Counter[int]]] = []
        waiting = iter([*entries, (len(self.trace.events) + 1, None)])
        position, entry = next(waiting)
        for number, event in enumerate(self.trace.events):
            written: tuple[int, ...] = ()
            while position <= number:
                if isinstance(entry, Written):
                    written = entry.tensors
                else:
                    self._outlined(entry)
                position, entry = next(waiting)
            node = self._event(event, written)
            if (recipes := self.trace.recipes.get(id(event))) is not None:
                assert node is not None
                escaping.append((node, recipes, self.versions.copy()))
        while entry is not None:
            self._outlined(entry)
            position, entry = next(waiting)
        # What objects hold is known at the end, and may have been made after they left.
        for node, recipes, self.versions in escaping:
            node.recipes = tuple(map(self.lifter.lift, recipes))
        if self.trace.result is not None:
            self.graph.result = self.lifter.lift(self.trace.result)

    def _outlined(self, entry: Any) -> None:
        if isinstance(entry, IterationStart):
            self.regions.turn(entry.site)
        elif isinstance(entry, Fetch | Size):
            self._number(entry)
        elif not isinstance(entry, Written):
            self.regions.at(entry)

    def _event(self, event: Any, written: tuple[int, ...]) -> Node | None:
        self.place = event.place
        match event:
            case FunctionEntry():
                self.regions.enter(Node("call", (("name", Const(event.name)),), site=event.place))
                return None
            case FunctionExit():
                call = self.regions.leave()
                where = Sequence(tuple, (Const(event.place.file), Const(event.place.line)))
                call.fields = (*call.fields, ("defined", where))
                return None
            case LoopEnd() if self.regions.end_loop(event.place, event.count):
                return None
        kind = EVENTS[type(event)]
        fields = (*self._fields(event), *self._out_of_order(event))
        if kind.is_fact and not any(True for _ in refs_in(tuple(one for _, one in fields))):
            node = self._relied(event, kind.name, fields)
        else:
            node = self._add(Node(kind.name, fields, site=event.place))
        if isinstance(event, Op):
            self._operation(node, event, written)
        self.externs += isinstance(event, Extern)
        return node

    def _out_of_order(self, event: Any) -> Iterator[tuple[str, Operand]]:
        """Positions that do not follow from the order: of what code did that autograd calls."""
        if isinstance(event, Extern) and event.number != self.externs:
            yield "number", Const(event.number)
        if isinstance(event, Extern | TensorPredicate) and event.after != self.ops:
            yield "after", Const(event.after)

    def _fields(self, event: Any) -> tuple[tuple[str, Operand], ...]:
        kind, defaults = EVENTS[type(event)], _DEFAULTS[type(event)]
        if isinstance(event, Op):
            modes = self.lifter.lift(event.modes)
            defaults = {**defaults, "kwargs": event.kwargs if not event.kwargs else None}
            defaults |= {"modes": event.modes} if modes == self.graph.modes else {}
        found = dict(self.lifter.fields(event, defaults, kind.live, (*kind.derived, "place")))
        first = {name: found.pop(name) for name in kind.positional if name in found}
        return (*first.items(), *found.items())

    def _operation(self, node: Node, event: Op, written: tuple[int, ...]) -> None:
        classes = list(dict.fromkeys(self._at(number).alias for number in written))
        for alias in classes:
            assert alias is not None
            self.versions[alias] += 1
        node.writes = tuple((alias, self.versions[alias]) for alias in classes if alias is not None)
        node.outs = tuple(self._tensor(out.number, made=True) for out in event.outs)
        if isinstance(event, InvokeOp) and event.call is not None:
            node.call = tree_of(event.call, event.name)
        self.ops += 1

    def _relied(self, event: Any, kind: str, fields: tuple[tuple[str, Operand], ...]) -> Node:
        """Return a fact of the heap before the call: it is one of a set, and the node says where it was first relied
        on."""
        fact = self.facts.get(event.token)
        if fact is None or fact.fields != fields:
            fact = self.facts[event.token] = Fact(len(self.graph.facts), kind, fields, event.place)
            self.graph.facts.append(fact)
        return self._add(Node("rely", (("fact", Const(fact.id)),), site=event.place))

    def _add(self, node: Node) -> Node:
        self.regions.block.nodes.append(node)
        return node

    # -- values -------------------------------------------------------------------------------------------------------

    def _new(self, kind: Any, alias: int | None = None) -> Value:
        self.values += 1
        return Value(self.values - 1, kind, alias)

    def _tensor(self, number: int, made: bool = False) -> Ref:
        value = self._at(number, made)
        assert value.alias is not None
        return Ref(value, self.versions[value.alias])

    def _at(self, number: int, made: bool = False) -> Value:
        """Return the value of a tensor. Those with smaller numbers that no node has named were met here. ``made``: the
        last node has made it, if it is new."""
        while len(self.tensors) <= number:
            new = len(self.tensors)
            value = self._meet()
            if new not in self.trace.access_paths and not (made and new == number):
                self._add(Node("meet", (), (Ref(value),), self.place))
        return self.tensors[number]

    def _meet(self) -> Value:
        number, trace = len(self.tensors), self.trace
        memory = trace.memory[number] if number < len(trace.memory) else ("alone", number)
        alias = self.aliases.setdefault(memory, len(self.aliases))
        self.tensors.append(value := self._new(self._type(number), alias))
        if (path := trace.access_paths.get(number)) is not None:
            self._read(value, self.lifter.path(path))
        return value

    def _read(self, value: Value, path: Path) -> None:
        """A value from before the call is an input, unless numbers of the run say where it is."""
        if any(True for _ in refs_in(path)):
            self._add(Node("read", (("path", path),), (Ref(value),), self.place))
        else:
            self.graph.inputs.append(Input(value, path))

    def _type(self, number: int) -> TensorType | str:
        if (kind := self.outline.kinds.get(number)) is None:
            return "tensor"
        sizes, strides, dtype, device, requires_grad = kind
        return TensorType(str(dtype).removeprefix("torch."), sizes, strides, str(device), requires_grad)

    def _number(self, expr: Expr) -> Ref:
        if isinstance(expr, Apply):
            if (known := self.computed.get(id(expr))) is None:
                known = self._computed(expr)
            return Ref(known)
        known = self.numbers.get(expr.token)
        if known is None:
            known = self.numbers[expr.token] = self._leaf(expr)
        return Ref(known)

    def _computed(self, expr: Apply) -> Value:
        args = Sequence(tuple, tuple(map(self.lifter.lift, expr.args)))
        self.trace.alive.append(expr)
        value = self.computed[id(expr)] = self._new("number")
        self._add(Node("compute", (("func", Const(expr.func)), ("args", args)), (Ref(value),), expr.place))
        return value

    def _leaf(self, expr: Any) -> Value:
        match expr:
            case Read(access_path=access_path):
                path = self.lifter.path(access_path)
                value = self._new(self.kinds.get(access_path.token, "number"))
                self._read(value, path)
                return value
            case Fetch():
                fields = self.lifter.fields(expr, {"index": None, "each": False}, leave=("after", "place", "ref"))
                fields = (("ref", self._tensor(expr.ref)), *fields)
                kind, site = expr.type.__name__, expr.place
            case Size():
                fields = (("ref", self._tensor(expr.ref)), ("dim", Const(expr.dim)))
                kind, site = "int", self.place
            case InductionVariable():
                fields = (("first", Const(expr.first)), ("step", Const(expr.step)))
                value = self._new("int")
                self._add(Node("index", fields, (Ref(value),), self.place))
                return value
            case _:
                raise AssertionError(expr)
        value = self._new(kind)
        if expr.after != self.ops:  # met after the fact: by native code that an outline does not see
            fields = (*fields, ("after", Const(expr.after)))
        self._add(Node(type(expr).__name__.lower(), fields, (Ref(value),), site))
        return value


def _mark_yields(graph: Graph) -> None:
    """Say of each block which of its values are used after its end."""
    last: dict[Value, float] = {}
    nodes = list(walk(graph.body))
    for number, node in enumerate(nodes):
        last.update((ref.value, number) for ref in refs_in(tuple(operand for _, operand in node.fields)))
    for operands in (*(node.recipes or () for node in nodes), (graph.result or (),)):
        last.update((ref.value, math.inf) for ref in refs_in(operands))
    _yields(graph.body, 0, last)


def _yields(block: Block, number: int, last: dict[Value, float]) -> tuple[int, dict[Value, Ref]]:
    """Return the number of the node after the block, and what is made in it and used behind it, as it leaves it."""
    made: dict[Value, Ref] = {}
    for node in block.nodes:
        number += 1
        made |= {out.value: out for out in node.outs}
        for inner in node.blocks:
            number, given = _yields(inner, number, last)
            made |= given
    made = {value: ref for value, ref in made.items() if last.get(value, -1) >= number}
    block.yields = tuple(made.values())
    return number, made
