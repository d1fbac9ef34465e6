"""Checks a recorded tree: what must hold of each (the rules of docs/design/tracegraph.md that concern recorded runs).

A recorded run is a straight line with brackets: a value that a block has made may be used after it, if the block says
that it yields it.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from torchjanus.tracegraph.graph import REGIONS, Block, Const, Graph, Node, Record, Ref, Value, refs_in, walk
from torchjanus.tracegraph.kinds import FACTS, KINDS, POSITIONAL

__all__ = ["Broken", "broken_rules", "verify"]

_ARMS = frozenset({"then", "else", "case"})
_MAKING = frozenset({"op", "invoke", "compute", "read", "fetch", "size", "index", "meet"})
_SINGLE = _MAKING - {"op", "invoke"}
_WRITING = frozenset({"op", "invoke"})
_ESCAPING = frozenset({"write", "mutate", "extern"})


class Broken(AssertionError):
    """A tree breaks a rule."""


def verify(graph: Graph) -> None:
    """Raise Broken if the tree breaks a rule."""
    found = list(broken_rules(graph))
    if found:
        raise Broken("; ".join(found[:5]))


def broken_rules(graph: Graph) -> Iterator[str]:
    """Where the tree breaks a rule, and which."""
    yield from _Checking(graph).run()
    for node in walk(graph.body):
        yield from _shape(node)
        if node.call is not None:
            yield from broken_rules(node.call)
    yield from _facts(graph)
    yield from _code(graph)


class _Checking:
    """Uses of values, in program order: V1, V4, V5."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.known = {given.value: True for given in graph.inputs}  # whether it can be used here
        self.versions: Counter[int] = Counter()

    def run(self) -> Iterator[str]:
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
            for alias, version in node.writes:
                if node.kind not in _WRITING:
                    yield f"V5: {node.kind} writes a tensor"
                self.versions[alias] += 1
                if version != self.versions[alias]:
                    yield f"V4: A{alias} gets version {version} after {self.versions[alias] - 1}"
            for out in node.outs:
                yield from self._version(out)
                made.add(out.value)
                self.known[out.value] = True
            for inner in node.blocks:
                yield from self._block(inner)
                made |= {ref.value for ref in inner.yields}
        if block is self.graph.body:
            return
        for ref in block.yields:
            if ref.value not in made:
                yield f"V1: a block yields %{ref.value.id}, which it has not made"
        for value in made - {ref.value for ref in block.yields}:
            self.known[value] = False

    def _uses(self, node: Node) -> Iterator[str]:
        if node.recipes is not None and node.kind not in _ESCAPING:
            yield f"V5: an object leaves the step by {node.kind}"
        for ref in refs_in(tuple(operand for _, operand in node.fields)):
            if not self.known.get(ref.value, False):
                yield f"V1: {node.kind} uses %{ref.value.id}, which is not made before it, or not yielded"
            yield from self._version(ref)

    def _version(self, ref: Ref) -> Iterator[str]:
        alias = ref.value.alias
        if alias is None:
            if ref.version:
                yield f"V4: the number %{ref.value.id} has a version"
        elif alias >= self.graph.aliases:
            yield f"V4: there is no alias class A{alias}"
        elif ref.version != self.versions[alias]:
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
