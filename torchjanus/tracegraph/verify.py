"""Checks a tree: what must hold of each (the rules of docs/design/tracegraph.md).

A recorded run is a straight line with brackets: a value that a block has made may be used after it, if the block says
that it yields it. What a merged region's blocks have made is known in them only: what leaves is a result of the region.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from torchjanus.tracegraph.graph import (
    REGIONS,
    Block,
    Const,
    Graph,
    Node,
    Record,
    Ref,
    Sequence,
    Value,
    is_merged,
    refs_in,
    walk,
)
from torchjanus.tracegraph.kinds import FACTS, KINDS, POSITIONAL

__all__ = ["Broken", "broken_rules", "verify"]

_ARMS = frozenset({"then", "else", "case"})
_MAKING = frozenset({"op", "invoke", "apply", "compute", "read", "fetch", "size", "index", "meet"})
_SINGLE = _MAKING - {"op", "invoke", "apply"}
_WRITING = frozenset({"op", "invoke"})
_ESCAPING = frozenset({"write", "mutate", "extern"})


class Broken(AssertionError):
    """A tree breaks a rule."""


def verify(graph: Graph) -> None:
    """Raise Broken if the tree breaks a rule."""
    found = list(broken_rules(graph))
    if found:
        raise Broken("; ".join(found[:5]))


def broken_rules(graph: Graph, functions: dict[str, Graph] | None = None) -> Iterator[str]:
    """Yield where the tree breaks a rule, and which. ``functions``: the graph functions that it may apply, if not its
    own."""
    yield from _Checking(graph).run()
    named = {one.name: one for one in graph.functions}
    if len(named) < len(graph.functions):
        yield "V2: two functions have one name"
    for node in walk(graph.body):
        yield from _merged_shape(node) if is_merged(node) else _shape(node)
        if node.kind == "apply":
            yield from _applied(node, named if functions is None else functions)
        if node.call is not None:
            yield from broken_rules(node.call)
    yield from _facts(graph)
    yield from _code(graph)
    for one in graph.functions:
        yield from broken_rules(one, named)


class _Checking:
    """Uses of values, in program order: V1, V4, V5."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known = {given.value: True for given in graph.inputs}  # whether it can be used here
        self.versions: Counter[int] = Counter()

    def run(self) -> Iterator[str]:
        for given in self.graph.inputs:
            yield from self._version(Ref(given.value))
        yield from self._block(self.graph.body)
        late = [ref for node in walk(self.graph.body) for ref in refs_in(node.recipes or ())]
        for ref in (*late, *refs_in((self.graph.result or (),))):
            if ref.value not in self.known:
                yield f"V1: %{ref.value.id} leaves the step and is made nowhere"
            elif ref.value.alias is not None and ref.version > self.versions[ref.value.alias]:
                yield f"V4: %{ref.value.id}.{ref.version} is a version that there never is"

    def _block(self, block: Block) -> Iterator[str]:
        made: set[Value] = set()
        for node in block.nodes:
            yield from self._uses(node)
            if is_merged(node):
                yield from self._merged(node)
                made |= {out.value for out in node.outs}
                continue
            yield from self._made(node)
            made |= {out.value for out in node.outs}
            for inner in node.blocks:
                yield from self._block(inner)
                made |= {ref.value for ref in refs_in(inner.yields)}
        if block is self.graph.body:
            return
        yielded = {ref.value for ref in refs_in(block.yields)}
        for value in yielded - made:
            yield f"V1: a block yields %{value.id}, which it has not made"
        for value in made - yielded:
            self.known[value] = False

    def _merged(self, node: Node) -> Iterator[str]:
        """Yield the blocks of a merged region: each sees what was there before the region, and its parameters."""
        outside = dict(self.known)
        for block in node.blocks:
            self.known = {**outside, **{param.value: True for param in block.params}}
            for inner in block.nodes:
                yield from self._uses(inner)
                if is_merged(inner):
                    yield from self._merged(inner)
                    continue
                yield from self._made(inner)
                for below in inner.blocks:
                    yield from self._block(below)
            for ref in refs_in(block.yields):
                if not self.known.get(ref.value, False):
                    yield f"V1: a block yields %{ref.value.id}, which is not made in it or before it"
                yield from self._version(ref)
        self.known = outside
        for out in node.outs:
            yield from self._version(out)
            self.known[out.value] = True

    def _made(self, node: Node) -> Iterator[str]:
        """Take note of what a node writes and makes."""
        for alias, version in node.writes:
            if node.kind not in _WRITING:
                yield f"V5: {node.kind} writes a tensor"
            self.versions[alias] += 1
            if version != self.versions[alias]:
                yield f"V4: A{alias} gets version {version} after {self.versions[alias] - 1}"
        for out in node.outs:
            yield from self._version(out)
            self.known[out.value] = True

    def _uses(self, node: Node) -> Iterator[str]:
        if node.recipes is not None and node.kind not in _ESCAPING:
            yield f"V5: an object leaves the step by {node.kind}"
        for ref in refs_in(tuple(operand for _, operand in node.fields)):
            if not self.known.get(ref.value, False):
                yield f"V1: {node.kind} uses %{ref.value.id}, which is not made before it, or not yielded"
            yield from self._version(ref, as_it_was=node.kind == "fetch")

    def _version(self, ref: Ref, as_it_was: bool = False) -> Iterator[str]:
        """``as_it_was``: what a host effect shows is fetched at the end, as it was before later writes."""
        alias = ref.value.alias
        if alias is None:
            if ref.version:
                yield f"V4: the number %{ref.value.id} has a version"
        elif alias >= self.graph.aliases:
            yield f"V4: there is no alias class A{alias}"
        elif ref.version > self.versions[alias] or (not as_it_was and ref.version < self.versions[alias]):
            yield f"V4: %{ref.value.id} is used at version {ref.version}, and has {self.versions[alias]}"


def _shape(node: Node) -> Iterator[str]:
    """V2, V7, V11: kinds, operands, results and blocks of one node."""
    if node.kind not in POSITIONAL:
        yield f"V2: there is no node {node.kind}"
        return
    fields = [name for name, _ in node.fields]
    if len(set(fields)) < len(fields):
        yield f"V2: {node.kind} has an operand twice"
    if node.outs and node.kind not in _MAKING:
        yield f"V2: {node.kind} makes a value"
    if node.kind in _SINGLE and len(node.outs) != 1:
        yield f"V2: {node.kind} makes {len(node.outs)} values"
    roles = [block.role for block in node.blocks]
    if bool(roles) is not (node.kind in REGIONS):
        yield f"V2: {node.kind} has {len(roles)} blocks"
    if node.kind == "switch" and (len(roles) != 1 or roles[0] not in _ARMS):
        yield f"V7: a switch of one run has the arms {roles}"
    if node.kind == "call" and roles != ["body"]:
        yield f"V2: a call has the blocks {roles}"
    if node.kind == "loop":
        if node.get("construct") == Const("while"):
            alike = all(role in ("test", "body") for role in roles) and roles[0] == "test"
            alike = alike and all(pair != ("body", "body") for pair in itertools.pairwise(roles))
        else:
            alike = set(roles) == {"body"}
        if not alike:
            yield f"V2: a loop has the blocks {roles}"
    if node.get("exit") not in (None, Const("exhausted")):
        yield "V11: a loop ends otherwise than at its end"


def _merged_shape(node: Node) -> Iterator[str]:
    """V2, V3, V7: blocks, parameters and results of a region that stands for all of its iterations or arms."""
    roles = [block.role for block in node.blocks]
    counts = [len(block.yields) for block in node.blocks]
    if node.kind == "switch":
        if roles != ["then", "else"]:
            yield f"V7: a merged switch has the arms {roles}"
        if any(count != len(node.outs) for count in counts) or any(block.params for block in node.blocks):
            yield f"V2: the arms of a switch of {len(node.outs)} results yield {counts}, or have parameters"
        return
    carried, indexed = node.get("carried"), node.get("index") is not None
    if roles != ["test", "body"]:
        yield f"V2: a merged loop has the blocks {roles}"
        return
    wanted = len(node.outs)
    if not isinstance(carried, Sequence) or len(carried.items) != wanted or counts != [1, wanted]:
        yield f"V2: a loop of {wanted} results carries and yields {counts}"
    test, body = node.blocks
    if test.params != body.params or len(body.params) != wanted + indexed:
        yield f"V2: the blocks of a loop of {wanted} results have {len(body.params)} parameters"
    for param, out in zip(body.params[indexed:], node.outs, strict=False):
        if param.value.is_tensor is not out.value.is_tensor:
            yield f"V3: %{param.value.id} and %{out.value.id} are not of one type"


def _applied(node: Node, functions: dict[str, Graph]) -> Iterator[str]:
    """V2: a call of a graph function."""
    name, args = node.get("function"), node.get("args")
    function = functions.get(name.value) if isinstance(name, Const) else None
    if function is None:
        yield f"V2: there is no function {name}"
        return
    taken = sum(given.path.step == "parameter" for given in function.inputs)
    result = function.result
    returned = len(result.items) if isinstance(result, Sequence) else -1
    if len(args.items) != taken or len(node.outs) != returned:
        yield f"V2: {function.name} takes {taken} and returns {returned}, not {len(args.items)} and {len(node.outs)}"


def _facts(graph: Graph) -> Iterator[str]:
    """V9: facts are of the heap before the call, and each is relied on."""
    relied = {node.get("fact") for node in walk(graph.body) if node.kind == "rely"}
    for number, fact in enumerate(graph.facts):
        if fact.id != number or Const(number) not in relied:
            yield f"V9: fact {fact.id} is number {number}, or nothing relies on it"
        if fact.kind not in FACTS or not KINDS[fact.kind].is_fact:
            yield f"V9: {fact.kind} is no fact"
        if any(True for _ in refs_in(tuple(operand for _, operand in fact.fields))):
            yield f"V9: fact {fact.id} refers to what the run has made"
    if len(relied) > len(graph.facts):
        yield "V9: a node relies on a fact that there is not"


def _code(graph: Graph) -> Iterator[str]:
    """V12: code that autograd calls begins before it ends."""
    begun: set[Const] = set()
    for node in walk(graph.body):
        func = node.get("func")
        if isinstance(func, Record) and func.name in ("begin", "end"):
            number = dict(func.fields).get("number", Const(0))
            assert isinstance(number, Const)
            if func.name == "begin":
                begun.add(number)
            elif number not in begun:
                yield f"V12: code {number.value} ends before it begins"
