"""Find the nodes whose result may overwrite their first argument, as eager's in-place operations do.

A functional graph allocates memory for every result. For an optimizer that is a copy of all parameters for each of its
operations, and one more for the update. A node may overwrite an intermediate value that nothing reads any more; or an
input that the call updates anyway, once all assertions hold and no later operation can raise. Only operations whose
in-place form is bitwise equal do so. Knows nothing of who runs the graph.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from torchjanus.graph.aten.clean_up import is_view
from torchjanus.graph.aten.may_fail import may_fail
from torchjanus.graph.aten.symbolic_sizes import are_alike
from torchjanus.graph.ir.lowered import Lowered
from torchjanus.ops.aten import in_place_form, operator_of

__all__ = ["Overwriting", "of_intermediates", "of_updates"]

aten = torch.ops.aten
Node = torch.fx.Node

_LOOKING_UP = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put.default)

_HALF = frozenset({torch.bfloat16, torch.float16})


@dataclass(slots=True)
class Overwriting:
    """``forms``: the in-place operator of a node that overwrites its first argument, or all tensors of that list.

    ``updated``: which of the mutated inputs (by position in ``Lowered.mutated``) are overwritten with their new
    contents. That begins after ``last``, when everything that decides whether the call commits has been computed.
    ``asked``: tensors and positions in them that are looked up before, which raises if the overwriting operation would.
    """

    forms: dict[Node, Callable[..., Any]] = field(default_factory=dict)
    updated: frozenset[int] = frozenset()
    last: Node | None = None
    asked: tuple[tuple[Node, Any], ...] = ()


def of_intermediates(nodes: Sequence[Node]) -> Overwriting:
    """Return which nodes may overwrite intermediate values, if the nodes run in this order."""
    return Overwriting(_Lifetimes(nodes).intermediates())


def of_updates(lowered: Lowered) -> Overwriting:
    """Return which nodes may overwrite intermediate values and, where that is safe, inputs that the call updates."""
    nodes = list(lowered.graph.graph.nodes)
    lives = _Lifetimes(nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    found = Overwriting(lives.intermediates(frozenset(inputs[index] for index in lowered.scratch)))
    results = nodes[-1].args[0]
    asked = lives.of_single_places()
    while True:
        # Whether lookups and writes of single elements would raise is checked before.
        settled = lives.settled(results, lowered.flags, asked)
        # For each mutated input the chain of nodes that could all overwrite it, up to its new contents.
        chains: dict[int, list[Node]] = {}
        for place, index in enumerate(lowered.mutated):
            if not lowered.program.inputs[index].example.is_inference():
                chain = lives.chain(inputs[index], results[lowered.updates + place])
                if chain and lives.position[_maker(chain[0])] > settled:
                    chains[place] = chain
        last = min((lives.position[_maker(chain[0])] for chain in chains.values()), default=0) - 1
        questions = {node: lives.question(node, last) for node in asked if lives.position[node] > last}
        if None not in questions.values():
            break
        asked = [node for node in asked if questions.get(node, ()) is not None]
    # An operation on a list overwrites all of its tensors or none.
    reached = {inputs[lowered.mutated[place]]: place for place in chains}
    while True:
        steps = {node: place for place, chain in chains.items() for node in map(_maker, chain)}
        lost = {
            steps[node]
            for node in steps
            for target in _targets(node)
            if not (_is_own(target) or reached.get(target) in chains)
        }
        if not lost:
            break
        for place in lost:
            del chains[place]
    for node in {_maker(step) for chain in chains.values() for step in chain}:
        form = lives.form(node)
        assert form is not None
        found.forms[node] = form
    if chains:
        found.updated = frozenset(chains)
        found.last = nodes[min(lives.position[_maker(chain[0])] for chain in chains.values()) - 1]
        looked_up = lives.looked_up(last)
        found.asked = tuple(one for node, one in questions.items() if one and not _places(node) <= looked_up)
    return found


class _Lifetimes:
    """The lifetimes of memory in a sequence of nodes."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self.position = {node: number for number, node in enumerate(nodes)}
        self._nodes = nodes
        self._root: dict[Node, Node] = {}
        self._last: dict[Node, int] = {}
        for number, node in enumerate(nodes):
            self._root[node] = self._root[node.args[0]] if is_view(node) else node  # type: ignore[index]
            for used in node.all_input_nodes:
                self._last[self._root[used]] = number

    def form(self, node: Node) -> Callable[..., Any] | None:
        """Return the in-place operator, if nothing reads later what the node would overwrite; else None."""
        form = _form(node.target) if node.op == "call_function" else None
        if form is None:
            return None
        targets, made = _targets(node), _made(node)
        known, dtypes = operator_of(node.target), {getattr(one, "dtype", torch.float32) for one in made}
        if known.rounds_number and dtypes & _HALF:
            return None
        if known.rounds_complex and any(dtype.is_complex for dtype in dtypes):
            return None
        if len(made) != len(targets) or not all(isinstance(target, Node) for target in targets):
            return None
        roots = [self._root[used] for used in _flat((node.args, node.kwargs))]
        for target, value in zip(targets, made, strict=True):
            dies = self._root[target] is target and self._last[target] == self.position[node]
            if not dies or roots.count(target) != 1 or not are_alike(target, value):
                return None
        return form

    def intermediates(self, scratch: Set[Node] = frozenset()) -> dict[Node, Callable[..., Any]]:
        """Return the nodes that may overwrite values that the graph has made, or ``scratch``, with their in-place
        operators."""
        found = {}
        for node in self._nodes:
            form = self.form(node)
            if form is not None and all(target in scratch or _is_own(target) for target in _targets(node)):
                found[node] = form
        return found

    def settled(self, results: Sequence[Node], flags: int | None, asked: Sequence[Node]) -> int:
        """Return the position after which all assertions are computed and nothing raises except ``asked``."""
        stacked = [] if flags is None else [self.position[node] for node in results[flags].all_input_nodes]
        raising, looked_up = [], set[Any]()
        for number, node in enumerate(self._nodes):
            places = _places(node)
            within = node.target in _LOOKING_UP and places <= looked_up
            if _may_raise(node) and node not in asked and not within:
                raising.append(number)
            looked_up |= places
        return max([*stacked, *raising], default=0)

    def of_single_places(self) -> list[Node]:
        """Return the nodes that look up or write single elements."""
        return [
            node
            for node in self._nodes
            if node.target in _LOOKING_UP and all(map(_is_single, node.args[1]))  # type: ignore[arg-type]
        ]

    def question(self, node: Node, last: int) -> tuple[Node, Any] | None:
        """Return a tensor of the same sizes, and the positions, that are known at position ``last``; else None."""
        tensor: Any
        positions: Any
        tensor, positions = node.args[:2]
        while self.position[tensor] > last:
            made, tensor = tensor, tensor.args[0] if _form(tensor.target) is not None else None
            if not isinstance(tensor, Node) or not are_alike(made, tensor):
                return None
        known = all(one is None or self.position[one] <= last for one in positions)
        return (tensor, positions) if known else None

    def looked_up(self, last: int) -> set[Any]:
        """Return the (position tensor, size) pairs that lookups up to ``last`` have checked."""
        return {place for node in self._nodes[: last + 1] for place in _places(node)}

    def chain(self, given: Node, update: Node) -> list[Node]:
        """Return the nodes that make the update of an input from it, each overwriting the one before, or []."""
        output = self._nodes[-1]
        shown = [used for used in _flat(output.args) if self._root[used] is self._root[update]]
        if shown != [update]:
            return []  # the update is also a result
        chain: list[Node] = []
        node = update
        while node is not given:
            maker = _maker(node)
            if self.form(maker) is None:
                return []
            chain.append(node)
            node = _targets(maker)[0 if maker is node else node.args[1]]  # type: ignore[index]
            if node is not given and not _is_own(node):
                return []
        return chain[::-1]


def _targets(node: Node) -> list[Any]:
    """Return the tensors that the node would overwrite."""
    first = node.args[0]
    return list(first) if isinstance(first, list | tuple) else [first]


def _made(node: Node) -> list[Any]:
    value = node.meta.get("val")
    return list(value) if isinstance(value, list | tuple) else [value]


def _maker(node: Node) -> Node:
    """Return the operation that made the value, which may be one of a list."""
    return node.args[0] if node.target is operator.getitem else node  # type: ignore[return-value]


def _is_own(node: Node) -> bool:
    """Whether the graph has made this value, in memory that holds nothing else."""
    target = _maker(node).target if node.op == "call_function" else None
    known = operator_of(target)
    if known.new_memory or (node.target is operator.getitem and _form(target) is not None):
        return True
    return known.pointwise and node.target is target and not known.draws


def _may_raise(node: Node) -> bool:
    if node.op != "call_function" or node.target is operator.getitem:
        return False
    known = operator_of(node.target)
    return not known.total and (not known.aten or may_fail(node))


def _places(node: Node) -> set[Any]:
    """Return the (position tensor, size) pairs that a lookup or write of elements relies on being in range."""
    if node.target not in _LOOKING_UP:
        return set()
    sizes = node.args[0].meta["val"].shape  # type: ignore[union-attr]
    pairs = zip(node.args[1], sizes, strict=False)  # type: ignore[arg-type]
    return {(one, str(size)) for one, size in pairs if one is not None and not _is_within(one, size)}


def _is_within(position: Node, size: Any) -> bool:
    """Whether a position is a constant within a constant size."""
    number = position.args[1] if position.target is aten.full.default else None
    return type(number) is int and type(size) is int and -size <= number < size


def _is_single(position: Node | None) -> bool:
    return position is None or all(type(size) is int and size == 1 for size in position.meta["val"].shape)


def _flat(value: Any) -> list[Node]:
    found: list[Node] = []
    torch.fx.node.map_arg(value, found.append)
    return found


def _form(target: Any) -> Callable[..., Any] | None:
    """Return the operator that does the same in place, bitwise equal; None where none is known."""
    return in_place_form(target) if operator_of(target).same_in_place else None
